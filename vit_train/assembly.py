"""The parts of a run, put together as its config says."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from vit_train.config import TrainConfig
from vit_train.data.batches import Batch, EvalBatches, Normalise, TrainBatches
from vit_train.data.dataset import Dataset, ImageSet, Statistics, channel_statistics
from vit_train.data.sources import load_dataset
from vit_train.data.splits import Splits, make_splits
from vit_train.engine.device import Precision
from vit_train.engine.processes import Processes
from vit_train.engine.trainer import Source
from vit_train.tasks.registry import make_task
from vit_train.tasks.task import Task
from vit_train.trained import begin_from


@dataclass(frozen=True)
class Parts:
    """What is trained on what. `images` are those trained on, `photos` as batches, augmented."""

    config: TrainConfig
    precision: Precision
    processes: Processes
    data: Dataset
    splits: Splits
    images: ImageSet
    statistics: Statistics
    normalise: Normalise
    task: Task
    model: nn.Module
    photos: TrainBatches

    @property
    def device(self) -> torch.device:
        return self.precision.device

    @cached_property
    def batches(self) -> Source:
        """What is trained on: `photos` with the task's targets."""
        return self.task.train_batches(self.photos)

    @cached_property
    def val(self) -> Iterable[Batch] | None:
        return None if self.splits.val is None else self.unaugmented(self.splits.val)

    def unaugmented(self, part: ImageSet) -> Iterable[Batch]:
        """This process's share of a split, as the task's batches."""
        size, processes = self.config.train.eval_batch_size, self.processes
        photos = EvalBatches(
            part, self.normalise, size, self.device, processes.rank, processes.count
        )
        return self.task.eval_batches(photos)


def assemble(
    config: TrainConfig, precision: Precision, processes: Processes, fresh: bool = True
) -> Parts:
    """Load the data and build the model; without `fresh` its weights are to be loaded later."""
    torch.manual_seed(config.seed)
    data = load_dataset(config.data)
    splits = make_splits(data, config.data)
    task = make_task(config.task, config.model, data.image_shape, len(data.classes))
    model = task.build_model()
    if fresh and config.init_from is not None:
        begin_from(config.init_from, model)

    if processes.rank:
        torch.manual_seed(config.seed + processes.rank)  # its own dropout, on a GPU

    images, device = splits.train, precision.device
    if data.unlabelled is not None and not task.needs_labels:
        images = with_unlabelled(images, data.unlabelled)
    statistics = channel_statistics(images.images)
    normalise = Normalise(statistics, device)
    photos = TrainBatches(
        images,
        len(data.classes),
        normalise,
        config.augment,
        config.train.batch_size,
        config.seed,
        device,
        processes.rank,
        processes.count,
    )
    return Parts(
        config,
        precision,
        processes,
        data,
        splits,
        images,
        statistics,
        normalise,
        task,
        model.to(device),
        photos,
    )


def with_unlabelled(train: ImageSet, unlabelled: Tensor) -> ImageSet:
    """For tasks that need no labels; −1 stands for none."""
    labels = torch.full((len(unlabelled),), -1)
    return ImageSet(torch.cat((train.images, unlabelled)), torch.cat((train.labels, labels)))
