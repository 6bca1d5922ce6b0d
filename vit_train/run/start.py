"""The models that a run starts from and learns from, and the images that they have seen."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.reading import as_word
from vit_train.base.text import counted, listed
from vit_train.config.data import DataConfig, FolderConfig
from vit_train.config.fields import as_setting, in_pixels
from vit_train.config.model import ViTConfig, as_arguments, differences, require_vit
from vit_train.config.run import ADAMW_TUNING, FINE_TUNING, TrainConfig, with_settings
from vit_train.config.tasks import DistillConfig, LabelsConfig
from vit_train.config.training import AdamWConfig
from vit_train.data.batches import Normalize
from vit_train.data.dataset import DataFacts, Dataset, are_among, image_keys, without
from vit_train.data.splits import Splits
from vit_train.loop.distributed import Processes
from vit_train.loop.precision import batch_norms
from vit_train.model.layers import Dropout
from vit_train.model.positions import resize_positions
from vit_train.model.vit import Encoder, encoder_of
from vit_train.tasks.classify import Teacher
from vit_train.tasks.task import Task
from vit_train.trained.checkpoint import Checkpoint

if TYPE_CHECKING:  # rarely needed
    from vit_train.interop.pretrained import Pretrained
    from vit_train.trained.model import Trained


HEAD = ("head.", "pre_head.")


def first_weights(config: TrainConfig, resumes: bool) -> "Pretrained | None":
    """Return the weights that init_from= names; None if it is null or if the run `resumes`."""
    if config.init_from is None or resumes:
        return None
    from vit_train.interop.pretrained import pretrained

    return pretrained(config.init_from, require_vit(config.model, f"init_from={config.init_from}"))


def fine_tuned(
    config: TrainConfig, pretrained: "Pretrained | None", chosen: Collection[str]
) -> TrainConfig:
    """Adapt the settings to the pretrained model, except those in `chosen`.

    `chosen` are the settings and groups on the command line. The encoder's shape and, for a folder,
    the image size come from the pretrained model; FINE_TUNING has the other settings. If init_from=
    is not in `chosen`, take none of these: a recipe or program that sets init_from= sets the rest,
    too. In any case, replace model.norm_eps=null by the pretrained model's value or, without one,
    the default.
    """
    if not isinstance(config.model, ViTConfig):
        return config
    if config.model.norm_eps is None:
        config = with_settings(
            config, {"model.norm_eps": (pretrained.config if pretrained else config.model).eps}
        )
    if pretrained is None or "init_from" not in chosen:
        return config
    # `differences` gives the width of the MLP as mlp_dim, so a chosen mlp_ratio counts as mlp_dim.
    given = {key.replace("mlp_ratio", "mlp_dim") for key in chosen}
    shape = (
        {} if "model" in given else differences(pretrained.config, require_vit(config.model, ""))
    )
    # An experiment or another run's settings already say how to train.
    usual = {} if {"experiment", "config"} & given else usual_settings(config, pretrained)
    taken = {key: value for key, value in (shape | usual).items() if key not in given}
    if taken:
        logger.info(
            f"settings for init_from={config.init_from} (yours take precedence): "
            f"{as_arguments(taken)}"
        )
    return with_settings(config, taken)


def usual_settings(config: TrainConfig, pretrained: "Pretrained") -> dict[str, Any]:
    """Return the usual settings for fine-tuning that `config` leaves at their defaults.

    They are the pretrained model's image size, for a folder, and FINE_TUNING, for a classifier all
    of whose weights are trained. FINE_TUNING does not apply to the encoders of this program's
    autoencoders, which need as much training as random weights.
    """
    usual: dict[str, Any] = {}
    if isinstance(config.data, FolderConfig) and pretrained.image_size:
        usual = {"data.image_size": pretrained.image_size}
    is_classifier = pretrained.layout or "head.weight" in pretrained.state
    if is_classifier and isinstance(config.task, LabelsConfig) and not config.train.freeze:
        # `type`, because MuonConfig is a subclass of AdamWConfig and keeps its own rates.
        usual |= FINE_TUNING | (ADAMW_TUNING if type(config.optim) is AdamWConfig else {})
    return {key: value for key, value in usual.items() if is_default(config, key)}


def is_default(config: TrainConfig, key: str) -> bool:
    """Return True if a setting, such as "train.epochs", has its default value."""
    group, _, name = key.partition(".")
    part = getattr(config, group)
    return getattr(part, name) == getattr(type(part), name)  # type: ignore[no-any-return]


def first_model(
    config: TrainConfig,
    task: Task,
    data: Dataset,
    processes: Processes,
    pretrained: "Pretrained | None",
) -> tuple[nn.Module, str]:
    """Build the model; return it and a description of its weights ("" if they are random).

    If `pretrained` is None, the weights are random. Raise ValueError if the model has BatchNorm and
    there are several processes.
    """
    model, origin = task.build_model(), ""
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
    for module in encoder.modules():  # otherwise the head would learn from noise
        if isinstance(module, Dropout):
            module.rate = 0.0
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(name.startswith(HEAD))


def start_from(
    config: TrainConfig, pretrained: "Pretrained", model: nn.Module, classes: list[str]
) -> str:
    """Copy the `pretrained` weights into the model, and return a description for the log.

    Learned position embeddings are resized if the images have a different size. The pretrained head
    is reused if its classes have the same names as `classes`, in any order, or, if its names are
    unknown, the same number. Raise ValueError if the encoders differ.
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
    elif pretrained.classes and pretrained.classes != classes:
        rows = [pretrained.classes.index(name) for name in classes]
        state |= {key: state[key][rows] for key in state if key.startswith("head.")}
    ours.load_state_dict(state, strict=False)
    return describe(config, pretrained, ours, fresh)


def why_fresh(pretrained: "Pretrained", ours: Encoder, classes: list[str]) -> str:
    """Return why the pretrained head cannot be reused, or "" if it can."""
    theirs = pretrained.state.get("head.weight")
    if theirs is None or not hasattr(ours, "head"):
        return "this model or the pretrained model has no head"
    if len(theirs) != len(classes):
        return f"it has {counted(len(theirs), 'class')}, but the data have {len(classes):,}"
    if pretrained.classes is not None and sorted(pretrained.classes) != sorted(classes):
        return "its classes have different names"
    return (
        ""
        if pretrained.config.head == ours.config.head
        else f"it needs model.head={pretrained.config.head}"
    )


def describe(config: TrainConfig, pretrained: "Pretrained", ours: Encoder, fresh: str) -> str:
    """Describe which pretrained weights are used, and why others are not."""
    layout = f" ({pretrained.layout}'s layout)" if pretrained.layout else ""
    positions = ""
    if len(ours.pos_embed) and pretrained.grid != ours.grid:
        grids = (" by ".join(map(str, each)) for each in (pretrained.grid, ours.grid))
        positions = ", its {} positions resized to {}".format(*grids)
    same = "classes" if pretrained.classes else "number of classes (their names are unknown)"
    assumed = " ".join(
        f"model.{key}={getattr(pretrained.config, key)}" for key in pretrained.assumed
    )
    normalized = (
        "images are normalized as for the pretrained model"
        if pretrained.statistics
        else "the pretrained model's normalization is unknown: set data.mean= and data.std="
    )
    parts = (
        f"starts from the encoder of {config.init_from}{layout}{positions}",
        f"the pretrained head is not reused: {fresh}"
        if fresh
        else f"the pretrained head is reused, because both models have the same {same}",
        f"{counted(len(pretrained.left), 'weight')} not used, such as {pretrained.left[0]}"
        if pretrained.left
        else "",
        f"assumed, because the file does not state them: {assumed}" if assumed else "",
        normalized if config.data.mean is None else "",
        "the encoder stays frozen (train.freeze=encoder)" if config.train.freeze else "",
    )
    return "; ".join(filter(None, parts))


def load_teacher(config: TrainConfig, device: torch.device) -> "Trained | None":
    """Load the model that task.teacher= names; return None if the task is not distillation."""
    if not isinstance(config.task, DistillConfig):
        return None
    from vit_train.trained.load import load  # rarely needed

    return load(config.task.teacher, device)


def checked_teacher(
    config: DistillConfig, teacher: "Trained", data: DataFacts, normalize: Normalize
) -> Teacher:
    """Return the teacher of the distillation task; `normalize` is the student's normalization.

    Raise ValueError if the teacher is no classifier, or if its classes or image size are not those
    of the data.
    """
    meta, size, problem = teacher.meta, teacher.meta.image_shape[1:], ""
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
    if problem:
        raise ValueError(f"task.teacher={config.teacher}: {problem}")
    return Teacher(teacher.model, teacher.normalize, normalize)


def seen_by_earlier_models(
    earlier: Checkpoint | None,
    pretrained: "Pretrained | None",
    teacher: "Trained | None",
    data: Dataset,
    config: DataConfig,
) -> Tensor | None:
    """Return the keys of all images that the pretrained model and the teacher have seen.

    An image is seen if a model was trained or validated on it. If a test image was seen at another
    size, include its key at this run's size, too. Return None if no keys are known. For a run that
    continues from an `earlier` checkpoint, return the keys in that checkpoint.
    """
    if earlier is not None:
        return earlier.seen_before
    models = pretrained.seen if pretrained else None, teacher.meta.all_seen if teacher else None
    known = [seen for seen in models if seen is not None]
    keys = [seen.keys for seen in known]
    for seen in known:
        if isinstance(config, FolderConfig) and seen.image_size != config.image_size:
            from vit_train.data.folder import reread  # rarely needed

            then = reread(data.test, replace(config, image_size=seen.image_size))
            keys.append(image_keys(data.test.images[are_among(then.images, seen.keys)]))
    return torch.cat(keys).unique() if keys else None


def unseen_test(data: Dataset, seen: Tensor | None) -> Dataset:
    """Remove the test images whose keys are in `seen`; raise ValueError if no image remains."""
    test = without(data.test, seen)
    if not len(test):
        raise ValueError(
            f"all {counted(len(data.test), 'test image')} were used to train or validate the "
            "pretrained model or the teacher: add other test images"
        )
    if left := len(data.test) - len(test):
        logger.warning(
            f"{counted(left, 'test image')} left out, because the pretrained model or the teacher "
            "was trained or validated on them"
        )
    return replace(data, test=test)


def data_facts(
    data: Dataset, splits: Splits, config: DataConfig, seen_before: Tensor | None
) -> DataFacts:
    """Return a description of the data, with the keys of all images that the run must not test on.

    The keys are `seen_before` (images that the pretrained model or the teacher has seen) and, for
    data=folder, the keys of the training and validation images. For data=folder, also warn if
    copies of test images are among the training and validation images.
    """
    seen = [] if seen_before is None else [seen_before]
    if isinstance(config, FolderConfig):
        validated = [] if splits.val is None or config.val == "test" else [splits.val]
        own = torch.cat([image_keys(part.images) for part in (splits.train, *validated)])
        seen = [own, *seen]
        if copies := int(are_among(splits.test.images, own).sum()):
            logger.warning(
                f"copies of {counted(copies, 'test image')} are among the training and "
                "validation images, which makes the test result too optimistic: remove the copies, "
                "which vit-data lists"
            )
    keys = torch.cat(seen) if seen else None
    return DataFacts(data.classes, data.image_shape, data.fingerprint, keys, seen_before)
