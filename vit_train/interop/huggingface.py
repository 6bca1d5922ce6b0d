"""Hugging Face's ViTForImageClassification and ViTModel, and DeiT without its distillation token.

Saved files use other names than the modules of transformers 5; a state dict may have either.
"""

import re
from dataclasses import replace

from vit_train.interop.layout import PLAIN, Facts, Files, Layout, State, Subject, our_activation

EMBEDDINGS = {
    "cls_token": "embeddings.cls_token",
    "pos_embed.0.weight": "embeddings.position_embeddings",
    "patch_embed.proj.": "embeddings.patch_embeddings.projection.",
}
LAYER, MODULE = "encoder.layer.{n}", "layers.{n}"
OUTER = {"norm.": "layernorm.", "head.": "classifier."}
PATCHES = "embeddings.patch_embeddings.projection.weight"
# Its names of activations, and this program's.
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
# Its kinds of models that are taken, as config.json calls them.
KINDS = ("vit", "deit", "vit_mae", "vit_msn")
# Pillow's number of its bilinear filter.
BILINEAR = 2
# Names that mean there are none.
UNNAMED = re.compile(r"LABEL_\d+")


def facts(files: Files) -> Facts:
    """Return the settings in config.json and preprocessor_config.json."""
    config, images = files.get("config.json", {}), files.get("preprocessor_config.json", {})
    settings = {}
    if "num_attention_heads" in config:
        settings["num_heads"] = config["num_attention_heads"]
    if "layer_norm_eps" in config:
        settings["norm_eps"] = config["layer_norm_eps"]
    if config:
        settings["activation"] = our_activation(config.get("hidden_act", "gelu"), ACTIVATIONS)
    labels = config.get("id2label") or {}
    classes = [str(labels.get(str(number), "")) for number in range(len(labels))]
    named = classes and all(classes) and not all(map(UNNAMED.fullmatch, classes))
    mean, std = images.get("image_mean"), images.get("image_std")
    if images.get("do_normalize") is False and mean is not None:
        mean, std = [0.0] * len(mean), [1.0] * len(mean)
    return Facts(settings, classes if named else None, mean, std)


def files(subject: Subject) -> Files:
    """Return the two files with which from_pretrained builds a model and its preprocessing."""
    config, (channels, size, _) = subject.config, subject.image_shape
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    labels = {str(number): name for number, name in enumerate(subject.classes)}
    model = {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.hidden_dim,
        "hidden_act": names[config.activation],
        "layer_norm_eps": config.eps,
        "qkv_bias": config.qkv_bias,
        "image_size": size,
        "patch_size": config.patch_size,
        "num_channels": channels,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": labels,
        "label2id": {name: int(number) for number, name in labels.items()},
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
        "image_mean": subject.mean,
        "image_std": subject.std,
    }
    return {"config.json": model, "preprocessor_config.json": images}


def with_prefix(state: State) -> State:
    own = "classifier."
    return {key if key.startswith(own) else f"vit.{key}": each for key, each in state.items()}


HUGGING_FACE = Layout(
    name="Hugging Face",
    names={
        **EMBEDDINGS,
        "blocks.{n}.norm1.": f"{LAYER}.layernorm_before.",
        "blocks.{n}.attn.qkv.": (
            f"{LAYER}.attention.attention.query.",
            f"{LAYER}.attention.attention.key.",
            f"{LAYER}.attention.attention.value.",
        ),
        "blocks.{n}.attn.proj.": f"{LAYER}.attention.output.dense.",
        "blocks.{n}.norm2.": f"{LAYER}.layernorm_after.",
        "blocks.{n}.mlp.fc1.": f"{LAYER}.intermediate.dense.",
        "blocks.{n}.mlp.fc2.": f"{LAYER}.output.dense.",
        **OUTER,
    },
    marks=(PATCHES, "encoder.layer.0.layernorm_before.weight"),
    holds={
        **PLAIN,
        "activation": tuple(ACTIVATIONS.values()),
        "head": ("token",),
        "qk_norm": (False,),
        "layer_scale": (None,),
        "proj_bias": (True,),
    },
    norm_eps=1e-12,
    facts=facts,
    files=files,
    unused={
        "pooler.": "the pooler",
        "decoder.": "the decoder",
        "embeddings.mask_token": "the token of hidden patches",
    },
    prefixes=("vit.", "deit."),
    pack=with_prefix,
)
HUGGING_FACE_MODULES = replace(
    HUGGING_FACE,
    names={
        **EMBEDDINGS,
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
        **OUTER,
    },
    marks=(PATCHES, "layers.0.layernorm_before.weight"),
)
