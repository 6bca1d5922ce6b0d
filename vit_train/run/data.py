"""A run's images: what is trained on, validated on and tested on, and how it is normalized."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.text import counted, printable
from vit_train.config.data import LEFT_OUT_OF, DataConfig, FolderConfig
from vit_train.config.run import TrainConfig
from vit_train.data.batches import Normalize, TrainBatches
from vit_train.data.dataset import (
    DataFacts,
    Dataset,
    ImageSet,
    Statistics,
    are_among,
    channel_statistics,
    image_keys,
    valid_statistics,
    without,
)
from vit_train.data.splits import Splits, make_splits
from vit_train.loop.distributed import Processes
from vit_train.tasks import Task
from vit_train.trained.checkpoint import Checkpoint

if TYPE_CHECKING:  # rarely needed
    from vit_train.interop.pretrained import Pretrained
    from vit_train.trained.model import Trained


@dataclass(frozen=True)
class RunData:
    """The images of a run and what is known of them."""

    facts: DataFacts
    splits: Splits
    # What is trained on: the training split without images of weight 0 or with unlabeled images.
    train: ImageSet
    statistics: Statistics
    normalize: Normalize

    @property
    def sizes(self) -> dict[str, int]:
        """Return the numbers of images for training, validation and testing, and left out."""
        sizes = {
            "train": len(self.train),
            "val": len(self.splits.val or ()),
            "test": len(self.splits.test),
        }
        left_out = {name for part in self.splits.left_out.values() for name in part.all_names}
        return sizes | ({"left_out": len(left_out)} if left_out else {})

    def image_rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the rows of a table of all images: their names, classes and splits.

        Images that data.decisions leaves out have their split after LEFT_OUT_OF.
        """
        yield "path", "tags" if self.train.has_tags else "label", "split"
        left_out = {LEFT_OUT_OF + name: part for name, part in self.splits.left_out.items()}
        for split, part in (self.splits.parts | left_out).items():
            labels = part.label_names(self.facts.classes)
            for name, label in zip(part.all_names, labels, strict=True):
                yield printable(name), label, split


def divide_images(
    dataset: Dataset,
    config: DataConfig,
    task: Task,
    seen_before: Tensor | None,
    given: Checkpoint | DataConfig,
    pretrained: "Pretrained | None",
    device: torch.device,
) -> RunData:
    """Divide the images into splits, and choose what is trained on and how it is normalized.

    Test images whose keys are in `seen_before` are left out; warn of such validation images, unless
    the images seem to be divided as they were then. The mean and standard deviation for
    normalizing are, in this order, the `given` ones, those of the pretrained model, or those of the
    images that are trained on. Raise ValueError if they are invalid, such as a deviation of 0.
    """
    splits = make_splits(replace(dataset, test=unseen_test(dataset, seen_before)), config)
    if splits.val is not None and seen_before is not None:
        count = int(are_among(splits.val.images, seen_before).sum())
        # If all were seen, they were probably validation images then, too.
        is_same = count == len(splits.val) or getattr(config, "split_as", None)
        if count and (config.cv_folds or not is_same):
            logger.warning(
                f"the pretrained model or the teacher was trained or validated on {count:,} of "
                f"the {counted(len(splits.val), 'validation image')}, so validation results are "
                "too optimistic, and so are a temperature and thresholds fitted to these images"
            )
    facts = data_facts(dataset, splits, config, seen_before)
    train = training_images(splits.train, dataset.unlabeled, task)
    statistics = pretrained and pretrained.statistics
    if given.mean is not None and given.std is not None:
        statistics = valid_statistics(given.mean, given.std)
    statistics = statistics or channel_statistics(train.images)
    return RunData(facts, splits, train, statistics, Normalize(statistics, device))


def training_images(images: ImageSet, unlabeled: Tensor | None, task: Task) -> ImageSet:
    """Leave out images of weight 0; for tasks without labels, add the unlabeled ones (N,C,H,W).

    Raise ValueError if no image remains.
    """
    if not task.needs_labels:
        if unlabeled is None:
            return images
        return images.with_others(ImageSet(unlabeled, torch.full((len(unlabeled),), -1)))
    if images.weights is None:
        return images
    kept = images.with_weight()
    if not len(kept):
        raise ValueError("all training images have weight 0: change the column weight of the table")
    low, high = images.weights[images.weights > 0].aminmax()
    logger.info(
        f"column weight: {counted(len(kept), 'training image')} with weights from {low:g} to "
        f"{high:g}, {len(images) - len(kept):,} left out with weight 0"
    )
    return kept


def seen_by(
    pretrained: "Pretrained | None", teacher: "Trained | None", data: Dataset, config: DataConfig
) -> Tensor | None:
    """Return the keys of all images that the pretrained model and the teacher have seen.

    An image is seen if a model was trained or validated on it. If a test image was read otherwise
    then, such as at another size, include its key as this run reads it, too. Return None if no keys
    are known.
    """
    models = pretrained.seen if pretrained else None, teacher.meta.all_seen if teacher else None
    known = [seen for seen in models if seen is not None]
    keys = [seen.keys for seen in known]
    for seen in known:
        if isinstance(config, FolderConfig):
            as_then = replace(config, **seen.settings)
            if as_then != config:
                from vit_train.data.folder import reread  # rarely needed

                then = reread(data.test, as_then)
                keys.append(image_keys(data.test.images[are_among(then.images, seen.keys)]))
    return torch.cat(keys).unique() if keys else None


def unseen_test(data: Dataset, seen: Tensor | None) -> ImageSet:
    """Leave out the test images whose keys are in `seen`; raise ValueError if no image remains."""
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
    return test


def data_facts(
    data: Dataset, splits: Splits, config: DataConfig, seen_before: Tensor | None
) -> DataFacts:
    """Return a description of the data, with the keys of all images that the run must not test on.

    The keys are `seen_before` (images that the pretrained model or the teacher has seen) and, for
    your own images, the keys of the training and validation images, also of those that
    data.decisions leaves out. For your own images, also warn if copies of test images are among the
    training and validation images. For any data, warn if a class has no training images.
    """
    seen = seen_before
    if isinstance(config, FolderConfig):
        names = ("train",) if splits.val is None or config.val == "test" else ("train", "val")
        own = torch.cat([image_keys(splits.parts[name].images) for name in names])
        tested = image_keys(splits.test.images)
        # Images left out of training are not tested on later, unless a copy was kept for testing.
        left_out = [image_keys(splits.left_out[name].images) for name in names if splits.left_out]
        seen = torch.cat((own, *(keys[~torch.isin(keys, tested)] for keys in left_out)))
        if seen_before is not None:
            seen = torch.cat((seen, seen_before))
        if copies := int(torch.isin(tested, own).sum()):
            logger.warning(
                f"copies of {counted(copies, 'test image')} are among the training and "
                "validation images, which makes the test result too optimistic: remove the copies, "
                "which vit-data lists"
            )
    counts = splits.train.class_counts(len(data.classes))
    if 0 in counts:
        logger.warning(
            f"no training images of {data.classes[counts.index(0)]}, so the model cannot learn it: "
            "check data.train_subset, data.decisions and data.group_by (groups are never divided), "
            "or move its other images elsewhere"
        )
    return DataFacts(data.classes, data.image_shape, data.fingerprint, seen, seen_before)


def training_batches(config: TrainConfig, data: RunData, processes: Processes) -> TrainBatches:
    """Return this process's share of the augmented batches.

    Raise ValueError if a batch has fewer images than there are processes.
    """
    batches = TrainBatches(
        data.train,
        len(data.facts.classes),
        data.normalize,
        config.augment,
        config.train.batch_size,
        config.seed,
        data.normalize.scale.device,
        rank=processes.rank,
        ranks=processes.count,
        sampler=config.data.sampler,
    )
    if batches.batch_size < processes.count:
        raise ValueError(
            f"train.batch_size={batches.batch_size} is smaller than the number of processes "
            f"({processes.count})"
        )
    count = len(data.train)
    size = batches.batch_size
    if count % size > count / 10:
        other = min(range(size - 1, size // 2 - 1, -1), key=lambda each: count % each)
        logger.warning(
            f"each epoch leaves out {count % size:,} of {counted(count, 'training image')}, "
            f"different ones each time, because they do not fill a batch of {size}: "
            f"train.batch_size={other} leaves out {count % other:,}"
        )
    return batches
