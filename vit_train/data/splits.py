"""Splits of a data set into training, validation and test images."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vit_train.data.config import DataConfig
from vit_train.data.dataset import Dataset, ImageSet


@dataclass(frozen=True)
class Splits:
    train: ImageSet
    val: ImageSet | None
    test: ImageSet

    def named(self, name: str) -> ImageSet:
        """Return the split called train, val or test; raise ValueError if there is none."""
        chosen = {"train": self.train, "val": self.val, "test": self.test}.get(name)
        if chosen is None:
            raise ValueError(f"this run has no split called {name!r}")
        return chosen


def make_splits(dataset: Dataset, config: DataConfig) -> Splits:
    """Split validation images off the training set if the source has none, then take the subsets.

    With data.cv_folds, one fold of all images that are not for testing is for validation. All
    splits and subsets are stratified and seeded.
    """
    train, test = dataset.train, subset(dataset.test, "test_subset", config)
    val = dataset.val if config.val == "split" else None
    if config.cv_folds is not None:
        train, val = one_fold(train if val is None else train.with_others(val), config)
    elif config.val == "split" and val is None:
        remedy = "set data.val=none to do without"
        train, val = set_apart(train, "val_fraction", config, "validation", remedy)
    elif config.val == "test":
        val = test
    if val is not None:
        val = subset(val, "val_subset", config)
    return Splits(subset(train, "train_subset", config), val, test)


def one_fold(images: ImageSet, config: DataConfig) -> tuple[ImageSet, ImageSet]:
    """Return the images of all other folds, for training, and those of data.cv_fold.

    Every image is in exactly one fold. The images are shuffled and dealt out in turn, class after
    class, so that the sizes of the folds, and of a class in them, differ by one at most. Raise
    ValueError if there are fewer images than folds.
    """
    folds, fold = config.cv_folds, config.cv_fold
    assert folds is not None and fold is not None
    if folds > len(images):
        raise ValueError(f"data.cv_folds={folds} needs as many images, found only {len(images)}")
    generator = torch.Generator().manual_seed(config.split_seed)
    shuffled = torch.randperm(len(images), generator=generator)
    by_class = shuffled[images.labels[shuffled].argsort(stable=True)]
    dealt = torch.arange(len(images)) % folds == fold
    train, val = (by_class[part].sort().values for part in (~dealt, dealt))
    return images.subset(train), images.subset(val)


def subset(images: ImageSet, field: str, config: DataConfig) -> ImageSet:
    """Return as many of the images as the config's `field` says; all of them for null."""
    count = getattr(config, field)
    if count is None:
        return images
    if count > len(images):
        raise ValueError(
            f"data.{field}={count} is more than there are: choose at most {len(images)}"
        )
    return images.subset(stratified(images.labels, count, config.split_seed)[0])


def sample(images: ImageSet, count: int) -> ImageSet:
    """Return `count` images, or all if they are fewer, of each class about its share.

    They are always the same ones.
    """
    return images.subset(stratified(images.labels, min(count, len(images)), seed=0)[0])


def set_apart(
    images: ImageSet, field: str, config: DataConfig, purpose: str, remedy: str
) -> tuple[ImageSet, ImageSet]:
    """Return the images left for training, and the share set apart that `field` says.

    Of each class at least one image is left, as long as others can be set apart. Raise
    ValueError if none would be left.
    """
    fraction = getattr(config, field)
    count = max(1, round(len(images) * fraction))
    if count >= len(images):
        every = "the only image" if count == 1 else f"all {count} images"
        smaller = "" if count == 1 else f"set a smaller data.{field}, "
        raise ValueError(
            f"data.{field}={fraction} sets {every} apart for {purpose}, which leaves none for "
            f"training: add images, {smaller}or {remedy}"
        )
    index, rest = stratified(images.labels, count, config.split_seed, leave_one=True)
    return images.subset(rest), images.subset(index)


def stratified(
    labels: Tensor, count: int, seed: int, leave_one: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of `count` images, and of the rest.

    Each class keeps about its share: its images are shuffled and spread evenly over 0…1 from a
    random offset, and the first `count` of all images are taken. Classes of one size differ by one
    image at most; beside many classes of a few images, a large one can be off by several.
    With `leave_one`, one image of each class is taken only after all others.
    """
    generator = torch.Generator().manual_seed(seed)
    place = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator)]
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        place[members] = (torch.arange(len(members)) + offset) / len(members)
        if leave_one:
            place[members[-1]] = math.inf
    order = place.argsort(stable=True)
    return order[:count].sort().values, order[count:].sort().values
