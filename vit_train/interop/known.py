"""The layouts of torchvision and vit-pytorch, and the choice of a layout."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit_train.interop.huggingface import HUGGING_FACE, HUGGING_FACE_MODULES
from vit_train.interop.layout import PLAIN, Layout, Misfit, State
from vit_train.interop.timm import TIMM

LAYER = "encoder.layers.encoder_layer_{n}"
TORCHVISION = Layout(
    name="torchvision",
    names={
        "cls_token": "class_token",
        "pos_embed.0.weight": "encoder.pos_embedding",
        "patch_embed.proj.": "conv_proj.",
        "blocks.{n}.norm1.": f"{LAYER}.ln_1.",
        "blocks.{n}.attn.qkv.": f"{LAYER}.self_attention.in_proj_",
        "blocks.{n}.attn.proj.": f"{LAYER}.self_attention.out_proj.",
        "blocks.{n}.norm2.": f"{LAYER}.ln_2.",
        "blocks.{n}.mlp.fc1.": f"{LAYER}.mlp.0.",
        "blocks.{n}.mlp.fc2.": f"{LAYER}.mlp.3.",
        "norm.": "encoder.ln.",
        "pre_head.0.": "heads.pre_logits.",
        "head.": "heads.head.",
    },
    marks=("conv_proj.weight", "encoder.layers.encoder_layer_0.ln_1.weight"),
    holds={
        **PLAIN,
        "head": ("token", "token_mlp"),
        "activation": ("gelu",),
        "qk_norm": (False,),
        "layer_scale": (None,),
        "qkv_bias": (True,),
        "proj_bias": (True,),
    },
    norm_eps=1e-6,
)


EMBED = "to_patch_embedding"
PATCHES, NORM_IN = f"{EMBED}.2.weight", f"{EMBED}.1."
ATTENTION, MLP = "transformer.layers.{n}.0", "transformer.layers.{n}.1.net"
COLORS = 3  # of all images


def channels_first(vectors: Tensor) -> Tensor:
    """Turn flattened patches, channels last, into images: (…,P²·C) → (…,C,P,P)."""
    side = math.isqrt(vectors.shape[-1] // COLORS)
    cut: Tensor = vectors.unflatten(-1, (side, side, COLORS))
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


LAYOUTS: tuple[Layout, ...] = (TIMM, TORCHVISION, HUGGING_FACE, HUGGING_FACE_MODULES, VIT_PYTORCH)
# Under what training programs keep a state dict, the averaged weights first, as timm does.
WRAPPERS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model")
# What torch's own wrappers put before every name.
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")


def unwrapped(content: Any) -> dict[str, Tensor]:
    """Return the state dict in a file's content, without what wraps it.

    Raise Misfit if there is none.
    """
    while isinstance(content, Mapping):
        inner = [content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner:
            break
        content = inner[0]
    if not isinstance(content, Mapping):
        raise Misfit("it holds no state dict")
    state = {str(key): each for key, each in content.items() if isinstance(each, Tensor)}
    while state and (shared := [p for p in PREFIXES if all(k.startswith(p) for k in state)]):
        state = {key.removeprefix(shared[0]): value for key, value in state.items()}
    if not state:
        keys = ", ".join(str(key)[:40] for key in list(content)[:5])
        raise Misfit(f"it holds no weights (but {keys or 'nothing'})")
    return state


def layout_of(state: Mapping[str, Tensor]) -> Layout:
    """Return the layout of a state dict; raise Misfit if it is none that is known."""
    for layout in LAYOUTS:
        if layout.recognizes(state):
            return layout
    libraries = dict.fromkeys(layout.name for layout in LAYOUTS)
    keys = ", ".join(key[:40] for key in list(state)[:3])
    raise Misfit(f"its weights ({keys}, …) are in no layout that is known: {', '.join(libraries)}")
