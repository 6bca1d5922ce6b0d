"""vit-pytorch's ViT (lucidrains): patches with two LayerNorms, mapped by a linear layer.

Its tables have no axis of images, and a patch is flattened with the channels last.
"""

import math

from torch import Tensor

from vit_train.layouts.layout import PLAIN, Layout, State

EMBED = "to_patch_embedding"
PATCHES, NORM_IN = f"{EMBED}.2.weight", f"{EMBED}.1."
ATTENTION, MLP = "transformer.layers.{n}.0", "transformer.layers.{n}.1.net"
COLORS = 3


def channels_first(vectors: Tensor) -> Tensor:
    """Turn flattened patches, channels last, into images: (…,P²·C) → (…,C,P,P)."""
    length = vectors.shape[-1]
    side = math.isqrt(length // COLORS)
    colors = COLORS if COLORS * side**2 == length else 1
    side = math.isqrt(length // colors)
    cut: Tensor = vectors.unflatten(-1, (side, side, colors))
    return cut.movedim(-1, -3)


def channels_last(patches: Tensor) -> Tensor:
    """Flatten patches with the channels last: (…,C,P,P) → (…,P²·C)."""
    return patches.movedim(-3, -1).flatten(-3)


def unpack(state: State) -> State:
    result = dict(state)
    for key in ("cls_token", "pos_embedding"):
        if key in result:
            result[key] = result[key].reshape(1, -1, result[key].shape[-1])
    if result["cls_token"].shape[1] == 0:  # pool="mean"
        del result["cls_token"]
    for key in result:
        if key == PATCHES:
            result[key] = channels_first(result[key])
        elif key.startswith(NORM_IN):
            result[key] = channels_first(result[key]).flatten()
    return result


def pack(state: State) -> State:
    result = dict(state)
    side = state[PATCHES].shape[-1]
    for key in result:
        if key == PATCHES:
            result[key] = channels_last(result[key])
        elif key.startswith(NORM_IN):
            result[key] = channels_last(result[key].unflatten(0, (-1, side, side)))
    result["pos_embedding"] = result["pos_embedding"][0]
    width = result["pos_embedding"].shape[1]
    token = result.get("cls_token", result["pos_embedding"].new_zeros(1, 0, width))
    result["cls_token"] = token[0]
    return result


VIT_PYTORCH = Layout(
    name="vit-pytorch",
    names={
        "cls_token": "cls_token",
        "pos_embed.0.weight": "pos_embedding",
        "patch_embed.norm_in.": NORM_IN,
        "patch_embed.proj.": f"{EMBED}.2.",
        "patch_embed.norm_out.": f"{EMBED}.3.",
        "blocks.{n}.norm1.": f"{ATTENTION}.norm.",
        "blocks.{n}.attn.qkv.": f"{ATTENTION}.to_qkv.",
        "blocks.{n}.attn.proj.": f"{ATTENTION}.to_out.0.",
        "blocks.{n}.norm2.": f"{MLP}.0.",
        "blocks.{n}.mlp.fc1.": f"{MLP}.1.",
        "blocks.{n}.mlp.fc2.": f"{MLP}.4.",
        "norm.": "transformer.norm.",
        "head.": "mlp_head.",
    },
    marks=("cls_token", PATCHES),
    holds={
        **PLAIN,
        "stem": ("normed_patches",),
        "head": ("token", "gap"),
        "activation": ("gelu",),
        "qk_norm": (False,),
        "layer_scale": (None,),
        "qkv_bias": (False,),
        "proj_bias": (True,),
        "norm_eps": (1e-5,),
    },
    norm_eps=1e-5,
    unpack=unpack,
    pack=pack,
)
