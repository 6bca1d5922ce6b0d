"""The start of a run: all that its settings leave open is decided here, and nowhere else."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vit_train.base.log import logger
from vit_train.base.machine import memory_bytes
from vit_train.config.data import APPLIED, IMAGES, FolderConfig, TorchvisionConfig
from vit_train.config.fields import chosen, sides
from vit_train.config.model import (
    ModelConfig,
    ViTConfig,
    as_arguments,
    differences,
    require_vit,
)
from vit_train.config.run import TrainConfig, values, with_settings
from vit_train.config.tasks import DistillConfig, LabelsConfig
from vit_train.data.batches import Batch, EvalBatches, TrainBatches
from vit_train.data.dataset import DataFacts, ImageSet, load_dataset
from vit_train.data.splits import sample
from vit_train.loop.device import CORES, Precision, pick_precision
from vit_train.loop.distributed import Processes
from vit_train.loop.metrics import is_uneven
from vit_train.loop.objective import TrainLoader
from vit_train.loop.schedule import SCHEDULES
from vit_train.model.build import attention_gradient_bytes
from vit_train.model.cnn import FastCnn
from vit_train.model.patches import require_whole_patches
from vit_train.run.data import (
    RunData,
    divide_images,
    seen_by,
    training_batches,
)
from vit_train.run.weights import checked_teacher, first_model
from vit_train.tasks import Flops, Task, count_flops, make_task, require_labels
from vit_train.trained.checkpoint import Checkpoint
from vit_train.trained.folder import run_at

if TYPE_CHECKING:  # rarely needed
    from vit_train.interop.pretrained import Pretrained
    from vit_train.trained.model import Trained

# Enough images for the covariance of small patches.
WHITENED_IMAGES = 1000


@dataclass(frozen=True)
class Run:
    """A run's settings, data, task and model; `config` has no open settings."""

    config: TrainConfig
    precision: Precision
    processes: Processes
    data: RunData
    # This process's share of the augmented images, and the same with the task's targets.
    image_batches: TrainBatches
    train_loader: TrainLoader
    task: Task
    model: nn.Module
    # The source of the model's initial weights; "" means random weights.
    origin: str
    # Facts about the teacher; empty without one.
    teacher: dict[str, str]
    # The FLOPs of all matrix products for one image; None if counting needs too much memory.
    flops: Flops | None

    def unaugmented(self, part: ImageSet) -> Iterable[Batch]:
        """Return this process's unaugmented batches of a split, with the task's targets."""
        images = EvalBatches(
            part,
            self.data.normalize,
            self.config.train.eval_batch_size,
            self.precision.device,
            rank=self.processes.rank,
            ranks=self.processes.count,
        )
        return self.task.eval_loader(images)

    @property
    def expected_seconds(self) -> float | None:
        """Return the expected duration of training, validation and tests; None if it is not known.

        It is the time measured for one image on one core, times the FLOPs of the run. Augmentation,
        the optimizer and writing files are left out.
        """
        epochs = self.config.train.num_epochs
        tflop = self.training_tflop(
            epochs * len(self.image_batches) * self.image_batches.batch_size
        )
        seconds = self.precision.image_seconds
        if seconds is None or tflop is None or self.flops is None:
            return None
        timed = self.flops.forward if self.config.train.freeze else self.flops.training
        evaluated = epochs * self.data.sizes["val"] + 2 * self.data.sizes["test"]
        passes = (1e12 * tflop + self.flops.forward * evaluated) / timed
        return seconds * passes / (CORES * self.processes.count)

    def training_tflop(self, images: int) -> float | None:
        """Return the TFLOP of training on this many images.

        Return None if `flops` is None, or if only a decoder is trained.
        """
        if self.flops is None or (self.config.train.freeze and not self.task.needs_labels):
            return None
        # A frozen encoder needs no gradient, and the head's gradient costs next to nothing.
        # It also drops no patches.
        if self.config.train.freeze:
            return images * (self.flops.forward + self.flops.teacher) / 1e12
        epochs = getattr(self.config.model, "patch_dropout_epochs", None) or sys.maxsize
        dropped = min(images, epochs * len(self.train_loader) * self.train_loader.batch_size)
        own = dropped * self.flops.dropping + (images - dropped) * self.flops.training
        return (own + images * self.flops.teacher) / 1e12


def resolve(
    requested: TrainConfig,
    device: torch.device,
    processes: Processes,
    checkpoint: Checkpoint | None = None,
) -> Run:
    """Load the data, build the model and the task, and decide what the settings leave open.

    The value of a setting that is null or auto may depend, in this order, on the pretrained
    weights, the images, the model and the speed. A run that continues from a `checkpoint` takes its
    normalization from there; its weights are loaded later. For train.minutes, `run/plan.py` chooses
    the epochs. Raise ValueError for settings that do not fit together.
    """
    # Reject an unknown schedule now, not after the data are loaded.
    chosen(SCHEDULES, "optim.schedule", requested.optim.schedule)
    # Building a model draws random numbers, so this comes before the seed is set.
    teacher, pretrained = other_models(requested, device, fresh=checkpoint is None)
    config = with_pretrained(requested, pretrained)

    torch.manual_seed(config.seed)
    if isinstance(config.model, ViTConfig) and config.data.image_size is not None:
        require_whole_patches(config.model.patch_size, sides(config.data.image_size))
    dataset = load_dataset(config.data)
    config = replace(config, data=replace(config.data, **dataset.settings))
    task = make_task(config.task, config.model, dataset.image_shape, len(dataset.classes))
    require_labels(task, dataset.train)
    model, origin = first_model(config, task, dataset, processes, pretrained)
    if processes.rank:  # on a GPU, each process draws its own dropout
        torch.manual_seed(config.seed + processes.rank)

    seen = (
        checkpoint.seen_before if checkpoint else seen_by(pretrained, teacher, dataset, config.data)
    )
    data = divide_images(
        dataset, config.data, task, seen, checkpoint or config.data, pretrained, device
    )
    del dataset  # the splits hold copies
    model = model.to(device)  # first, because the images take the rest of a GPU's memory
    if isinstance(model, FastCnn):
        model.whiten(data.normalize(sample(data.train, WHITENED_IMAGES).images.to(device)))
    image_batches = training_batches(config, data, processes)
    task = task.for_training(
        data.train.labels.to(device),
        data.train.weights is not None,
        best_metric(config, task, data),
        checked_teacher(config.task, teacher, data.facts, data.normalize),
    )
    # With precision=auto, the processes may measure different speeds.
    precision = processes.broadcast(
        pick_precision(config.precision, device, model, task.example_inputs())
    )
    return Run(
        config=replace(config, precision=precision.name),
        precision=precision,
        processes=processes,
        data=data,
        image_batches=image_batches,
        train_loader=task.train_loader(image_batches.weighted(data.train.weights)),
        task=task,
        model=model,
        origin=origin,
        teacher={}
        if teacher is None
        else {
            "checkpoint": str(teacher.meta.path),
            "weights": teacher.meta.weights,
            "fingerprint": teacher.meta.checksum,
        },
        flops=flops_of(config, teacher and teacher.meta.config.model, data.facts),
    )


def other_models(
    config: TrainConfig, device: torch.device, fresh: bool
) -> tuple["Trained | None", "Pretrained | None"]:
    """Return the teacher that task.teacher= names, and the pretrained model that init_from= names.

    Return None for a setting that is null, and for the pretrained model unless the run is `fresh`.
    """
    teacher = None
    pretrained = None
    if isinstance(config.task, DistillConfig):
        from vit_train.trained.load import load  # rarely needed

        teacher = load(config.task.teacher, device)
    if fresh and config.init_from is not None:
        from vit_train.interop import pretrained as library  # rarely needed

        vit = require_vit(config.model, f"init_from={config.init_from}")
        pretrained = library.pretrained(config.init_from, vit)
    return teacher, pretrained


def flops_of(config: TrainConfig, teacher: ModelConfig | None, data: DataFacts) -> Flops | None:
    """Return the FLOPs for one image; None if counting would need too much memory.

    The count does not depend on the machine.
    """
    shape = data.image_shape
    classes = len(data.classes)
    for model in filter(None, (config.model, teacher)):
        if attention_gradient_bytes(model, shape[1:]) > memory_bytes() / 4:
            return None
    flops = count_flops(config.task, config.model, shape, classes)
    if teacher is None:
        return flops
    return replace(flops, teacher=count_flops(config.task, teacher, shape, classes).forward)


def with_pretrained(config: TrainConfig, pretrained: "Pretrained | None") -> TrainConfig:
    """Return the config with a value for each null setting; pretrained weights determine some.

    Settings that the user has changed are left as they are: weights that do not fit these are
    rejected later.
    """
    vit = config.model
    if not isinstance(vit, ViTConfig):
        return config.settled()
    known: dict[str, Any] = {"model.from_weights": True}
    if pretrained is not None:
        config = with_settings(config, {"model.norm_eps": vit.norm_eps or pretrained.config.eps})
        found = differences(pretrained.config, vit) if vit.from_weights else {}
        if not is_default(config, "model.mlp_ratio"):  # the user has set the width of the MLP
            found.pop("model.mlp_dim", None)
        found |= fine_tuning(config, pretrained)
        found = {key: value for key, value in found.items() if is_default(config, key)}
        if found:
            logger.info(
                f"settings for init_from={config.init_from} (yours take precedence): "
                f"{as_arguments(found)}"
            )
        known |= found
    return with_settings(config, known).settled()


def fine_tuning(config: TrainConfig, pretrained: "Pretrained") -> dict[str, Any]:
    """Return the usual values of settings for fine-tuning.

    For your own images, these include the pretrained model's image size. For a pretrained
    classifier whose weights are all trained, they include `fine_tuning` of the settings' classes.
    The encoders of this program's autoencoders need as much training as random weights.
    """
    found: dict[str, Any] = {}
    if isinstance(config.data, FolderConfig | TorchvisionConfig) and pretrained.image_size:
        found["data.image_size"] = pretrained.image_size
    is_classifier = pretrained.layout or "head.weight" in pretrained.state
    if is_classifier and isinstance(config.task, LabelsConfig) and not config.train.freeze:
        found |= {f"optim.{name}": value for name, value in config.optim.fine_tuning.items()}
        if config.train.minutes is None:
            found |= {f"train.{name}": value for name, value in config.train.fine_tuning.items()}
    return found


def is_default(config: TrainConfig, key: str) -> bool:
    """Return True if a setting, such as "train.epochs", has its default value."""
    group, _, name = key.partition(".")
    part = getattr(config, group)
    return getattr(part, name) == getattr(type(part), name)  # type: ignore[no-any-return]


def with_named_runs(config: TrainConfig, own: Path, earlier: Path | None) -> TrainConfig:
    """In settings that name a run, replace a folder of runs by its newest finished run.

    If the folder stayed in the config, a resumed run could load a different model, because a newer
    run may have been added to the folder. If the run that data.split_as names no longer exists,
    name a run with the same splits instead: the run in the folder `earlier`, which this one
    continues, or this run, in the folder `own`. For data.decisions, name the copy in that run's
    folder, because the user may have edited the file since.
    """
    given = values(config)
    found = {
        key: run_at(Path(given[key]))
        for key in ("init_from", "task.teacher", "data.split_as")
        if given.get(key) is not None
    }
    other = found.get("data.split_as")
    same = earlier or own
    if other and not (other / IMAGES).is_file() and (same / IMAGES).is_file():
        found["data.split_as"] = same
    if given.get("data.decisions") is not None and (same / APPLIED).is_file():
        found["data.decisions"] = same / APPLIED
    return with_settings(config, {key: str(run) for key, run in found.items()})


def balances(config: TrainConfig) -> bool:
    """Return True if data.sampler or task.class_weights balances uneven classes."""
    weights = getattr(config.task, "class_weights", None)
    return weights is not None or config.data.sampler == "balanced"


def best_metric(config: TrainConfig, task: Task, data: RunData) -> str:
    """Return the name of the validation metric that selects the best epoch.

    With checkpoint.metric=auto, the metric depends on the task and on whether the classes of the
    training images are uneven. Raise ValueError if the task does not measure the metric.
    """
    metric = config.checkpoint.metric
    if metric not in ("auto", *task.selecting):
        raise ValueError(
            f"checkpoint.metric={metric} is not a metric of task={config.task.name}: set "
            f"checkpoint.metric={' or checkpoint.metric='.join(task.selecting)}"
        )
    if metric != "auto":
        return metric
    if task.best_by != "acc":
        return task.best_by
    uneven = balances(config) or is_uneven(data.train.class_counts(len(data.facts.classes)))
    return "balanced_acc" if uneven else "acc"
