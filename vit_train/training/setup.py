"""The parts of a run, built from its config."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vit_train.base.memory import (
    memory_bytes,
    require_attention_fits,
    require_images_fit,
    require_memory,
)
from vit_train.base.text import listed
from vit_train.data.batches import Batch, EvalBatches, Normalize
from vit_train.data.config import DataConfig
from vit_train.data.dataset import (
    ImageSet,
    Source,
    Splits,
    Statistics,
    channel_statistics,
    make_splits,
)
from vit_train.data.sources import load_dataset
from vit_train.data.train_batches import TrainBatches
from vit_train.engine.distributed import Processes
from vit_train.engine.metrics import is_uneven
from vit_train.engine.objective import TrainLoader, evaluate
from vit_train.engine.precision import Precision, pick_precision
from vit_train.model.build import (
    Flops,
    attention_bytes,
    bytes_of,
    count_flops,
    counting_bytes,
    on_meta,
    require_few_patches,
)
from vit_train.model.config import ViTConfig
from vit_train.model.patches import require_whole_patches
from vit_train.runs.checkpoint import Checkpoint
from vit_train.runs.config import TrainConfig
from vit_train.runs.trained import Meta, Trained, statistics_of
from vit_train.tasks.classify import Distill, Teacher
from vit_train.tasks.config import ClassifyConfig, DistillConfig
from vit_train.tasks.make import make_task
from vit_train.tasks.task import Task
from vit_train.training.first_model import (
    first_model,
    first_weights,
    inherited,
    known_source,
    unseen_test,
    with_norm_eps,
)


@dataclass(frozen=True)
class Setup:
    """A run's model, task and data.

    `origin` says in words where the model's first weights come from; "" means random ones.
    """

    config: TrainConfig
    precision: Precision
    processes: Processes
    data: Source
    splits: Splits
    train_set: ImageSet
    # This process's share of augmented batches of the training images.
    image_loader: TrainBatches
    statistics: Statistics
    normalize: Normalize
    task: Task
    model: nn.Module
    origin: str
    # What is known of the teacher, for the provenance; empty without one.
    teacher: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.precision.device

    @cached_property
    def train_loader(self) -> TrainLoader:
        """Return the image loader's batches with the task's targets."""
        return self.task.train_loader(self.image_loader)

    @cached_property
    def val_loader(self) -> Iterable[Batch] | None:
        return None if self.splits.val is None else self.unaugmented(self.splits.val)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the numbers of images that are trained on, validated on and tested on."""
        val = 0 if self.splits.val is None else len(self.splits.val)
        return {"train": len(self.train_set), "val": val, "test": len(self.splits.test)}

    @cached_property
    def flops(self) -> Flops | None:
        """Return the FLOPs of all matrix products for one image, a cost that machines share.

        None for tasks that add a decoder or a teacher, and if counting would take much memory.
        """
        if not isinstance(self.config.task, ClassifyConfig):
            return None
        shape, classes = self.data.image_shape, len(self.data.classes)
        if counting_bytes(self.config.model, shape[-1]) > memory_bytes() / 4:
            return None
        return count_flops(self.config.model, shape, classes)

    def training_tflop(self, images: int) -> float | None:
        """Return the TFLOP of training on this number of images, if it is known."""
        if self.flops is None:
            return None
        # Of a frozen encoder the gradient is not computed; the head's own is next to nothing.
        frozen = self.config.train.freeze is not None
        return images * (self.flops.forward if frozen else self.flops.training) / 1e12

    @property
    def shown_loader(self) -> Iterable[Batch]:
        """Return batches to draw pictures of: validation or, without it, training images."""
        return self.val_loader or self.unaugmented(self.splits.train)

    def unaugmented(self, part: ImageSet) -> Iterable[Batch]:
        """Return this process's share of a split as batches for the task."""
        images = EvalBatches(
            part,
            self.normalize,
            self.config.train.eval_batch_size,
            self.device,
            rank=self.processes.rank,
            ranks=self.processes.count,
        )
        return self.task.eval_loader(images)


def set_up(
    config: TrainConfig,
    device: torch.device,
    processes: Processes,
    earlier: Checkpoint | None = None,
    teacher: Trained | None = None,
) -> Setup:
    """Load the data and build the model.

    The weights of an `earlier` checkpoint, to resume from or to extend, are loaded later. `teacher`
    is the trained classifier of a distilled run.
    """
    found = first_weights(config, resumes=earlier is not None)
    config = with_norm_eps(config, found)
    torch.manual_seed(config.seed)
    if isinstance(config.model, ViTConfig) and config.data.image_size is not None:
        require_whole_patches(config.model.patch_size, config.data.image_size)  # or files are read
    data = load_dataset(config.data)
    task = make_task(config.task, config.model, data.image_shape, len(data.classes))
    require_room(config, task, data.image_shape[-1])
    model, origin = first_model(config, task, data, processes, found)

    if earlier is None:
        models = found.seen if found else None, teacher.meta.all_seen if teacher else None
        seen_before = inherited(models, data, config.data)
    else:
        seen_before = earlier.seen_before
    splits = make_splits(unseen_test(data, seen_before), config.data)
    source = known_source(data, splits, config.data, seen_before)
    unlabeled = data.unlabeled
    del data  # the splits hold copies
    if processes.rank:
        # On a GPU each process draws its own dropout.
        torch.manual_seed(config.seed + processes.rank)

    train_set = splits.train
    if unlabeled is not None and not task.needs_labels:
        train_set = with_unlabeled(train_set, unlabeled)
    statistics = chosen_statistics(
        config.data, earlier, found.statistics if found else None, train_set.images
    )
    normalize = Normalize(statistics, device)
    if teacher is not None:
        task = taught(config, teacher, source, normalize)
    task.best_by = best_metric(config, task, train_set, source)
    model = model.to(device)  # first, because the images take what is left of a GPU
    image_loader = augmented(config, train_set, source, normalize, processes)
    task.prepare(train_set.labels.to(device))
    precision = agreed_precision(config.precision, device, model, processes)
    setup = Setup(
        config=replace(config, precision=precision.name),
        precision=precision,
        processes=processes,
        data=source,
        splits=splits,
        train_set=train_set,
        image_loader=image_loader,
        statistics=statistics,
        normalize=normalize,
        task=task,
        model=model,
        origin=origin,
    )
    if teacher is None:
        return setup
    return replace(setup, teacher=teacher_facts(teacher.meta, setup))


def with_unlabeled(train_set: ImageSet, images: Tensor) -> ImageSet:
    """Add images without labels, (N,C,S,S), to the training images."""
    count = len(train_set) + len(images)
    require_images_fit(count, images.shape[-1], "data.unlabeled=true")
    return train_set.with_others(ImageSet(images, torch.full((len(images),), -1)))


def augmented(
    config: TrainConfig,
    train_set: ImageSet,
    source: Source,
    normalize: Normalize,
    processes: Processes,
) -> TrainBatches:
    """Return this process's share of augmented batches; raise ValueError if it has none."""
    batches = TrainBatches(
        train_set,
        len(source.classes),
        normalize,
        config.augment,
        config.train.batch_size,
        config.seed,
        normalize.scale.device,
        rank=processes.rank,
        ranks=processes.count,
        sampler=config.data.sampler,
    )
    if batches.batch_size < processes.count:
        raise ValueError(
            f"train.batch_size={batches.batch_size} is smaller than the number of processes "
            f"({processes.count})"
        )
    return batches


def taught(config: TrainConfig, teacher: Trained, data: Source, normalize: Normalize) -> Distill:
    """Return the task with its teacher; raise ValueError if it cannot teach these images."""
    assert isinstance(config.task, DistillConfig)
    model, meta = teacher
    sizes = meta.image_shape[1], data.image_shape[1]
    if not meta.task.needs_labels:
        problem = f"a run with task={meta.config.task.name} does not classify images"
    elif meta.classes != list(data.classes):
        problem = (
            f"its classes are {listed(meta.classes)}, but those of this run's data are "
            f"{listed(data.classes)}"
        )
    elif meta.image_shape != data.image_shape:
        problem = (
            f"it was trained on images of {sizes[0]} by {sizes[0]}, but this run has {sizes[1]} by "
            f"{sizes[1]}: set data.image_size={sizes[0]}"
        )
    else:
        task = Distill(config.task, config.model, data.image_shape, len(data.classes))
        task.teacher = Teacher(model, teacher.normalize, normalize)
        return task
    raise ValueError(f"task.teacher={config.task.teacher}: {problem}")


def teacher_facts(meta: Meta, setup: Setup) -> dict[str, Any]:
    """Return the facts of the teacher, with its accuracy on this run's validation images."""
    task, config = setup.task, setup.config.task
    assert isinstance(task, Distill) and task.teacher is not None
    assert isinstance(config, DistillConfig)
    accuracy = None
    if setup.val_loader is not None:
        on_validation = evaluate(
            task.teacher, task, setup.val_loader, setup.precision, processes=setup.processes
        )
        accuracy = on_validation.values["acc"]
    return {
        "run": config.teacher,
        "checkpoint": str(meta.path),
        "weights": meta.weights,
        "fingerprint": meta.checksum,
        "val_acc": accuracy,
    }


def agreed_precision(
    name: str, device: torch.device, model: nn.Module, processes: Processes
) -> Precision:
    """Return the precision of this name; auto is for all processes what it is for the main one."""
    if processes.is_main:
        name = pick_precision(name, device, model).name
    return pick_precision(processes.broadcast(name), device, model)


def class_counts(images: ImageSet, data: Source) -> list[int]:
    """Return the number of images of each class."""
    return images.labels.bincount(minlength=len(data.classes)).tolist()


def makes_up(config: TrainConfig, task: Task) -> bool:
    """Check for settings that make up for classes of uneven size."""
    return config.data.sampler == "balanced" or task.weighs


def best_metric(config: TrainConfig, task: Task, images: ImageSet, data: Source) -> str:
    """Return the name of the value that tells the best epoch of training on these images.

    Raise ValueError if the task has no such value.
    """
    metric = config.checkpoint.metric
    if not task.needs_labels:
        if config.data.sampler == "balanced":
            raise ValueError(
                f"data.sampler=balanced needs labels: task={config.task.name} has none"
            )
        if metric not in ("auto", "loss"):
            raise ValueError(
                f"checkpoint.metric={metric} needs labels: task={config.task.name} has none"
            )
        return "loss"
    if metric != "auto":
        return metric
    uneven = makes_up(config, task) or is_uneven(class_counts(images, data))
    return "balanced_acc" if uneven else "acc"


def chosen_statistics(
    config: DataConfig, earlier: Checkpoint | None, pretrained: Statistics | None, images: Tensor
) -> Statistics:
    """Return the mean and std to normalize images with.

    They are those of the resumed run, or those that are set, or those that the pretrained model has
    seen, or the training images' own. Raise ValueError if they are for other images.
    """
    channels = images.shape[1]
    if earlier is not None:
        return statistics_of(earlier.mean, earlier.std, channels)
    if config.mean is not None and config.std is not None:
        if len(config.mean) != channels:
            raise ValueError(
                f"data.mean={config.mean} must have {channels} numbers, one for each channel"
            )
        return Statistics(tuple(config.mean), tuple(config.std))
    return pretrained or channel_statistics(images)


def require_room(config: TrainConfig, task: Task, image_size: int) -> None:
    """Raise ValueError, before taking memory, if this machine cannot train the model."""
    require_few_patches(config.model, image_size)
    model = on_meta(task.build_model, config.model, config.task.layers)
    # Weights, gradients, AdamW's two moments and, if there is one, the average of the weights.
    copies = 4 + bool(config.train.ema_decay)
    require_memory(
        copies * bytes_of(model.parameters()) + bytes_of(model.buffers()),
        f"{config.model.size_settings}: training such a model",
        "choose a smaller model",
    )
    require_attention_fits(attention_bytes(config.model, image_size), image_size)
