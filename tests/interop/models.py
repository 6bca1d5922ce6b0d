"""Small models of other libraries, each with weights that tell every tensor from every other."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

SIZE, PATCH, DIM, DEPTH, HEADS, MLP, CLASSES = 16, 4, 24, 3, 3, 40, 7
# The same sizes for vit-train.
SETTINGS = [
    *(f"model.patch_size={PATCH}", f"model.embed_dim={DIM}", f"model.depth={DEPTH}"),
    *(f"model.num_heads={HEADS}", f"model.mlp_dim={MLP}", f"data.image_size={SIZE}"),
]
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


def perturbed(model: nn.Module) -> nn.Module:
    """The model in float64 with every parameter random: biases, norms and tokens, too."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = (parameter.data * 0 + 0.3 * noise).double()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and name.endswith("weight"):  # of a norm
            parameter.data += 1
    return model.double().eval()


def timm_model(**changes: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    settings: dict[str, Any] = {
        "img_size": SIZE,
        "patch_size": PATCH,
        "num_classes": CLASSES,
        "embed_dim": DIM,
        "depth": DEPTH,
        "num_heads": HEADS,
        "mlp_ratio": MLP / DIM,
    }
    return perturbed(VisionTransformer(**settings | changes))


def torchvision_model(**changes: Any) -> nn.Module:
    from torchvision.models import VisionTransformer

    settings: dict[str, Any] = {
        "image_size": SIZE,
        "patch_size": PATCH,
        "num_layers": DEPTH,
        "num_heads": HEADS,
        "hidden_dim": DIM,
        "mlp_dim": MLP,
        "num_classes": CLASSES,
        "norm_layer": partial(nn.LayerNorm, eps=1e-6),
    }
    return perturbed(VisionTransformer(**settings | changes))


def hf_config(**changes: Any) -> Any:
    from transformers import ViTConfig

    settings: dict[str, Any] = {
        "hidden_size": DIM,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "intermediate_size": MLP,
        "image_size": SIZE,
        "patch_size": PATCH,
        "num_labels": CLASSES,
    }
    return ViTConfig(**settings | changes)


def hf_model(**changes: Any) -> nn.Module:
    from transformers import ViTForImageClassification

    return perturbed(ViTForImageClassification(hf_config(**changes)))


def vit_pytorch_model(**changes: Any) -> nn.Module:
    from vit_pytorch import ViT

    settings: dict[str, Any] = {
        "image_size": SIZE,
        "patch_size": PATCH,
        "num_classes": CLASSES,
        "dim": DIM,
        "depth": DEPTH,
        "heads": HEADS,
        "dim_head": DIM // HEADS,
        "mlp_dim": MLP,
    }
    return perturbed(ViT(**settings | changes))


def logits_of(model: nn.Module, images: Tensor) -> Tensor:
    """The logits of any library's model."""
    answer = model(images)
    return getattr(answer, "logits", answer)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "timm": timm_model,
    "torchvision": torchvision_model,
    "Hugging Face": hf_model,
    "vit-pytorch": vit_pytorch_model,
}
# Other forms of them, which this program's model has, too.
FORMS = [
    *((library, {}) for library in MODELS),
    ("timm", {"class_token": False, "global_pool": "avg", "fc_norm": False}),
    ("timm", {"qkv_bias": False, "qk_norm": True}),
    ("timm", {"init_values": 1e-5}),
    ("timm", {"proj_bias": False, "pos_embed": "none"}),
    ("torchvision", {"representation_size": DIM}),
    ("Hugging Face", {"qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"}),
    ("vit-pytorch", {"pool": "mean"}),
]
