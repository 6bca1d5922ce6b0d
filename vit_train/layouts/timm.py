"""timm's VisionTransformer, and what DeiT and MAE publish: nearly the names of this program.

`vit_train.model.vit` took timm's names; only the positions are a tensor there, a module here.
"""

from typing import Any

from vit_train.layouts.layout import BLOCK, PLAIN, Facts, Files, Layout

# Heads of the architectures whose name says their size, as in vit_small_patch16_224.
HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}
# In the LayerNorms of all models, but of those that follow CLIP.
EPS, CLIP_EPS = 1e-6, 1e-5


def facts(files: Files) -> Facts:
    """Return what config.json says, as in timm's models on the Hugging Face Hub."""
    config = files.get("config.json", {})
    given, architecture = config.get("model_args") or {}, str(config.get("architecture", ""))
    settings: dict[str, Any] = {}
    if architecture:
        settings["norm_eps"] = CLIP_EPS if "_clip_" in architecture else EPS
        sizes = {size: count for size, count in HEADS.items() if f"_{size}_" in architecture}
        for count in (*sizes.values(), given.get("num_heads")):
            if count is not None:
                settings["num_heads"] = count
    if (given.get("global_pool") or config.get("global_pool")) == "avg":
        settings["head"] = "gap"
    images = config.get("pretrained_cfg") or config
    names = config.get("label_names")
    return Facts(
        settings=settings,
        classes=[str(name) for name in names] if isinstance(names, list) else None,
        mean=images.get("mean"),
        std=images.get("std"),
    )


TIMM = Layout(
    library="timm",
    names={
        "cls_token": "cls_token",
        "pos_embed.0.weight": "pos_embed",
        "patch_embed.proj.": "patch_embed.proj.",
        **{f"blocks.{{n}}.{part}.": f"blocks.{{n}}.{part}." for part in BLOCK},
        **{f"blocks.{{n}}.attn.{x}_norm.": f"blocks.{{n}}.attn.{x}_norm." for x in "qk"},
        "norm.": "norm.",
        "head.": "head.",
    },
    marks=("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
    holds={
        **PLAIN,
        "head": ("token", "gap"),
        "norm_eps": (EPS, CLIP_EPS),
    },
    norm_eps=EPS,
    facts=facts,
    unused={"mask_token": "the token of hidden patches", "decoder": "the decoder"},
)
