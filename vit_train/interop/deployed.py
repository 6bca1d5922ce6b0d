"""A trained classifier as it is handed on: what is exported, and what is said of it."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vit_train.interop.layout import Layout, Subject
from vit_train.model.attention import Attention
from vit_train.model.build import build
from vit_train.model.config import ViTConfig
from vit_train.model.layers import StackedLinear
from vit_train.model.vit import VisionTransformer
from vit_train.runs import provenance
from vit_train.runs.load import portable
from vit_train.runs.trained import Meta, Trained

State = dict[str, Tensor]


@dataclass(frozen=True)
class Deployed:
    """A trained classifier, and the same with PyTorch's kernels, which every format can hold."""

    trained: Trained
    fused: nn.Module
    normalize: bool

    @property
    def meta(self) -> Meta:
        return self.trained.meta

    @property
    def network(self) -> nn.Module:
        """Return the network of a program: images (N,C,S,S) to logits (N,K).

        The images are uint8, and normalized in it; or, without `normalize`, normalized float32.
        """
        parts = [self.trained.normalize, self.fused] if self.normalize else [self.fused]
        return nn.Sequential(*parts).eval()

    @property
    def example(self) -> Tensor:
        """Return two images of the kind that `network` takes."""
        dtype = torch.uint8 if self.normalize else torch.float32
        return torch.zeros(2, *self.meta.image_shape, dtype=dtype)

    @property
    def about(self) -> dict[str, Any]:
        """Return the metadata of the weights: settings, classes, preprocessing, provenance.

        Paths of the machine that trained them are left out.
        """
        meta = self.meta
        _, size, _ = meta.image_shape
        return {
            "classes": meta.classes,
            "image_shape": list(meta.image_shape),
            "mean": list(meta.statistics.mean),
            "std": list(meta.statistics.std),
            "temperature": meta.temperature,
            "preprocessing": f"RGB; the shorter side scaled to {size} pixels (bilinear, "
            "antialiased), the center cropped; then / 255, − mean, / std for each channel",
            "input": "uint8 images, normalized inside" if self.normalize else "normalized images",
            "config": portable(asdict(meta.config)),
            "weights": meta.weights,
            "epoch": meta.epoch,
            "images_seen": meta.images_seen,
            "data_fingerprint": meta.fingerprint,
            "versions": meta.versions,
            "exported": {"date": provenance.today(), "versions": provenance.versions()},
        }

    @property
    def about_json(self) -> str:
        return json.dumps(self.about)

    @property
    def subject(self) -> Subject:
        """Return the model for another library's config files, with one table of positions."""
        meta = self.meta
        config = plain_config(self.fused)
        statistics = [list(values) for values in meta.statistics]
        return Subject(config, meta.image_shape, meta.classes, *statistics)

    def refused(self, layout: Layout) -> list[str]:
        """Return the settings that a layout cannot hold; of other models than ViTs the name."""
        if not isinstance(self.fused, VisionTransformer):
            return [f"model.name={self.meta.config.model.name}"]
        return layout.refused(plain_config(self.fused))

    def state_in(self, layout: Layout) -> State:
        """Return the weights under a library's names."""
        assert isinstance(self.fused, VisionTransformer)
        return layout.to_theirs(plain_state(self.fused))


def deployed(trained: Trained, normalize: bool) -> Deployed:
    """Return a classifier with PyTorch's kernels; raise ValueError for other models."""
    meta = trained.meta
    if not meta.task.needs_labels:
        raise ValueError(f"task={meta.config.task.name}: only classifiers are exported")
    config = meta.config.model
    if isinstance(config, ViTConfig):
        config = replace(config, kernels="fused", init="torch")  # quick; the weights come below
    fused = build(config, meta.image_shape, len(meta.classes))
    fused.load_state_dict(trained.model.state_dict())
    for part in fused.modules():
        # PyTorch's ONNX exporter fails on its own fused attention with a bias.
        if isinstance(part, Attention) and part.relative is not None:
            part.kernels = "scratch"
    return Deployed(trained, fused.eval(), normalize)


def plain_config(model: nn.Module) -> ViTConfig:
    """Return a model's config as libraries know it, with biases that may be zeros.

    Any positions that are one table count as learned.
    """
    assert isinstance(model, VisionTransformer)
    config = replace(model.config, norm_eps=model.config.eps, proj_bias=True, mlp_bias=True)
    one_table = len(model.pos_embed) == 1 and config.positions_at == "stem"
    return replace(config, positions="learned") if one_table else config


def plain_state(model: VisionTransformer) -> State:
    """Return the weights of a model, those of its positions as the table that they make.

    Biases that it lacks are zeros.
    """
    zeros = {
        f"{name}.bias": layer.weight.new_zeros(len(layer.weight))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.bias is None
        if not isinstance(layer, StackedLinear)
    }
    state = model.state_dict() | zeros
    if plain_config(model).positions != "learned":
        return state
    rest = {key: value for key, value in state.items() if not key.startswith("pos_embed.")}
    return rest | {"pos_embed.0.weight": model.pos_embed[0]().detach()}
