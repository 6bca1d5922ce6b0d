"""Conversion of weights between this program's names and those of other libraries.

The libraries are timm, torchvision, Hugging Face and vit-pytorch.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from vit_train.base.reading import Refused
from vit_train.config.model import MOST_BLOCKS, Choices, ViTConfig
from vit_train.data.dataset import CHANNELS
from vit_train.interop.config_files import (
    CLIP_EPS,
    EPS,
    Files,
    ModelFacts,
    hf_facts,
    hf_files,
    timm_facts,
    timm_files,
)
from vit_train.model.positions import Weights

# The initial factors of LayerScale, if none are loaded.
LAYER_SCALE = 1e-5

SWIGLU = "a SwiGLU MLP as in DINOv2's giant model"
# Parts of other models, by pieces of the names of their weights.
OTHER_PARTS = {
    ".gamma_1": "LayerScale or rotary positions as in BEiT, EVA and DINOv3",
    ".mlp.up_proj.": "the rotary positions of DINOv3",
    ".mlp.weights_in.": SWIGLU,
}


@dataclass(frozen=True)
class Layout:
    """A library's names and shapes of weights, and the settings that the library supports."""

    # The library's name, as in "timm's layout".
    name: str
    # Maps this program's names to the library's. If query, key and value are separate layers there,
    # their three names are separated by spaces. {n} stands for a block's number; `weight` or `bias`
    # is appended to names that end with "." or "_".
    names: dict[str, str]
    # The values of settings that the library supports; all other settings can have any value. An
    # export must have one of these values. If there is only one, an import takes it for granted.
    supported: Choices
    # LayerNorm's eps, unless a config sets it.
    norm_eps: float
    # Prefixes of the names of weights that are not needed.
    unused: tuple[str, ...] = ()
    # Read facts about a model from the library's config files, and write these files from a model's
    # config and the classes, mean, std and image_shape of its images.
    facts: Callable[[Files], ModelFacts] = lambda files: ModelFacts()
    files: Callable[[ViTConfig, Mapping[str, Any]], Files] = lambda config, about: {}
    # Convert the library's tensors to those in the table and back, if more than the names differ.
    unpack: Callable[[Weights], Weights] = dict
    pack: Callable[[Weights], Weights] = dict

    def table(self, depth: int) -> dict[str, list[str]]:
        """Map each of this program's names, for `depth` blocks, to one or three of the library."""
        found = {}
        for ours, theirs in self.names.items():
            kinds = ("weight", "bias") if theirs[-1] in "._" else ("",)
            blocks = range(depth if "{n}" in ours else 1)
            for kind, block in product(kinds, map(str, blocks)):
                found[ours.replace("{n}", block) + kind] = [
                    name.replace("{n}", block) + kind for name in theirs.split()
                ]
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
            raise Refused(
                f"its weights do not have {self.name}'s names and shapes{part_of(state)}"
            ) from error
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


def part_of(names: Collection[str]) -> str:
    """Return a note on an unsupported part with such names of weights; "" if none is known."""
    notes = (
        f"; not supported: {part}"
        for piece, part in OTHER_PARTS.items()
        if any(piece in name for name in names)
    )
    return next(notes, "")


def settings_shown(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the `model` settings that follow from the names and shapes of the weights.

    Raise LookupError if a weight that shows a setting is missing or has too few dimensions.
    """
    patches = state["patch_embed.proj.weight"]
    hidden = state["blocks.0.mlp.fc1.weight"].shape[0]
    if 2 * state["blocks.0.mlp.fc2.weight"].shape[-1] == hidden:
        raise Refused(f"not supported: {SWIGLU}")
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


# Settings that most libraries fix, with their values there.
PLAIN: Choices = {
    "pre_norm": (True,),
    "final_norm": (True,),
    "stem": ("patches",),
    "patch_overlap": (0,),
    "attention": ("softmax",),
    "positions": ("learned",),
    "positions_at": ("stem",),
    "mlp_bias": (True,),
    "proj_bias": (True,),
    "activation": ("gelu",),
    "head": ("token",),
}


# timm's VisionTransformer, and the files of DeiT and MAE. `vit_train.model.vit` has timm's names;
# only the positions are a tensor there but a module here.

# The names that this program and timm share.
TIMM_NAMES = (
    "cls_token",
    "reg_token",
    "patch_embed.proj.",
    "blocks.{n}.norm1.",
    "blocks.{n}.attn.qkv.",
    "blocks.{n}.attn.proj.",
    "blocks.{n}.norm2.",
    "blocks.{n}.mlp.fc1.",
    "blocks.{n}.mlp.fc2.",
    "blocks.{n}.attn.q_norm.",
    "blocks.{n}.attn.k_norm.",
    "blocks.{n}.ls1.gamma",
    "blocks.{n}.ls2.gamma",
    "norm.",
    "fc_norm.",
    "head.",
)


def unpack_timm(state: Weights) -> Weights:
    """Convert timm's positions: the class token always gets one, and registers get none.

    A class token without a position, as in DeiT-III and FlexiViT, gets zeros. The positions of
    registers are added to the registers. The number of patches is a square, so the number of
    positions tells which tokens have positions.
    """
    positions = state.get("pos_embed", torch.empty(1, 0, 0))
    count = positions.shape[1]
    first = int("cls_token" in state)
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    all_have = registers > 0 and is_square(count - first - registers)
    if count > 1 and is_square(count) and not all_have:  # only patches have positions
        zeros = positions.new_zeros(1, first, positions.shape[2])
        return state | {"pos_embed": torch.cat((zeros, positions), 1)}
    if not registers or not count:
        return state
    end = first + registers
    rest = torch.cat((positions[:, :first], positions[:, end:]), 1)
    return state | {"reg_token": state["reg_token"] + positions[:, first:end], "pos_embed": rest}


def is_square(count: int) -> bool:
    return count > 0 and math.isqrt(count) ** 2 == count


def pack_timm(state: Weights) -> Weights:
    """Give registers positions of zeros, as timm expects."""
    if "reg_token" not in state or "pos_embed" not in state:
        return state
    first = int("cls_token" in state)
    positions = state["pos_embed"]
    zeros = torch.zeros_like(state["reg_token"])
    table = torch.cat((positions[:, :first], zeros, positions[:, first:]), 1)
    return state | {"pos_embed": table}


TIMM = Layout(
    name="timm",
    names={"pos_embed.0.weight": "pos_embed", **{name: name for name in TIMM_NAMES}},
    supported={
        **PLAIN,
        "positions": ("learned", "none"),
        "activation": ("gelu", "gelu_tanh"),
        "head": ("token", "gap"),
        "norm_eps": (EPS, CLIP_EPS),
    },
    norm_eps=EPS,
    facts=timm_facts,
    files=timm_files,
    unused=("mask_token", "decoder", "attn_pool."),
    unpack=unpack_timm,
    pack=pack_timm,
)


def unpack_torchvision(state: Weights) -> Weights:
    """Give the MLPs in torchvision's published files the names that they have in its models."""
    return {
        key.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3."): weight
        for key, weight in state.items()
    }


TORCHVISION = Layout(
    name="torchvision",
    names={
        "cls_token": "class_token",
        "pos_embed.0.weight": "encoder.pos_embedding",
        "patch_embed.proj.": "conv_proj.",
        "blocks.{n}.norm1.": "encoder.layers.encoder_layer_{n}.ln_1.",
        "blocks.{n}.attn.qkv.": "encoder.layers.encoder_layer_{n}.self_attention.in_proj_",
        "blocks.{n}.attn.proj.": "encoder.layers.encoder_layer_{n}.self_attention.out_proj.",
        "blocks.{n}.norm2.": "encoder.layers.encoder_layer_{n}.ln_2.",
        "blocks.{n}.mlp.fc1.": "encoder.layers.encoder_layer_{n}.mlp.0.",
        "blocks.{n}.mlp.fc2.": "encoder.layers.encoder_layer_{n}.mlp.3.",
        "norm.": "encoder.ln.",
        "pre_head.0.": "heads.pre_logits.",
        "head.": "heads.head.",
    },
    supported=PLAIN,
    norm_eps=1e-6,
    unpack=unpack_torchvision,
)


# Hugging Face's ViTForImageClassification and ViTModel, and DeiT without its distillation token.


HUGGING_FACE = Layout(
    name="Hugging Face",
    names={
        "cls_token": "embeddings.cls_token",
        "pos_embed.0.weight": "embeddings.position_embeddings",
        "patch_embed.proj.": "embeddings.patch_embeddings.projection.",
        "blocks.{n}.norm1.": "encoder.layer.{n}.layernorm_before.",
        "blocks.{n}.attn.qkv.": "encoder.layer.{n}.attention.attention.query. "
        "encoder.layer.{n}.attention.attention.key. encoder.layer.{n}.attention.attention.value.",
        "blocks.{n}.attn.proj.": "encoder.layer.{n}.attention.output.dense.",
        "blocks.{n}.norm2.": "encoder.layer.{n}.layernorm_after.",
        "blocks.{n}.mlp.fc1.": "encoder.layer.{n}.intermediate.dense.",
        "blocks.{n}.mlp.fc2.": "encoder.layer.{n}.output.dense.",
        "norm.": "layernorm.",
        "head.": "classifier.",
    },
    supported={
        **PLAIN,
        "activation": ("gelu", "gelu_tanh"),
        "registers": (0,),
        "qk_norm": (False,),
        "layer_scale": (None,),
    },
    norm_eps=1e-12,
    facts=hf_facts,
    files=hf_files,
    unused=("pooler.", "decoder.", "embeddings.mask_token"),
    pack=lambda state: {
        key if key.startswith("classifier.") else f"vit.{key}": value
        for key, value in state.items()
    },
)
# Saved files and the modules of transformers 5 use different names; a state dict may have either.
HUGGING_FACE_MODULES = replace(
    HUGGING_FACE,
    names=HUGGING_FACE.names
    | {
        "blocks.{n}.norm1.": "layers.{n}.layernorm_before.",
        "blocks.{n}.attn.qkv.": "layers.{n}.attention.q_proj. layers.{n}.attention.k_proj. "
        "layers.{n}.attention.v_proj.",
        "blocks.{n}.attn.proj.": "layers.{n}.attention.o_proj.",
        "blocks.{n}.norm2.": "layers.{n}.layernorm_after.",
        "blocks.{n}.mlp.fc1.": "layers.{n}.mlp.fc1.",
        "blocks.{n}.mlp.fc2.": "layers.{n}.mlp.fc2.",
    },
)


def without_wide_head(state: Weights) -> Weights:
    """Remove a classifier that reads more than the class token, as those of DINOv2 do."""
    token, head = (state.get(key) for key in ("embeddings.cls_token", "classifier.weight"))
    if token is None or head is None or token.shape[-1:] == head.shape[-1:]:
        return state
    return {key: value for key, value in state.items() if not key.startswith("classifier.")}


# Hugging Face's Dinov2Model and Dinov2WithRegistersModel, as they are saved.
DINOV2 = replace(
    HUGGING_FACE,
    names=HUGGING_FACE.names
    | {
        "reg_token": "embeddings.register_tokens",
        "blocks.{n}.norm1.": "encoder.layer.{n}.norm1.",
        "blocks.{n}.norm2.": "encoder.layer.{n}.norm2.",
        "blocks.{n}.ls1.gamma": "encoder.layer.{n}.layer_scale1.lambda1",
        "blocks.{n}.ls2.gamma": "encoder.layer.{n}.layer_scale2.lambda1",
        "blocks.{n}.mlp.fc1.": "encoder.layer.{n}.mlp.fc1.",
        "blocks.{n}.mlp.fc2.": "encoder.layer.{n}.mlp.fc2.",
    },
    supported=PLAIN,
    norm_eps=1e-6,
    unpack=without_wide_head,
)


PATCHES = "to_patch_embedding.2.weight"
NORM_IN = "to_patch_embedding.1."


def channels_first(vectors: Tensor) -> Tensor:
    """Turn flattened patches with the channels last into images: (…,P²·C) → (…,C,P,P)."""
    side = math.isqrt(vectors.shape[-1] // CHANNELS)
    return vectors.unflatten(-1, (side, side, CHANNELS)).movedim(-1, -3)  # type: ignore[no-any-return]


def unpack_vit_pytorch(state: Weights) -> Weights:
    result = dict(state)
    for key, value in state.items():
        if key in ("cls_token", "pos_embedding"):
            result[key] = value.reshape(1, -1, value.shape[-1])
        elif key == PATCHES:
            result[key] = channels_first(value)
        elif key.startswith(NORM_IN):
            result[key] = channels_first(value).flatten()
    # With pool="mean", its class token is empty.
    return {key: value for key, value in result.items() if value.numel()}


VIT_PYTORCH = Layout(
    name="vit-pytorch",
    names={
        "cls_token": "cls_token",
        "pos_embed.0.weight": "pos_embedding",
        "patch_embed.norm_in.": NORM_IN,
        "patch_embed.proj.": "to_patch_embedding.2.",
        "patch_embed.norm_out.": "to_patch_embedding.3.",
        "blocks.{n}.norm1.": "transformer.layers.{n}.0.norm.",
        "blocks.{n}.attn.qkv.": "transformer.layers.{n}.0.to_qkv.",
        "blocks.{n}.attn.proj.": "transformer.layers.{n}.0.to_out.0.",
        "blocks.{n}.norm2.": "transformer.layers.{n}.1.net.0.",
        "blocks.{n}.mlp.fc1.": "transformer.layers.{n}.1.net.1.",
        "blocks.{n}.mlp.fc2.": "transformer.layers.{n}.1.net.4.",
        "norm.": "transformer.norm.",
        "head.": "mlp_head.",
    },
    supported={**PLAIN, "head": ("token", "gap"), "norm_eps": (1e-5,)},
    norm_eps=1e-5,
    unpack=unpack_vit_pytorch,
)


LAYOUTS = (TIMM, TORCHVISION, HUGGING_FACE, HUGGING_FACE_MODULES, DINOV2, VIT_PYTORCH)


def layout_of(state: Mapping[str, Tensor]) -> Layout:
    """Return the layout that fits the names in a state dict; raise Refused if no layout fits."""
    if "pos_embed.0.weight" in state:
        raise Refused(
            "it has weights of vit_train without their settings: name the run or its checkpoint, "
            "or a file of vit-export format=safetensors"
        )
    for layout in LAYOUTS:
        table = layout.table(1)  # recognized by two weights that every Vision Transformer has
        if state.keys() >= {*table["patch_embed.proj.weight"], *table["blocks.0.norm1.weight"]}:
            return layout
    raise Refused(
        f"its weights ({', '.join(key[:40] for key in list(state)[:3])}, …) are not those of a "
        "Vision Transformer of timm, torchvision, Hugging Face (vit, deit, vit_mae, vit_msn or "
        f"dinov2) or vit-pytorch{part_of(state)}"
    )
