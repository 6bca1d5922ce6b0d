"""Read facts about models from the config files of timm and Hugging Face, and write such files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from vit_train.base.reading import Refused
from vit_train.config.model import ViTConfig
from vit_train.data.dataset import CHANNELS, Statistics, valid_statistics

# The contents of JSON files beside the weights, by file name.
Files = Mapping[str, Mapping[str, Any]]


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


# The libraries' names for activations and their classes, with this program's names.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
}


def our_activation(theirs: object) -> str:
    if theirs not in ACTIVATIONS:
        raise Refused(f"its activation is {theirs}, but must be one of: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[str(theirs)]


def known_statistics(images: Mapping[str, Any], mean: str, std: str) -> Statistics | None:
    """Return the statistics under these two keys, or None if one of the keys is missing."""
    is_known = None not in (images.get(mean), images.get(std))
    return valid_statistics(images[mean], images[std]) if is_known else None


# timm's names for the pooling before the head, with this program's names for the head.
POOLING = {"token": "token", "avg": "gap"}
# LayerNorm's eps in timm's models, and in models that follow CLIP.
EPS = 1e-6
CLIP_EPS = 1e-5


def timm_facts(files: Files) -> ModelFacts:
    """Return facts about a timm model from its config.json; no facts if the file is missing."""
    config = files["config.json"]
    if not config:
        return ModelFacts()
    given = config.get("model_args") or {}
    architecture = str(config.get("architecture", ""))
    require_pre_norm(architecture)
    settings: dict[str, Any] = {"norm_eps": CLIP_EPS if "_clip_" in architecture else EPS}
    # Some of SigLIP's architectures have gelu, others gelu_tanh.
    if "act_layer" in given or "siglip" not in architecture:
        usual = "quick_gelu" if "quickgelu" in architecture else "gelu"
        settings["activation"] = our_activation(given.get("act_layer", usual))
    if "num_heads" in given:
        settings["num_heads"] = given["num_heads"]
    if (pooling := given.get("global_pool", config.get("global_pool"))) is not None:
        settings["head"] = POOLING.get(pooling, "another")
    images = config.get("pretrained_cfg") or config
    names = config.get("label_names")
    classes = list(map(str, names)) if isinstance(names, list) else None
    return ModelFacts(settings, classes, known_statistics(images, "mean", "std"))


def require_pre_norm(architecture: str) -> None:
    """Raise Refused for timm's rpn models, whose weights have the same names as other models'."""
    if "_rpn_" in architecture:
        raise Refused("not supported: a LayerNorm after attention and MLP, as in timm's rpn models")


def built_facts(model: nn.Module) -> ModelFacts:
    """Return facts, such as the number of heads, about a model that timm has built."""
    block: Any = model.get_submodule("blocks.0")
    images = vars(model).get("pretrained_cfg", {})
    require_pre_norm(images.get("architecture", ""))
    settings = {
        "num_heads": block.attn.num_heads,
        "norm_eps": block.norm1.eps,
        "activation": our_activation(type(block.mlp.act).__name__),
        "head": POOLING.get(str(vars(model).get("global_pool")), "another"),
    }
    statistics = known_statistics(images, "mean", "std")
    return ModelFacts(settings, images.get("label_names"), statistics)


def timm_files(config: ViTConfig, about: Mapping[str, Any]) -> Files:
    """Return the config file that timm.create_model("local-dir:…") reads.

    The result maps the file's name, config.json, to the file's content. `about` has the classes,
    mean, std and image_shape of the model's images.
    """
    size = require_preprocessing(about)
    # The architecture's name determines only LayerNorm's eps; everything else is in model_args.
    clip = "clip_" if config.eps == CLIP_EPS else ""
    pooling = "token" if config.has_class_token else "avg"
    model = {
        "img_size": size,
        "patch_size": config.patch_size,
        "in_chans": CHANNELS,
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
        "reg_tokens": config.registers,
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
        "crop_mode": CROP_MODES[about["fit"]],
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


# timm's name for each data.fit.
CROP_MODES = {"crop": "center", "stretch": "squash"}


def require_preprocessing(about: Mapping[str, Any]) -> int:
    """Return the images' side; raise ValueError unless the libraries can make them square."""
    _, height, width = about["image_shape"]
    if height != width or about["fit"] not in CROP_MODES:
        raise ValueError(
            "timm and Hugging Face support neither images that are not square nor data.fit=pad: "
            "export the model with format=onnx, torch or safetensors"
        )
    return height  # type: ignore[no-any-return]


# Pillow's number for its bilinear filter.
BILINEAR = 2


def hf_facts(files: Files) -> ModelFacts:
    """Return facts about a Hugging Face model from config.json and preprocessor_config.json."""
    config = files.get("config.json", {})
    images = files.get("preprocessor_config.json", {})
    given = {"num_heads": "num_attention_heads", "norm_eps": "layer_norm_eps"}
    settings = {ours: config[theirs] for ours, theirs in given.items() if theirs in config}
    if config:
        settings["activation"] = our_activation(config.get("hidden_act", "gelu"))
    labels = config.get("id2label") or {}
    classes = [labels[number] for number in sorted(labels, key=int)]
    named = classes and not classes[0].startswith("LABEL_")
    statistics: Statistics | None = Statistics((0.0,) * CHANNELS, (1.0,) * CHANNELS)
    if images.get("do_normalize") is not False:
        statistics = known_statistics(images, "image_mean", "image_std")
    return ModelFacts(settings, classes if named else None, statistics)


def hf_files(config: ViTConfig, about: Mapping[str, Any]) -> Files:
    """Return the files, by name, from which Hugging Face builds a model and its preprocessing.

    `about` has the classes, mean, std and image_shape of the model's images.
    """
    size = require_preprocessing(about)
    square = {"height": size, "width": size}
    crops = about["fit"] == "crop"
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
        "num_channels": CHANNELS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "problem_type": about["problem_type"],
        # The confidence of a model with classes depends on its temperature, which has no key here.
        **({"thresholds": about["thresholds"]} if about["problem_type"][:5] == "multi" else {}),
        "id2label": {str(number): name for number, name in enumerate(about["classes"])},
        "label2id": {name: number for number, name in enumerate(about["classes"])},
        "torch_dtype": "float32",
    }
    # ViT's own processor does not crop: it would distort images that are not square.
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": size} if crops else square,
        "resample": BILINEAR,
        "do_center_crop": crops,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": about["mean"],
        "image_std": about["std"],
    }
    return {"config.json": model, "preprocessor_config.json": images}
