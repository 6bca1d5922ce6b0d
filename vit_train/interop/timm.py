"""timm's VisionTransformer, and what DeiT and MAE publish: nearly the names of this program.

`vit_train.model.vit` took timm's names; only the positions are a tensor there, a module here.
"""

import math
from typing import Any

import torch

from vit_train.interop.layout import (
    BLOCK,
    PLAIN,
    Facts,
    Files,
    Layout,
    State,
    Subject,
    our_activation,
)

# Heads of the architectures whose name says their size, as in vit_small_patch16_224.
HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}
# Its names of activations, and this program's.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}
# Its names of what is classified, and this program's.
POOLING = {"token": "token", "avg": "gap"}
# LayerNorm's eps: of all models, and of those that follow CLIP.
EPS, CLIP_EPS = 1e-6, 1e-5


def facts(files: Files) -> Facts:
    """Return the settings in config.json, as in timm's models on the Hugging Face Hub."""
    config = files.get("config.json", {})
    given, architecture = config.get("model_args") or {}, str(config.get("architecture", ""))
    settings: dict[str, Any] = {}
    if config:
        activation = given.get("act_layer", "quick_gelu" if "quickgelu" in architecture else "gelu")
        settings["activation"] = our_activation(activation, ACTIVATIONS)
    if architecture:
        settings["norm_eps"] = CLIP_EPS if "_clip_" in architecture else EPS
        sizes = {size: count for size, count in HEADS.items() if f"_{size}_" in architecture}
        for count in (*sizes.values(), given.get("num_heads")):
            if count is not None:
                settings["num_heads"] = count
    pooling = given.get("global_pool") or config.get("global_pool")
    if pooling in POOLING:
        settings["head"] = POOLING[pooling]
    images = config.get("pretrained_cfg") or config
    names = config.get("label_names")
    return Facts(
        settings=settings,
        classes=[str(name) for name in names] if isinstance(names, list) else None,
        mean=images.get("mean"),
        std=images.get("std"),
    )


def files(subject: Subject) -> Files:
    """Return the config.json with which timm.create_model("local-dir:…") builds a model."""
    config, (channels, size, _) = subject.config, subject.image_shape
    # The architecture's name decides only LayerNorm's eps; all else is in model_args.
    clip = "clip_" if config.eps == CLIP_EPS else ""
    model = {
        "img_size": size,
        "patch_size": config.patch_size,
        "in_chans": channels,
        "num_classes": len(subject.classes),
        "embed_dim": config.embed_dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": ratio(config.hidden_dim, config.embed_dim),
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
        "class_token": config.has_class_token,
        "global_pool": "token" if config.has_class_token else "avg",
        "fc_norm": False,
        "pre_norm": False,
        "act_layer": config.activation,
        "pos_embed": "none" if config.positions == "none" else "learn",
    }
    described = {
        "architecture": f"vit_base_patch16_{clip}224",
        "num_classes": len(subject.classes),
        "num_features": config.embed_dim,
        "global_pool": model["global_pool"],
        "label_names": subject.classes,
        "model_args": model,
        "pretrained_cfg": preprocessing(subject),
    }
    return {"config.json": described}


def preprocessing(subject: Subject) -> dict[str, Any]:
    return {
        "input_size": list(subject.image_shape),
        "fixed_input_size": True,
        "mean": subject.mean,
        "std": subject.std,
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "custom_load": False,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


def ratio(hidden: int, width: int) -> float:
    """Return the mlp_ratio of which timm makes this hidden width, int(width · ratio)."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width


def unpack(state: State) -> State:
    """Give the class token a position of zeros if it has none, as in DeiT-III and FlexiViT."""
    positions = state.get("pos_embed")
    if positions is None or "cls_token" not in state:
        return state
    count = positions.shape[1]
    if count < 2 or math.isqrt(count) ** 2 != count:
        return state
    return state | {
        "pos_embed": torch.cat((positions.new_zeros(1, 1, positions.shape[2]), positions), 1)
    }


TIMM = Layout(
    name="timm",
    names={
        "cls_token": "cls_token",
        "pos_embed.0.weight": "pos_embed",
        "patch_embed.proj.": "patch_embed.proj.",
        **{f"blocks.{{n}}.{part}.": f"blocks.{{n}}.{part}." for part in BLOCK},
        **{f"blocks.{{n}}.attn.{x}_norm.": f"blocks.{{n}}.attn.{x}_norm." for x in "qk"},
        **{f"blocks.{{n}}.ls{k}.gamma": f"blocks.{{n}}.ls{k}.gamma" for k in "12"},
        "norm.": "norm.",
        "head.": "head.",
    },
    marks=("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
    holds={
        **PLAIN,
        "positions": ("learned", "none"),
        "activation": tuple(ACTIVATIONS.values()),
        "head": ("token", "gap"),
        "proj_bias": (True,),
        "norm_eps": (EPS, CLIP_EPS),
    },
    norm_eps=EPS,
    facts=facts,
    files=files,
    unused={"mask_token": "the token of hidden patches", "decoder": "the decoder"},
    unpack=unpack,
)
