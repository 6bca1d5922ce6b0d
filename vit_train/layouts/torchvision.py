"""torchvision's VisionTransformer: vit_b_16 and its relatives."""

from vit_train.layouts.layout import PLAIN, Layout

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
