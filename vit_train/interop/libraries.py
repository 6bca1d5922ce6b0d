"""timm, torchvision, Hugging Face and vit-pytorch, one after the other.

Of each the layout of its weights and, if it has any, its config files: facts about a model.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vit_train.base.reading import Refused
from vit_train.data.dataset import Statistics
from vit_train.interop.layout import Facts, Files, Layout, State
from vit_train.model.config import ViTConfig
from vit_train.runs.trained import statistics_of

# Names of activations and of their classes in the libraries, with this program's.
ACTIVATIONS = {
    **{"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"},
    **{"gelu_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"},
    **{"GELU": "gelu", "GELUTanh": "gelu_tanh"},
}


def our_activation(theirs: object) -> str:
    if str(theirs) not in ACTIVATIONS:
        raise Refused(f"its activation is {str(theirs)[:40]}, not one of: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[str(theirs)]


def known_statistics(mean: Any, std: Any) -> Statistics | None:
    return None if mean is None or std is None else statistics_of(mean, std)


# Settings that are fixed in all libraries, with their values there.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "pre_norm": (True,),
    "norm_affine": (True,),
    "final_norm": (True,),
    "stem": ("patches",),
    "patch_overlap": (0,),
    "positions": ("learned",),
    "positions_at": ("stem",),
    "mlp_bias": (True,),
    "proj_bias": (True,),
    "activation": ("gelu",),
    "head": ("token",),
}


# timm's VisionTransformer, and the files of DeiT and MAE. `vit_train.model.vit` took timm's names;
# only the positions are a tensor there, a module here.

# Attention heads by the size in an architecture's name, such as vit_small_patch16_224.
HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}
# timm's names of the pooling before the head, with this program's names of the head.
POOLING = {"token": "token", "avg": "gap"}
# LayerNorm's eps in timm's models, and in those that follow CLIP.
EPS, CLIP_EPS = 1e-6, 1e-5


def timm_facts(files: Files) -> Facts:
    """Return the facts in config.json, as in timm's models on the Hugging Face Hub."""
    config = files["config.json"]
    if not config:
        return Facts()
    given, architecture = config.get("model_args") or {}, str(config.get("architecture", ""))
    usual = "quick_gelu" if "quickgelu" in architecture else "gelu"
    settings = {
        "activation": our_activation(given.get("act_layer", usual)),
        "norm_eps": CLIP_EPS if "_clip_" in architecture else EPS,
    }
    by_size = next((heads for size, heads in HEADS.items() if f"_{size}_" in architecture), None)
    if heads := given.get("num_heads") or by_size:
        settings["num_heads"] = heads
    if pooling := given.get("global_pool") or config.get("global_pool"):
        settings["head"] = POOLING.get(pooling, "another")
    images = config.get("pretrained_cfg") or config
    names = config.get("label_names")
    classes = list(map(str, names)) if isinstance(names, list) else None
    return Facts(settings, classes, known_statistics(images.get("mean"), images.get("std")))


def built_facts(model: nn.Module) -> Facts:
    """Return the facts about a model that timm has built."""
    block: Any = model.get_submodule("blocks.0")
    images = vars(model).get("pretrained_cfg", {})
    settings = {
        "num_heads": block.attn.num_heads,
        "norm_eps": block.norm1.eps,
        "activation": our_activation(type(block.mlp.act).__name__),
        "head": POOLING.get(str(vars(model).get("global_pool")), "another"),
    }
    statistics = known_statistics(images.get("mean"), images.get("std"))
    return Facts(settings, images.get("label_names"), statistics)


def timm_files(config: ViTConfig, about: Mapping[str, Any]) -> Files:
    """Return the config.json with which timm.create_model("local-dir:…") builds a model."""
    channels, size, _ = about["image_shape"]
    # The architecture's name decides only LayerNorm's eps; all else is in model_args.
    clip = "clip_" if config.eps == CLIP_EPS else ""
    pooling = "token" if config.has_class_token else "avg"
    model = {
        "img_size": size,
        "patch_size": config.patch_size,
        "in_chans": channels,
        "num_classes": len(about["classes"]),
        "embed_dim": config.embed_dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        # timm rounds width · ratio down.
        "mlp_ratio": math.nextafter(config.hidden_dim / config.embed_dim, math.inf),
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
        "class_token": config.has_class_token,
        "global_pool": pooling,
        "fc_norm": False,
        "pre_norm": False,
        "act_layer": config.activation,
        "pos_embed": "none" if config.positions == "none" else "learn",
    }
    images = {
        "input_size": about["image_shape"],
        "fixed_input_size": True,
        "mean": about["mean"],
        "std": about["std"],
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    return {
        "config.json": {
            "architecture": f"vit_base_patch16_{clip}224",
            "num_classes": len(about["classes"]),
            "num_features": config.embed_dim,
            "global_pool": pooling,
            "label_names": about["classes"],
            "model_args": model,
            "pretrained_cfg": images,
        }
    }


# The layers of every block that have weights.
BLOCK = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")


def with_first_position(state: State) -> State:
    """Give the class token a position of zeros if it has none, as in DeiT-III and FlexiViT."""
    positions = state.get("pos_embed", torch.empty(1, 0, 0))
    count = positions.shape[1]
    if "cls_token" not in state or count < 2 or math.isqrt(count) ** 2 != count:
        return state
    zeros = positions.new_zeros(1, 1, positions.shape[2])
    return state | {"pos_embed": torch.cat((zeros, positions), 1)}


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
    holds={
        **PLAIN,
        "positions": ("learned", "none"),
        "activation": ("gelu", "gelu_tanh"),
        "head": ("token", "gap"),
        "norm_eps": (EPS, CLIP_EPS),
    },
    norm_eps=EPS,
    facts=timm_facts,
    files=timm_files,
    unused=("mask_token", "decoder"),
    unpack=with_first_position,
)


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
    holds={
        **PLAIN,
        "head": ("token", "token_mlp"),
        "qk_norm": (False,),
        "layer_scale": (None,),
        "qkv_bias": (True,),
    },
    norm_eps=1e-6,
)


# Hugging Face's ViTForImageClassification and ViTModel, and DeiT without its distillation token.

# Pillow's number of its bilinear filter.
BILINEAR = 2


def hf_facts(files: Files) -> Facts:
    """Return the facts in config.json and preprocessor_config.json."""
    config, images = files.get("config.json", {}), files.get("preprocessor_config.json", {})
    given = {"num_heads": "num_attention_heads", "norm_eps": "layer_norm_eps"}
    settings = {ours: config[theirs] for ours, theirs in given.items() if theirs in config}
    if config:
        settings["activation"] = our_activation(config.get("hidden_act", "gelu"))
    labels = config.get("id2label") or {}
    classes = [str(labels.get(str(number), "")) for number in range(len(labels))]
    named = classes and all(classes) and not classes[0].startswith("LABEL_")
    mean, std = images.get("image_mean"), images.get("image_std")
    if images.get("do_normalize") is False and mean is not None:
        mean, std = [0.0] * len(mean), [1.0] * len(mean)
    return Facts(settings, classes if named else None, known_statistics(mean, std))


def hf_files(config: ViTConfig, about: Mapping[str, Any]) -> Files:
    """Return the two files with which from_pretrained builds a model and its preprocessing."""
    channels, size, _ = about["image_shape"]
    model = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.hidden_dim,
        "hidden_act": "gelu" if config.activation == "gelu" else "gelu_pytorch_tanh",
        "layer_norm_eps": config.eps,
        "qkv_bias": config.qkv_bias,
        "image_size": size,
        "patch_size": config.patch_size,
        "num_channels": channels,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(number): name for number, name in enumerate(about["classes"])},
        "label2id": {name: number for number, name in enumerate(about["classes"])},
        "torch_dtype": "float32",
    }
    # ViT's own processor does not crop: it would squeeze images that are not square.
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": BILINEAR,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": about["mean"],
        "image_std": about["std"],
    }
    return {"config.json": model, "preprocessor_config.json": images}


SAVED, MODULE = "encoder.layer.{n}", "layers.{n}"
HF_EMBEDDINGS = {
    "cls_token": "embeddings.cls_token",
    "pos_embed.0.weight": "embeddings.position_embeddings",
    "patch_embed.proj.": "embeddings.patch_embeddings.projection.",
}
HF_OUTER = {"norm.": "layernorm.", "head.": "classifier."}


def with_prefix(state: State) -> State:
    return {
        key if key.startswith("classifier.") else f"vit.{key}": value
        for key, value in state.items()
    }


HUGGING_FACE = Layout(
    name="Hugging Face",
    names={
        **HF_EMBEDDINGS,
        "blocks.{n}.norm1.": f"{SAVED}.layernorm_before.",
        "blocks.{n}.attn.qkv.": (
            f"{SAVED}.attention.attention.query.",
            f"{SAVED}.attention.attention.key.",
            f"{SAVED}.attention.attention.value.",
        ),
        "blocks.{n}.attn.proj.": f"{SAVED}.attention.output.dense.",
        "blocks.{n}.norm2.": f"{SAVED}.layernorm_after.",
        "blocks.{n}.mlp.fc1.": f"{SAVED}.intermediate.dense.",
        "blocks.{n}.mlp.fc2.": f"{SAVED}.output.dense.",
        **HF_OUTER,
    },
    holds={
        **PLAIN,
        "activation": ("gelu", "gelu_tanh"),
        "qk_norm": (False,),
        "layer_scale": (None,),
    },
    norm_eps=1e-12,
    facts=hf_facts,
    files=hf_files,
    unused=("pooler.", "decoder.", "embeddings.mask_token"),
    pack=with_prefix,
)
# Saved files use other names than the modules of transformers 5; a state dict may have either.
HUGGING_FACE_MODULES = replace(
    HUGGING_FACE,
    names={
        **HF_EMBEDDINGS,
        "blocks.{n}.norm1.": f"{MODULE}.layernorm_before.",
        "blocks.{n}.attn.qkv.": (
            f"{MODULE}.attention.q_proj.",
            f"{MODULE}.attention.k_proj.",
            f"{MODULE}.attention.v_proj.",
        ),
        "blocks.{n}.attn.proj.": f"{MODULE}.attention.o_proj.",
        "blocks.{n}.norm2.": f"{MODULE}.layernorm_after.",
        "blocks.{n}.mlp.fc1.": f"{MODULE}.mlp.fc1.",
        "blocks.{n}.mlp.fc2.": f"{MODULE}.mlp.fc2.",
        **HF_OUTER,
    },
)


EMBED = "to_patch_embedding"
PATCHES, NORM_IN = f"{EMBED}.2.weight", f"{EMBED}.1."
ATTENTION, MLP = "transformer.layers.{n}.0", "transformer.layers.{n}.1.net"
COLORS = 3  # of all images


def channels_first(vectors: Tensor) -> Tensor:
    """Turn flattened patches, channels last, into images: (…,P²·C) → (…,C,P,P)."""
    side = math.isqrt(vectors.shape[-1] // COLORS)
    return vectors.unflatten(-1, (side, side, COLORS)).movedim(-1, -3)  # type: ignore[no-any-return]


def channels_last(patches: Tensor) -> Tensor:
    """Flatten patches with the channels last: (…,C,P,P) → (…,P²·C)."""
    return patches.movedim(-3, -1).flatten(-3)


def unpack_vit_pytorch(state: State) -> State:
    result = dict(state)
    for key, value in state.items():
        if key in ("cls_token", "pos_embedding"):
            result[key] = value.reshape(1, -1, value.shape[-1])
        elif key == PATCHES:
            result[key] = channels_first(value)
        elif key.startswith(NORM_IN):
            result[key] = channels_first(value).flatten()
    # With pool="mean" it has an empty class token.
    return {key: value for key, value in result.items() if value.numel()}


def pack_vit_pytorch(state: State) -> State:
    result, side = dict(state), state[PATCHES].shape[-1]
    for key, value in state.items():
        if key == PATCHES:
            result[key] = channels_last(value)
        elif key.startswith(NORM_IN):
            result[key] = channels_last(value.unflatten(0, (-1, side, side)))
    positions = state["pos_embedding"]
    token = state.get("cls_token", positions[:, :0])
    return result | {"pos_embedding": positions[0], "cls_token": token[0]}


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
    holds={
        **PLAIN,
        "stem": ("normed_patches",),
        "head": ("token", "gap"),
        "qk_norm": (False,),
        "layer_scale": (None,),
        "qkv_bias": (False,),
        "norm_eps": (1e-5,),
    },
    norm_eps=1e-5,
    unpack=unpack_vit_pytorch,
    pack=pack_vit_pytorch,
)


LAYOUTS: tuple[Layout, ...] = (TIMM, TORCHVISION, HUGGING_FACE, HUGGING_FACE_MODULES, VIT_PYTORCH)


def layout_of(state: Mapping[str, Tensor]) -> Layout:
    """Return the layout of a state dict; raise Refused if it is unknown."""
    for layout in LAYOUTS:
        table = layout.table(1)  # with two weights that every Vision Transformer has
        if state.keys() >= {*table["patch_embed.proj.weight"], *table["blocks.0.norm1.weight"]}:
            return layout
    raise Refused(
        f"its weights ({', '.join(key[:40] for key in list(state)[:3])}, …) are not those of a "
        "Vision Transformer of timm, torchvision, Hugging Face (vit, deit, vit_mae or vit_msn) or "
        "vit-pytorch"
    )
