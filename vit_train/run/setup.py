"""The parts of a run, built from its config."""

import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.memory import memory_bytes
from vit_train.base.text import counted, printable
from vit_train.config.data import DataConfig
from vit_train.config.fields import chosen, sides
from vit_train.config.model import ModelConfig, ViTConfig
from vit_train.config.run import TrainConfig
from vit_train.data.batches import Batch, EvalBatches, Normalize, TrainBatches
from vit_train.data.dataset import (
    DataFacts,
    ImageSet,
    Statistics,
    channel_statistics,
    load_dataset,
    valid_statistics,
)
from vit_train.data.splits import Splits, make_splits
from vit_train.loop.distributed import Processes
from vit_train.loop.metrics import is_uneven
from vit_train.loop.objective import TrainLoader
from vit_train.loop.precision import Precision, pick_precision
from vit_train.loop.schedule import SCHEDULES
from vit_train.model.build import (
    attention_gradient_bytes,
    on_meta,
    require_model_fits,
)
from vit_train.model.cnn import FastCnn
from vit_train.model.patches import require_whole_patches
from vit_train.run.start import (
    checked_teacher,
    data_facts,
    fine_tuned,
    first_model,
    first_weights,
    load_teacher,
    seen_by_earlier_models,
    unseen_test,
)
from vit_train.tasks.classify import Distill
from vit_train.tasks.make import Flops, count_flops, make_task
from vit_train.tasks.task import Task, require_labels
from vit_train.trained.checkpoint import Checkpoint

# Enough images for the covariance of small patches.
WHITENED_IMAGES = 5000


@dataclass(frozen=True)
class Setup:
    """A run's model, task and data.

    `origin` describes the source of the model's initial weights; "" means random weights.
    """

    config: TrainConfig
    precision: Precision
    processes: Processes
    data: DataFacts
    splits: Splits
    train_set: ImageSet
    # This process's share of augmented batches of the training images.
    image_loader: TrainBatches
    statistics: Statistics
    normalize: Normalize
    task: Task
    model: nn.Module
    origin: str
    # Facts about the teacher, and its model; empty without one.
    teacher: dict[str, str]
    teacher_model: ModelConfig | None

    @cached_property
    def train_loader(self) -> TrainLoader:
        """Return this process's share of the augmented batches, with the task's targets."""
        weights = self.train_set.weights
        batches = self.image_loader if weights is None else self.image_loader.weighted(weights)
        return self.task.train_loader(batches)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the numbers of images for training, validation and testing."""
        return {
            "train": len(self.train_set),
            "val": len(self.splits.val or ()),
            "test": len(self.splits.test),
        }

    def image_rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the rows of a table of all images: their names, classes and splits."""
        yield "path", "tags" if self.train_set.has_tags else "label", "split"
        for split, part in self.splits.parts.items():
            labels = part.label_names(self.data.classes)
            for name, label in zip(part.all_names, labels, strict=True):
                yield printable(name), label, split

    @cached_property
    def flops(self) -> Flops | None:
        """Return the FLOPs of all matrix products for one image.

        The count does not depend on the machine. Return None if counting would need too much
        memory.
        """
        shape, count = self.data.image_shape, len(self.data.classes)
        models = [model for model in (self.config.model, self.teacher_model) if model]
        if max(attention_gradient_bytes(each, shape[1:]) for each in models) > memory_bytes() / 4:
            return None
        own, *teachers = (count_flops(self.config.task, each, shape, count) for each in models)
        return replace(own, teacher=sum(each.forward for each in teachers))

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

    def unaugmented(self, part: ImageSet) -> Iterable[Batch]:
        """Return this process's unaugmented batches of a split, with the task's targets."""
        images = EvalBatches(
            part,
            self.normalize,
            self.config.train.eval_batch_size,
            self.precision.device,
            rank=self.processes.rank,
            ranks=self.processes.count,
        )
        return self.task.eval_loader(images)


def set_up(
    config: TrainConfig,
    device: torch.device,
    processes: Processes,
    checkpoint: Checkpoint | None = None,
    chosen_keys: Collection[str] = (),
) -> Setup:
    """Load the data, and build the model and the task.

    `chosen_keys` names the settings on the command line.

    The normalization of the `checkpoint` to resume, extend or fork is used here; its weights are
    loaded later.
    """
    # Raise ValueError for an unknown schedule now, not after the data are loaded.
    chosen(SCHEDULES, "optim.schedule", config.optim.schedule)
    # Building a model draws random numbers, so this comes before the seed is set.
    teacher = load_teacher(config, device)
    pretrained = first_weights(config, resumes=checkpoint is not None)
    config = fine_tuned(config, pretrained, chosen_keys)

    torch.manual_seed(config.seed)
    if isinstance(config.model, ViTConfig) and config.data.image_size is not None:
        require_whole_patches(config.model.patch_size, sides(config.data.image_size))
    data = load_dataset(config.data)
    config = replace(config, data=replace(config.data, **data.settings))
    task = make_task(config.task, config.model, data.image_shape, len(data.classes))
    require_labels(task, data.train)
    require_model_fits(
        config.model,
        on_meta(task.build_model, config.model),
        data.image_shape,
        # Weights, gradients, AdamW's two moments and, if kept, the average of the weights.
        copies=5 if config.train.ema_decay else 4,
    )
    model, origin = first_model(config, task, data, processes, pretrained)
    if processes.rank:  # on a GPU, each process draws its own dropout
        torch.manual_seed(config.seed + processes.rank)

    seen_before = seen_by_earlier_models(checkpoint, pretrained, teacher, data, config.data)
    splits = make_splits(unseen_test(data, seen_before), config.data)
    facts = data_facts(data, splits, config.data, seen_before)
    train_set = (
        without_weight_zero(splits.train)
        if task.needs_labels
        else with_unlabeled(splits.train, data.unlabeled)
    )
    del data  # the splits hold copies

    statistics = chosen_statistics(
        config.data, checkpoint, pretrained.statistics if pretrained else None, train_set.images
    )
    normalize = Normalize(statistics, device)
    if isinstance(task, Distill) and teacher is not None:
        task.teacher = checked_teacher(task.config, teacher, facts, normalize)
    task.best_by = best_metric(config, task, train_set, facts)
    model = model.to(device)  # first, because the images take the rest of a GPU's memory
    if isinstance(model, FastCnn):
        model.whiten(normalize(train_set.images[:WHITENED_IMAGES].to(device)))
    image_loader = augmented(config, train_set, facts, normalize, processes)
    task.prepare(train_set.labels.to(device), train_set.weights is not None)
    # With precision=auto, the processes may measure different speeds.
    precision = processes.broadcast(pick_precision(config.precision, device, model))
    return Setup(
        config=replace(config, precision=precision.name),
        precision=precision,
        processes=processes,
        data=facts,
        splits=splits,
        train_set=train_set,
        image_loader=image_loader,
        statistics=statistics,
        normalize=normalize,
        task=task,
        model=model,
        origin=origin,
        teacher={
            "checkpoint": str(teacher.meta.path),
            "weights": teacher.meta.weights,
            "fingerprint": teacher.meta.checksum,
        }
        if teacher
        else {},
        teacher_model=teacher.meta.config.model if teacher else None,
    )


def without_weight_zero(train_set: ImageSet) -> ImageSet:
    """Leave out the training images of weight 0; raise ValueError if no image remains."""
    if train_set.weights is None:
        return train_set
    kept = train_set.weights.nonzero().squeeze(1)
    if not len(kept):
        raise ValueError("all training images have weight 0: change the column weight of the table")
    low, high = train_set.weights[kept].aminmax()
    logger.info(
        f"column weight: {counted(len(kept), 'training image')} with weights from {low:g} to "
        f"{high:g}, {len(train_set) - len(kept):,} left out with weight 0"
    )
    return train_set.subset(kept)


def with_unlabeled(train_set: ImageSet, images: Tensor | None) -> ImageSet:
    """Add unlabeled images (N,C,H,W), if given, to the training images."""
    if images is None:
        return train_set
    return train_set.with_others(ImageSet(images, torch.full((len(images),), -1)))


def augmented(
    config: TrainConfig,
    train_set: ImageSet,
    facts: DataFacts,
    normalize: Normalize,
    processes: Processes,
) -> TrainBatches:
    """Return this process's share of the augmented batches.

    Raise ValueError if a batch has fewer images than there are processes.
    """
    batches = TrainBatches(
        train_set,
        len(facts.classes),
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
    count, size = len(train_set), batches.batch_size
    if count % size > count / 10:
        other = min(range(size, size // 2, -1), key=lambda each: count % each)
        logger.warning(
            f"each epoch leaves out {count % size:,} of {counted(count, 'training image')}, other "
            f"ones each time, because they do not fill a batch of {size}: "
            f"train.batch_size={other} leaves out {count % other:,}"
        )
    return batches


def balances(config: TrainConfig) -> bool:
    """Return True if data.sampler or task.class_weights balances uneven classes."""
    has_class_weights = getattr(config.task, "class_weights", None) is not None
    return has_class_weights or config.data.sampler == "balanced"


def best_metric(config: TrainConfig, task: Task, images: ImageSet, data: DataFacts) -> str:
    """Return the name of the validation metric that selects the best epoch.

    With checkpoint.metric=auto, the metric depends on the task and on whether the classes of the
    training `images` are uneven. Raise ValueError if the task does not measure the metric.
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
    uneven = balances(config) or is_uneven(images.class_counts(len(data.classes)))
    return "balanced_acc" if uneven else "acc"


def chosen_statistics(
    config: DataConfig, earlier: Checkpoint | None, pretrained: Statistics | None, images: Tensor
) -> Statistics:
    """Return the mean and standard deviation, per channel, for normalizing images.

    For a run that continues from an `earlier` checkpoint, use the checkpoint's values. Otherwise,
    use the first values that exist: those in the settings, those of the pretrained model, or those
    of the training `images`. Raise ValueError if the values are invalid, such as a standard
    deviation of 0.
    """
    given = earlier or config
    if given.mean is not None and given.std is not None:
        return valid_statistics(given.mean, given.std)
    return pretrained or channel_statistics(images)
