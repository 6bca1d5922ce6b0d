"""Training, validation and test: who is allowed to see which image."""

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
        """The split called train, val or test; ValueError if there is none."""
        chosen = {"train": self.train, "val": self.val, "test": self.test}.get(name)
        if chosen is None:
            raise ValueError(f"this run has no split called {name!r}")
        return chosen


def make_splits(dataset: Dataset, config: DataConfig) -> Splits:
    """Carve validation from the training set where the source has none, then take the subsets.

    All is stratified and seeded.
    """
    train, test = dataset.train, dataset.test
    val = dataset.val if config.val == "split" else None
    if config.test_subset is not None:
        index, _ = stratified(test.labels, config.test_subset, config.split_seed, "test_subset")
        test = test.subset(index)
    if config.val == "split" and val is None:
        remedy = "set data.val=none to do without"
        train, val = set_apart(
            train, config.val_fraction, config.split_seed, "validation", "val_fraction", remedy
        )
    elif config.val == "test":
        val = test
    if config.train_subset is not None:
        index, _ = stratified(train.labels, config.train_subset, config.split_seed, "train_subset")
        train = train.subset(index)
    return Splits(train, val, test)


def set_apart(
    images: ImageSet, fraction: float, seed: int, purpose: str, field: str, remedy: str
) -> tuple[ImageSet, ImageSet]:
    """What stays for training and what goes to the purpose; ValueError if nothing would stay."""
    count = max(1, round(len(images) * fraction))
    if count >= len(images):
        every = "the only image" if count == 1 else f"all {count} images"
        smaller = "" if count == 1 else f"set a smaller data.{field}, "
        raise ValueError(
            f"data.{field}={fraction} sets {every} apart for {purpose}, which leaves none for "
            f"training: add images, {smaller}or {remedy}"
        )
    index, rest = stratified(images.labels, count, seed, field)
    return images.subset(rest), images.subset(index)


def stratified(labels: Tensor, count: int, seed: int, field: str) -> tuple[Tensor, Tensor]:
    """Sorted indices of `count` images, every class in its share to within one, and of the rest.

    Each class's images are shuffled and spread evenly over 0…1; the first `count` of all are
    taken, so that a class with share s gives s · count images.
    """
    if count > len(labels):
        raise ValueError(f"data.{field} asks for {count} images of {len(labels)}: ask for fewer")
    generator = torch.Generator().manual_seed(seed)
    place = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator)]
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        place[members] = (torch.arange(len(members)) + offset) / len(members)
    order = place.argsort(stable=True)
    return order[:count].sort().values, order[count:].sort().values
