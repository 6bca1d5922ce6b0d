"""The weights that a run starts from, and the teacher that it learns from."""

from inspect import signature
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vit_train.base.reading import as_word
from vit_train.base.text import counted, listed
from vit_train.config.fields import as_setting, in_pixels
from vit_train.config.model import as_arguments, differences
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import DistillConfig, TaskConfig
from vit_train.data.batches import Normalize
from vit_train.data.dataset import DataFacts, Dataset
from vit_train.loop.device import batch_norms
from vit_train.loop.distributed import Processes
from vit_train.model.build import on_meta, require_model_fits
from vit_train.model.layers import Dropout
from vit_train.model.positions import resize_positions
from vit_train.model.vit import Encoder, encoder_of
from vit_train.tasks import Task
from vit_train.tasks.classify import Teacher

if TYPE_CHECKING:  # rarely needed
    from vit_train.interop.pretrained import Pretrained
    from vit_train.trained.model import Trained


HEAD = ("head.", "pre_head.")


def first_model(
    config: TrainConfig,
    task: Task,
    data: Dataset,
    processes: Processes,
    pretrained: "Pretrained | None",
) -> tuple[nn.Module, str]:
    """Build the model; return it and a description of its weights ("" if they are random).

    If `pretrained` is None, the weights are random. Raise ValueError if the model does not fit into
    memory, or if it has BatchNorm and there are several processes.
    """
    require_model_fits(
        config.model,
        on_meta(task.build_model, config.model),
        data.image_shape,
        # Weights, gradients, AdamW's two moments and, if kept, the average of the weights.
        copies=5 if config.train.ema_decay else 4,
    )
    model = task.build_model()
    origin = ""
    if processes.count > 1 and batch_norms(model):
        raise ValueError(
            f"model.name={config.model.name} has BatchNorm, which needs the whole batch: train it "
            "in one process"
        )
    if pretrained is not None:
        origin = start_from(config, pretrained, model, list(data.classes))
    if config.train.freeze == "encoder":
        freeze_encoder(model, config)
    return model, origin


def freeze_encoder(model: nn.Module, config: TrainConfig) -> None:
    """Freeze the encoder, but not the head; raise ValueError if the encoder is not pretrained."""
    encoder = encoder_of(model)
    if encoder is None or config.init_from is None:
        raise ValueError(
            "train.freeze=encoder needs a Vision Transformer with pretrained weights: set "
            "init_from=RUN"
        )
    for name, module in encoder.named_modules():  # otherwise the head would learn from noise
        if isinstance(module, Dropout) and not name.startswith(HEAD):
            module.rate = 0.0
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(name.startswith(HEAD))


def start_from(
    config: TrainConfig, pretrained: "Pretrained", model: nn.Module, classes: list[str]
) -> str:
    """Copy the `pretrained` weights into the model, and return a description for the log.

    Learned position embeddings are resized if the images have a different size. The rows of the
    pretrained head are kept for classes of the same name or, if its names are unknown, for as many
    classes. Raise ValueError if the encoders differ.
    """
    ours = encoder_of(model)
    assert ours is not None
    if differing := differences(pretrained.config, ours.config):
        raise ValueError(
            f"init_from={config.init_from} does not match this model; to match it, set "
            f"{as_arguments(differing)}"
        )
    fresh = why_fresh(pretrained, ours, classes)
    state = resize_positions(pretrained.state, pretrained.grid, ours)
    if fresh:
        state = {key: value for key, value in state.items() if not key.startswith(HEAD)}
    elif pretrained.classes:
        state |= head_by_name(pretrained, ours, classes)
    ours.load_state_dict(state, strict=False)
    return describe_weights(config, pretrained, ours, fresh, classes)


def why_fresh(pretrained: "Pretrained", ours: Encoder, classes: list[str]) -> str:
    """Return why the pretrained head cannot be reused, or "" if it can."""
    theirs = pretrained.state.get("head.weight")
    if theirs is None or not hasattr(ours, "head"):
        return "this model or the pretrained model has no head"
    names = pretrained.classes or classes
    if len(names) != len(theirs):
        others = "names for" if pretrained.classes else "the data have"
        return f"it has {counted(len(theirs), 'class')}, but {others} {len(names):,}"
    if not set(names) & set(classes):
        return "its classes have different names"
    head = pretrained.config.head
    return "" if head == ours.config.head else f"it needs model.head={head}"


def head_by_name(pretrained: "Pretrained", ours: Encoder, classes: list[str]) -> dict[str, Tensor]:
    """Return our head's weights, with the pretrained rows for classes of the same names."""
    theirs = pretrained.state
    row_of = {name: row for row, name in enumerate(pretrained.classes or ())}
    return {
        key: torch.stack(
            [
                theirs[key][row_of[name]] if name in row_of else own
                for name, own in zip(classes, weights, strict=True)
            ]
        )
        for key, weights in ours.state_dict().items()
        if key.startswith("head.")
    }


def shared_classes(theirs: list[str] | None, classes: list[str]) -> str:
    """Say for which classes the pretrained head is reused; `theirs` are its own, if known."""
    if theirs is None:
        return ", because both models have the same number of classes (their names are unknown)"
    new = sorted(set(classes) - set(theirs))
    dropped = sorted(set(theirs) - set(classes))
    return (
        f" for {counted(len(classes) - len(new), 'class')} of the same name"
        + (f", new: {listed(new)}" if new else "")
        + (f", dropped: {listed(dropped)}" if dropped else "")
    )


def describe_weights(
    config: TrainConfig, pretrained: "Pretrained", ours: Encoder, fresh: str, classes: list[str]
) -> str:
    """Describe which pretrained weights are used, and why others are not."""
    layout = f" ({pretrained.layout}'s layout)" if pretrained.layout else ""
    parts = [f"starts from the encoder of {config.init_from}{layout}"]
    if len(ours.pos_embed) and pretrained.grid != ours.grid:
        theirs, own = (" by ".join(map(str, each)) for each in (pretrained.grid, ours.grid))
        parts[0] += f", its {theirs} positions resized to {own}"
    parts.append(
        f"the pretrained head is not reused: {fresh}"
        if fresh
        else f"the pretrained head is reused{shared_classes(pretrained.classes, classes)}"
    )
    if pretrained.left:
        count = counted(len(pretrained.left), "weight")
        parts.append(f"{count} not used, such as {pretrained.left[0]}")
    if pretrained.assumed:
        settings = {f"model.{key}": getattr(pretrained.config, key) for key in pretrained.assumed}
        parts.append(f"assumed, because the file does not state them: {as_arguments(settings)}")
    if config.data.mean is None:
        parts.append(
            "images are normalized as for the pretrained model"
            if pretrained.statistics
            else "the pretrained model's normalization is unknown, so images are normalized by "
            "their own mean and std; if you know it, set data.mean= and data.std="
        )
    if config.train.freeze:
        parts.append("the encoder stays frozen (train.freeze=encoder)")
    return "; ".join(parts)


def checked_teacher(
    config: TaskConfig, teacher: "Trained | None", data: DataFacts, normalize: Normalize
) -> Teacher | None:
    """Return the teacher of a distillation task, None for other tasks.

    `normalize` is the student's normalization. Raise ValueError if the teacher is no classifier, or
    if its classes or image size are not those of the data.
    """
    if teacher is None or not isinstance(config, DistillConfig):
        return None
    meta = teacher.meta
    size = meta.image_shape[1:]
    problem = ""
    if not meta.task.one_class:
        problem = f"a model trained with task={meta.config.task.name} does not classify images"
    elif meta.classes != list(data.classes):
        problem = (
            f"the teacher's classes are {listed(meta.classes)}, but the data's classes are "
            f"{listed(data.classes)}"
        )
    elif meta.image_shape != data.image_shape:
        problem = (
            f"the teacher was trained on images of {in_pixels(size)}, but this run's images have "
            f"{in_pixels(data.image_shape[1:])}: set data.image_size={as_word(as_setting(size))}"
        )
    elif config.hint and "return_features" not in signature(teacher.model.forward).parameters:
        problem = (
            f"task.hint={config.hint} needs the teacher's features, but the `forward` of "
            f"{type(teacher.model).__name__} has no argument return_features: set task.hint=0"
        )
    if problem:
        raise ValueError(f"task.teacher={config.teacher}: {problem}")
    return Teacher(teacher.model, teacher.normalize, normalize)
