"""Conversion of weights between this program's names and another library's names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vit_train.base.reading import Refused
from vit_train.config.model import MOST_BLOCKS, ViTConfig
from vit_train.data.dataset import Statistics
from vit_train.model.positions import Weights

# One name, or three if query, key and value are separate layers.
Names = str | tuple[str, str, str]
# The contents of JSON files beside the weights, by file name.
Files = Mapping[str, Mapping[str, Any]]
# The initial factors of LayerScale, if none are loaded.
LAYER_SCALE = 1e-5
# Parts of other models, by pieces of the names of their weights.
OTHER_PARTS = {
    "dist_token": "a distillation token",
    "distillation_token": "a distillation token",
    ".gamma_1": "the rotary positions of timm's EVA and DINOv3 models",
    ".mlp.up_proj.": "the rotary positions of DINOv3",
    ".mlp.weights_in.": "a gated MLP (SwiGLU) with its halves in another order",
}


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model, read from a library's config files.

    All other facts are inferred from the model's weights.
    """

    # Settings of `model`: num_heads, norm_eps and the like.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # The names of the classes, and how images are normalized; None if unknown.
    classes: list[str] | None = None
    statistics: Statistics | None = None


@dataclass(frozen=True)
class Layout:
    """A library's names and shapes of weights, and the settings that the library supports."""

    # The library's name, as in "timm's layout".
    name: str
    # This program's names and the library's. {n} is a block's number, and `weight` or `bias` is
    # appended to a name that ends with "." or "_".
    names: Mapping[str, Names]
    # The values that settings can have, if the weights do not show the setting or the layout is
    # written; all other settings can have any value.
    supported: Mapping[str, tuple[Any, ...]]
    # LayerNorm's eps, unless a config sets it.
    norm_eps: float
    # Prefixes of the names of weights that are not needed.
    unused: tuple[str, ...] = ()
    # Functions that read facts about a model from the library's config files, and write these
    # files, given a model's config and the classes, mean, std and image_shape of its images.
    facts: Callable[[Files], ModelFacts] = lambda files: ModelFacts()
    files: Callable[[ViTConfig, Mapping[str, Any]], Files] = lambda config, about: {}
    # Functions that convert the library's tensors to those in the table and back, if more than the
    # names differ.
    unpack: Callable[[Weights], Weights] = dict
    pack: Callable[[Weights], Weights] = dict

    def table(self, depth: int) -> dict[str, tuple[str, ...]]:
        """Map this program's names of weights, for `depth` blocks, to the library's names.

        Each key maps to one name, or to three if query, key and value are separate layers.
        """
        found = {}
        for ours, names in self.names.items():
            theirs = (names,) if isinstance(names, str) else names
            kinds = ("weight", "bias") if theirs[0][-1] in "._" else ("",)
            for block in map(str, range(depth if "{n}" in ours else 1)):
                for kind in kinds:
                    found[ours.replace("{n}", block) + kind] = tuple(
                        name.replace("{n}", block) + kind for name in theirs
                    )
        return found

    def to_ours(self, state: Mapping[str, Tensor]) -> tuple[Weights, dict[str, Any], list[str]]:
        """Return the weights under this program's names, and the settings that they show.

        Also return the library's names of unused weights. Raise Refused if a weight is missing, has
        a wrong shape, or is in neither `table` nor `unused`.
        """
        ours: Weights = {}
        try:
            theirs = self.unpack(dict(state))
            for key, names in self.table(min(len(state), MOST_BLOCKS)).items():
                if theirs.keys() >= {*names}:
                    parts = [theirs.pop(name) for name in names]
                    ours[key] = torch.cat(parts) if len(parts) > 1 else parts[0]
            settings = settings_shown(ours)
        except (RuntimeError, LookupError) as error:
            raise Refused(f"its weights do not have {self.name}'s names and shapes") from error
        if odd := [name for name in theirs if not name.startswith(self.unused)]:
            raise Refused(
                "it has weights that do not exist in this program's Vision Transformer: "
                f"{', '.join(name[:80] for name in odd[:3])}{part_of(odd)}"
            )
        return ours, settings, list(theirs)

    def to_theirs(self, state: Mapping[str, Tensor]) -> Weights:
        """Return this program's weights under the names and in the shapes of the library."""
        table = self.table(min(len(state), MOST_BLOCKS))
        result: Weights = {}
        for key, value in state.items():
            result |= zip(table[key], value.chunk(len(table[key])), strict=True)
        return self.pack(result)

    def unsupported(self, config: ViTConfig) -> list[str]:
        """Return the settings in `config` that the library does not support.

        An example is ["model.qk_norm=True"]. The list is empty if the library supports all
        settings.
        """
        return [
            f"model.{name}={getattr(config, name)}"
            for name, values in self.supported.items()
            if getattr(config, name) not in values
        ]


def part_of(names: Collection[str]) -> str:
    """Return which part of another model has weights with these names, if it is known, or ""."""
    parts = (part for piece, part in OTHER_PARTS.items() if any(piece in name for name in names))
    return next((f"; not supported: {part}" for part in parts), "")


def settings_shown(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the `model` settings that follow from the names and shapes of the weights.

    Raise LookupError if a weight that shows a setting is missing or has too few dimensions.
    """
    patches = state["patch_embed.proj.weight"]
    hidden = state["blocks.0.mlp.fc1.weight"].shape[0]
    if 2 * state["blocks.0.mlp.fc2.weight"].shape[-1] == hidden:
        raise Refused("it has a SwiGLU MLP whose gate and value halves are swapped: not supported")
    head = "token_mlp" if "pre_head.0.weight" in state else "token"
    pooled = "gap_norm" if "fc_norm.weight" in state else "gap"
    return {
        "patch_size": patches.shape[3],
        "embed_dim": patches.shape[0],
        "depth": sum(key.endswith(".attn.qkv.weight") for key in state),
        "mlp_dim": hidden,
        "stem": "normed_patches" if "patch_embed.norm_in.weight" in state else "patches",
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "layer_scale": LAYER_SCALE if "blocks.0.ls1.gamma" in state else None,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "proj_bias": "blocks.0.attn.proj.bias" in state,
        "mlp_bias": "blocks.0.mlp.fc1.bias" in state,
        "positions": "learned" if "pos_embed.0.weight" in state else "none",
        "registers": state["reg_token"].shape[1] if "reg_token" in state else 0,
        "head": head if "cls_token" in state else pooled,
    }
