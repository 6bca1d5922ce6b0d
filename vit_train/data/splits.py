"""Training, validation and test images: splits, folds and subsets, stratified by class."""

import re
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vit_train.base.text import counted
from vit_train.config.data import DataConfig
from vit_train.data.dataset import Dataset, ImageSet

# The usual names of splits in folders and tables, and the splits for which they stand.
SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}
SPLIT = re.compile(rf"(?<![a-z])({'|'.join(SPLITS)})[ _-]?(?:set|data|images|\d{{4}})?(?![a-z])")


def split_of(name: str, within: bool = False) -> str | None:
    """Return the split with this usual name, such as Training or val2017; None for other names.

    With `within`, the usual name may be a part of the name, as in seg_test.
    """
    name = name.strip().lower()
    found = SPLIT.search(name) if within else SPLIT.fullmatch(name)
    return SPLITS[found[1]] if found else None


@dataclass(frozen=True)
class Splits:
    train: ImageSet
    val: ImageSet | None
    test: ImageSet
    # The images of each split that data.decisions leaves out.
    left_out: dict[str, ImageSet] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, ImageSet]:
        """Return the splits that exist, by name."""
        every = {"train": self.train, "val": self.val, "test": self.test}
        return {name: part for name, part in every.items() if part is not None}

    def named(self, name: str) -> ImageSet:
        """Return the split called train, val or test; raise ValueError if it does not exist."""
        if name not in self.parts:
            raise ValueError(f"this run has no split called {name!r}: choose train or test")
        return self.parts[name]


def make_splits(dataset: Dataset, config: DataConfig) -> Splits:
    """Return the training, validation and test images that the config selects.

    data.val=split takes the source's validation images or, if the source has none, splits off some
    of the training images. data.val=test validates on the test images. With data.val=none, there
    are no validation images. With data.cv_folds, training and validation images are joined, and one
    fold of all these images is used for validation. All splits and subsets are stratified and
    seeded. data.decisions is applied last, so that no other image changes its split.
    """
    train = dataset.train
    test = subset(dataset.test, "test_subset", config)
    val = {"split": dataset.val, "test": test}.get(config.val)
    if config.cv_folds is not None and config.cv_fold is not None:
        every = train if val is None else train.with_others(val)
        train, val = one_fold(every, config.cv_folds, config.cv_fold, config.split_seed)
    elif config.val == "split" and val is None:
        train, val = hold_out(train, "val_fraction", config)
    return decided(Splits(subset(train, "train_subset", config), val, test))


def decided(splits: Splits) -> Splits:
    """Apply data.decisions to each split; raise ValueError if it leaves no image of a split."""
    kept = {name: part.with_decisions() for name, part in splits.parts.items()}
    left_out = {
        name: part.subset(part.left_out)
        for name, part in splits.parts.items()
        if part.decided is not None
    }
    for name in left_out:
        if not kept[name]:
            raise ValueError(
                f"data.decisions leaves out all {name} images: delete some of its lines"
            )
    return replace(splits, **kept, left_out=left_out)


def one_fold(images: ImageSet, folds: int, fold: int, seed: int) -> tuple[ImageSet, ImageSet]:
    """Split the images for cross-validation; return the training images and the images of one fold.

    `fold` counts from 0. Every image is in exactly one of the `folds` folds. The images are
    shuffled and dealt to the folds in turn, class by class. The folds therefore differ by at most
    one image, in total and in each class. If there are groups, they are dealt in place of images,
    each by the class of its first image. Raise ValueError if there are fewer images or groups than
    folds.
    """
    first, unit = images.units()
    if folds > len(first):
        raise ValueError(
            f"data.cv_folds={folds} needs at least {folds} images or groups, but there are only "
            f"{len(first)}: set a smaller data.cv_folds"
        )
    shuffled = torch.randperm(len(first), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[strata(images.labels[first])[shuffled].argsort(stable=True)]
    dealt = by_class[torch.arange(len(first)) % folds == fold]
    chosen = torch.isin(unit, dealt)
    return images.subset(~chosen), images.subset(chosen)


def subset(images: ImageSet, field: str, config: DataConfig) -> ImageSet:
    """Return a stratified subset of the images.

    `field` is the name of the setting that holds the subset's size; null stands for all images.
    Raise ValueError if the size is larger than the number of images.
    """
    count = getattr(config, field)
    if count is None:
        return images
    if count > len(images):
        raise ValueError(
            f"data.{field}={count} is more than the number of images: choose at most {len(images)}"
        )
    return images.subset(sampled(images, count, config.split_seed))


def sampled(images: ImageSet, count: int, seed: int) -> Tensor:
    """Return the indices, in order, of a stratified random sample of `count` images."""
    return spread(strata(images.labels), seed)[:count].sort().values


def sample(images: ImageSet, count: int) -> ImageSet:
    """Return a stratified random sample of `count` images, in memory; all if there are fewer."""
    found = images.subset(sampled(images, count, seed=0))
    return replace(found, images=found.images[:])


def hold_out(images: ImageSet, field: str, config: DataConfig) -> tuple[ImageSet, ImageSet]:
    """Split off a stratified random sample of the images.

    `field` is the name of the setting that holds the fraction to split off. Return the remaining
    images and the sample. Keep at least one image of each class among the remaining images, if
    possible. Raise ValueError if no image would remain.
    """
    fraction = getattr(config, field)
    count = max(1, round(len(images) * fraction))
    first, unit = images.units()
    sizes = unit.bincount()
    labels = strata(images.labels[first])
    # Units that are too large come late, the smallest of them first.
    order = spread(labels, config.split_seed, excess=(sizes - count).clamp(min=0))
    # Keep the last unit of each class, which `spread` puts at the end, unless there are no others.
    most = len(order) - len(labels.unique()) or len(order)
    # As many whole groups as fit, but at least one; without groups, a unit is one image.
    units = (sizes[order].cumsum(0) <= count).sum().clamp(1, most)
    is_held_out = torch.isin(unit, order[:units])
    if is_held_out.all():
        raise ValueError(
            f"data.{field}={fraction} of {counted(len(images), 'image')} leaves no image for "
            f"training: add images or set a smaller data.{field} (groups are never divided)"
        )
    return images.subset(~is_held_out), images.subset(is_held_out)


def strata(labels: Tensor) -> Tensor:
    """Return the number of each image's stratum (N,): its class or, for tags (N,K), its rarest tag.

    All images without tags are in one stratum.
    """
    if labels.ndim == 1:
        return labels
    counts = torch.where(labels > 0, labels.sum(0), torch.inf)
    return counts.argmin(1).where(labels.any(1), labels.shape[1])


def spread(labels: Tensor, seed: int, excess: Tensor | None = None) -> Tensor:
    """Return the images' indices (N,) in an order whose every prefix is a stratified sample.

    `labels` (N,) are those of `strata`. Within each class, the images are shuffled and get evenly
    spaced positions in 0…1, beginning at a random offset. Then all images are sorted by position,
    so that each class is sampled in proportion to its size. Classes of equal size differ by at most
    one sampled image. With many small classes, a large class can be off by several images. With
    `excess` (N,), images with a larger excess come later, and one image of each class, with the
    largest, comes last.
    """
    generator = torch.Generator().manual_seed(seed)
    position = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator)]
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        spaced = (torch.arange(len(members)) + offset) / len(members)
        if excess is not None:
            members = members[excess[members].argsort(stable=True)]
            spaced += excess[members]
            spaced[-1] += 1e12  # after those of all classes
        position[members] = spaced
    return position.argsort(stable=True)
