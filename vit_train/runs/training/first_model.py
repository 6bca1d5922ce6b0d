"""The model that a run begins with: random or pretrained weights, and which of them are trained."""

from dataclasses import replace

from torch import nn

from vit_train.config import TrainConfig
from vit_train.data.dataset import Dataset, Statistics
from vit_train.engine.device import has_batch_norm
from vit_train.engine.distributed import Processes
from vit_train.model.config import ViTConfig, require_vit
from vit_train.model.layers import Dropout, DropPath
from vit_train.runs.load import encoder_of
from vit_train.runs.pretrained.init_from import Origin, start_from
from vit_train.runs.pretrained.pretrained import Pretrained, pretrained
from vit_train.tasks.task import Task


def first_weights(config: TrainConfig, resumes: bool) -> Pretrained | None:
    """Return the weights that `init_from` names, None if there are none or the run has its own."""
    if config.init_from is None or resumes:
        return None
    return pretrained(config.init_from, require_vit(config.model, f"init_from={config.init_from}"))


def with_norm_eps(config: TrainConfig, found: Pretrained | None) -> TrainConfig:
    """Set model.norm_eps, unless it is set, to that of the weights or, without any, the usual."""
    model = config.model
    if not isinstance(model, ViTConfig) or model.norm_eps is not None:
        return config
    eps = (found.config if found else model).eps
    return replace(config, model=replace(model, norm_eps=eps))


def first_model(
    config: TrainConfig,
    task: Task,
    data: Dataset,
    processes: Processes,
    found: Pretrained | None,
) -> tuple[nn.Module, Origin]:
    """Build the model, with the weights `found`, if any.

    Raise ValueError if several processes cannot train it.
    """
    model, origin = task.build_model(), Origin()
    if processes.count > 1 and has_batch_norm(model):
        raise ValueError(
            f"model.name={config.model.name} has BatchNorm, which needs the whole batch: train it "
            "in one process"
        )
    if found is not None:
        origin = start_from(str(config.init_from), found, model, list(data.classes))
    if config.train.freeze == "encoder":
        freeze_encoder(model, config)
    return model, origin


def describe_origin(origin: Origin, config: TrainConfig, statistics: Statistics) -> str:
    """Say where the weights come from, and what becomes of them; "" for random ones."""
    if not origin.words:
        return ""
    if statistics is origin.statistics:
        normalized = "; images are normalized as for that model"
    elif origin.statistics is None and config.data.mean is None:
        normalized = (
            "; how its images were normalized is not known: data.mean= and data.std= set it"
        )
    else:
        normalized = ""
    frozen = "; the encoder is not trained" if config.train.freeze else ""
    return f"{origin.words}{normalized}{frozen}"


def freeze_encoder(model: nn.Module, config: TrainConfig) -> None:
    """Let training leave the encoder as it is; raise ValueError if there is none to keep."""
    encoder = encoder_of(model)
    if encoder is None:
        raise ValueError(
            f"train.freeze=encoder needs a Vision Transformer, but model.name={config.model.name}"
        )
    if config.init_from is None:
        raise ValueError("train.freeze=encoder needs pretrained weights to keep: init_from=RUN")
    for module in encoder.modules():  # or the head would learn from noise
        if isinstance(module, Dropout | DropPath):
            module.rate = 0.0
    kept = encoder.encoder_state()
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(name not in kept)
