"""A trained classifier, prepared for export: one network, from images to logits."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vit_train.base import machine
from vit_train.config.fields import in_pixels
from vit_train.config.model import ViTConfig
from vit_train.config.run import portable
from vit_train.data.batches import Normalize
from vit_train.model.build import build
from vit_train.model.layers import QueryKeyValue
from vit_train.model.positions import Weights
from vit_train.model.vit import VisionTransformer
from vit_train.trained.model import Meta, Trained

# How images get the model's height and width, by data.fit.
FITTED = {
    "crop": "the largest central part of this shape scaled to {0}",
    "stretch": "scaled to {0}",
    "pad": "scaled to fit into {0}, padded with gray",
}


@dataclass(frozen=True)
class Exportable:
    """A trained classifier, `original`, and an equivalent model to be exported, `network`.

    If `normalize` is true, the exported model takes uint8 images and normalizes them; otherwise, it
    takes normalized float32 images.
    """

    original: nn.Module
    network: nn.Module
    meta: Meta
    normalize: bool
    # The original's logits are divided by this number, the temperature or 1.
    divisor: float = 1.0

    def inputs(self, images: Tensor) -> Tensor:
        """Convert uint8 images to images that the exported model takes."""
        return images if self.normalize else Normalize(self.meta.statistics)(images)

    @property
    def thresholds(self) -> dict[str, float | None]:
        """Return the least probability at which each tag is predicted.

        For a model with classes, return the least confidence for each accuracy of vit-predict's
        abstain=; None for an accuracy that was not reached on the validation images.
        """
        if self.meta.task.one_class:
            return self.meta.thresholds
        return dict(zip(self.meta.classes, self.meta.tag_thresholds.tolist(), strict=True))

    @property
    def about(self) -> dict[str, Any]:
        """Return the metadata to export: settings, classes, preprocessing, versions and date.

        The metadata omits paths on the machine that trained the model.
        """
        meta = self.meta
        return {
            "classes": meta.classes,
            "image_shape": list(meta.image_shape),
            "mean": list(meta.statistics.mean),
            "std": list(meta.statistics.std),
            "temperature": meta.temperature,
            # Hugging Face's name: a softmax, or a sigmoid of each logit.
            "problem_type": ("single" if self.meta.task.one_class else "multi")
            + "_label_classification",
            "thresholds": self.thresholds,
            "fit": meta.fit,
            "white_level": meta.white_level,
            "preprocessing": f"RGB; {FITTED[meta.fit].format(in_pixels(meta.image_shape[1:]))} "
            "(bilinear, antialiased); then / 255, − mean, / std for each channel",
            "input": "uint8 images, normalized inside" if self.normalize else "normalized images",
            "config": portable(asdict(meta.config)),
            "weights": meta.weights,
            "epoch": meta.epoch,
            "images_seen": meta.images_seen,
            "data_fingerprint": meta.fingerprint,
            "versions": meta.versions,
            "exported": {"date": machine.today(), "versions": machine.versions()},
        }


def exportable(trained: Trained, normalize: bool, calibrated: bool) -> Exportable:
    """Prepare a classifier for export.

    With `calibrated`, divide the weights of its head by its temperature. Raise ValueError if the
    model is not a classifier, or has no temperature to divide by.
    """
    meta = trained.meta
    if not meta.task.needs_labels:
        raise ValueError(f"task={meta.config.task.name}: only classifiers can be exported")
    config = meta.config.model
    if isinstance(config, ViTConfig):
        # PyTorch's ONNX exporter fails on its own fused attention with a bias.
        kernels = "scratch" if config.positions == "relative" else "fused"
        # init="torch" is fast; the weights are loaded below.
        config = replace(config, kernels=kernels, init="torch")
    network = build(config, meta.image_shape, len(meta.classes))
    network.load_state_dict(trained.model.state_dict())
    if not calibrated:
        return Exportable(trained.model, network.eval(), meta, normalize)
    if not meta.task.one_class:
        raise ValueError("calibrated=true is not for task=tags, which has no temperature")
    if meta.temperature is None:
        advice = meta.calibration_advice(meta.path)
        raise ValueError(
            f"calibrated=true needs a temperature fitted at the training image size: {advice}"
        )
    head: Any = network.head
    for parameter in head.parameters():
        parameter.data /= meta.temperature
    done = replace(meta, temperature=1.0)
    return Exportable(trained.model, network.eval(), done, normalize, meta.temperature)


def whole_network(model: Exportable) -> nn.Sequential:
    """Return the network with its normalization, if the exported model normalizes."""
    normalize = Normalize(model.meta.statistics) if model.normalize else nn.Identity()
    return nn.Sequential(normalize, model.network).eval()


def example_images(model: Exportable, count: int) -> Tensor:
    dtype = torch.uint8 if model.normalize else torch.float32
    return torch.zeros(count, *model.meta.image_shape, dtype=dtype)


def plain_config(model: VisionTransformer) -> ViTConfig:
    """Return the config of the model as exported to other libraries.

    Other libraries expect biases in all layers, so missing biases are exported as zeros. If all
    positions are in one table, they are exported as learned positions, even sinusoidal ones.
    """
    config = replace(model.config, norm_eps=model.config.eps, proj_bias=True, mlp_bias=True)
    one_table = len(model.pos_embed) == 1 and config.positions_at == "stem"
    return replace(config, positions="learned") if one_table else config


def plain_state(model: VisionTransformer) -> Weights:
    """Return the weights of the model as exported to other libraries.

    Missing biases become zeros. If `plain_config` returns learned positions, the weights include
    a table of positions.
    """
    zeros = {
        f"{name}.bias": layer.weight.new_zeros(len(layer.weight))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.bias is None
        if not isinstance(layer, QueryKeyValue)
    }
    state = model.state_dict() | zeros
    if plain_config(model).positions != "learned":
        return state
    rest = {key: value for key, value in state.items() if not key.startswith("pos_embed.")}
    return rest | {"pos_embed.0.weight": model.pos_embed[0]().detach()}
