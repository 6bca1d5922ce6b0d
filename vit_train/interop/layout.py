"""How a library stores the weights of a Vision Transformer: a table of names, read both ways."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vit_train.model.config import ViTConfig

State = dict[str, Tensor]
# One name, or three where query, key and value are separate layers.
Names = str | tuple[str, str, str]
# The layers of every block that have weights.
BLOCK = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
# What the factors of LayerScale begin with, where they are not loaded.
LAYER_SCALE = 1e-5
# Settings that only this program can change, with the value of all libraries.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "pre_norm": (True,),
    "norm_affine": (True,),
    "final_norm": (True,),
    "stem": ("patches",),
    "patch_overlap": (0,),
    "positions": ("learned",),
    "positions_at": ("stem",),
    "mlp_bias": (True,),
}
# Parts of other models' names that this model has no place for, and what they belong to.
NO_PLACE = {
    "dist_token": "a distillation token: take the same model without (deit_base_patch16_224, "
    "not deit_base_distilled_patch16_224)",
    "distillation_token": "a distillation token: take the same model without "
    "(facebook/deit-base-patch16-224, not facebook/deit-base-distilled-patch16-224)",
    "reg_token": "register tokens",
    ".lambda1": "LayerScale in another layout: take timm's model",
    "fc_norm.": "a LayerNorm after pooling; here it is before",
    "norm_pre.": "a LayerNorm before the blocks",
    "relative_position": "its own relative positions",
}


class Misfit(ValueError):
    """Weights or settings that a layout, or this program's model, has no place for."""


@dataclass(frozen=True)
class Facts:
    """What a library's config files say of a model, beside what its weights show."""

    # Settings of `model`: num_heads, norm_eps and the like.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # The names of the classes, and how images are normalized; None where that is not known.
    classes: list[str] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None


@dataclass(frozen=True)
class Subject:
    """A model that a library's config files are to describe."""

    config: ViTConfig
    image_shape: tuple[int, int, int]
    classes: list[str]
    mean: list[float]
    std: list[float]


# The JSON files beside the weights, by name.
Files = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Layout:
    """A library's layout of the weights.

    `names` are this program's names and theirs, in which {n} is a block's number. Behind a name
    that ends with "." or "_", `weight` or `bias` follows.
    """

    # The name of the library, as in "timm's layout".
    name: str
    names: Mapping[str, Names]
    # Two of the library's own names, by which a file is recognized.
    marks: tuple[str, str]
    # Values of the settings that this layout can hold, where it cannot hold all.
    holds: Mapping[str, tuple[Any, ...]]
    # Its LayerNorm's eps where no config says otherwise.
    norm_eps: float
    # Beginnings of names that are not needed, and what they are.
    unused: Mapping[str, str] = field(default_factory=dict)
    # What its config files say, and these files for a model.
    facts: Callable[[Files], Facts] = lambda files: Facts()
    files: Callable[[Subject], Files] = lambda subject: {}
    # What some files put before these names.
    prefixes: tuple[str, ...] = ()
    # From their tensors to those of the table and back, where more than names differs.
    unpack: Callable[[State], State] = dict
    pack: Callable[[State], State] = dict

    @property
    def always(self) -> dict[str, Any]:
        """Return the settings that all of the library's models have in common."""
        return {name: values[0] for name, values in self.holds.items() if len(values) == 1}

    def recognizes(self, state: Mapping[str, Tensor]) -> bool:
        return self.bare(state).keys() >= set(self.marks)

    def bare(self, state: Mapping[str, Tensor]) -> State:
        """Return the tensors without the prefixes of their names."""
        return {
            key.removeprefix(next(filter(key.startswith, self.prefixes), "")): value
            for key, value in state.items()
        }

    def to_ours(self, state: Mapping[str, Tensor]) -> tuple[State, list[str]]:
        """Return the weights under this program's names, and the names of those left out.

        Raise Misfit if there are weights that this program's model has no place for.
        """
        found: dict[str, dict[int, Tensor]] = {}
        left: list[str] = []
        try:
            unpacked = self.unpack(self.bare(state))
        except (RuntimeError, IndexError) as error:
            raise Misfit(f"its weights do not have the shapes of {self.name}'s") from error
        for key, value in unpacked.items():
            place = self.place(key)
            if place is None:
                left.append(key)
            else:
                found.setdefault(place[0], {})[place[1]] = value
        self.require_unused(left)
        ours = {}
        for key, parts in found.items():
            names = self.theirs(key)
            if missing := [name for n, name in enumerate(names) if n not in parts]:
                raise Misfit(f"it lacks {', '.join(missing)}")
            try:
                ours[key] = (
                    torch.cat([parts[n] for n in sorted(parts)]) if len(parts) > 1 else parts[0]
                )
            except RuntimeError as error:
                raise Misfit(f"{', '.join(names)} do not fit together") from error
        return ours, left

    def to_theirs(self, state: Mapping[str, Tensor]) -> State:
        """Return the weights of this program's model under the library's names."""
        result: State = {}
        for key, value in state.items():
            names = self.theirs(key)
            result |= dict(zip(names, value.chunk(len(names)), strict=True))
        return self.pack(result)

    def theirs(self, key: str) -> tuple[str, ...]:
        """Return the library's names for one of this program's; KeyError if it has none."""
        for ours, names in self.names.items():
            if (match := matched(ours, key)) is not None:
                number, kind = match
                several = (names,) if isinstance(names, str) else names
                return tuple(name.replace("{n}", number) + kind for name in several)
        raise KeyError(key)

    def place(self, key: str) -> tuple[str, int] | None:
        """Return this program's name for one of theirs and which part of it that is, or None."""
        for ours, names in self.names.items():
            for part, name in enumerate((names,) if isinstance(names, str) else names):
                if (match := matched(name, key)) is not None:
                    number, kind = match
                    return ours.replace("{n}", number) + kind, part
        return None

    def require_unused(self, names: list[str]) -> None:
        """Raise Misfit if one of the names is not known to be of no use."""
        for name in names:
            for part, what in NO_PLACE.items():
                if part in name:
                    raise Misfit(f"it has {what} ({name[:80]})")
        odd = [name for name in names if not name.startswith(tuple(self.unused))]
        if odd:
            raise Misfit(
                f"it has {first_three(odd)}, which a Vision Transformer here has no place for"
            )

    def refused(self, config: ViTConfig) -> list[str]:
        """Return the settings of a model that this layout cannot hold."""
        return [
            f"model.{name}={getattr(config, name)}"
            for name, values in self.holds.items()
            if getattr(config, name) not in values
        ]


def first_three(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:80] for name in names[:3]) + more


def our_activation(theirs: object, names: Mapping[str, str]) -> str:
    """Return this program's name of an activation; `names` are those by the library's.

    Raise Misfit if it has none.
    """
    if str(theirs) not in names:
        raise Misfit(f"its activation is {str(theirs)[:40]}, not one of: {', '.join(names)}")
    return names[str(theirs)]


def matched(name: str, key: str) -> tuple[str, str] | None:
    """Return the block's number and the kind, weight or bias, of a key that has this name.

    Each is "" where the name has none. None if the key has another name.
    """
    pattern = re.escape(name).replace(re.escape("{n}"), r"(?P<n>0|[1-9]\d{0,5})")
    kind = "(?P<kind>weight|bias)" if name[-1] in "._" else ""
    found = re.fullmatch(pattern + kind, key)
    if found is None:
        return None
    parts = found.groupdict()
    return parts.get("n", ""), parts.get("kind", "")


def described(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the settings of `model` that this program's weights show.

    Raise Misfit if they are not those of a Vision Transformer.
    """
    numbers = {int(found[1]) for key in state if (found := re.match(r"blocks\.(\d+)\.", key))}
    needed = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")
    lacking = [key for key in needed if key not in state]
    if lacking or numbers != set(range(len(numbers))):
        raise Misfit("it lacks whole blocks, or the embedding of patches")
    patches, hidden = state[needed[0]], state[needed[2]]
    if patches.ndim != 4 or hidden.ndim != 2 or patches.shape[2] != patches.shape[3]:
        raise Misfit("its patches are not square, or its layers are not matrices")
    return {
        "patch_size": patches.shape[3],
        "embed_dim": patches.shape[0],
        "depth": len(numbers),
        "mlp_dim": hidden.shape[0],
        "stem": "normed_patches" if "patch_embed.norm_in.weight" in state else "patches",
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "layer_scale": LAYER_SCALE if "blocks.0.ls1.gamma" in state else None,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "proj_bias": "blocks.0.attn.proj.bias" in state,
        "mlp_bias": "blocks.0.mlp.fc1.bias" in state,
        "positions": "learned" if "pos_embed.0.weight" in state else "none",
        "head": head_of(state),
    }


def head_of(state: Mapping[str, Tensor]) -> str:
    if "cls_token" not in state:
        return "gap"
    return "token_mlp" if "pre_head.0.weight" in state else "token"
