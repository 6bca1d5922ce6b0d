"""The images to evaluate: the run's own images, or images named on the command line."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vit_train.base.log import logger
from vit_train.base.text import counted, listed, plain_cell
from vit_train.config.data import (
    APPLIED,
    DATA_CONFIGS,
    IMAGES,
    MAX_PIXELS,
    DataConfig,
    FolderConfig,
    ShapesConfig,
    TableConfig,
    folder_of,
)
from vit_train.config.fields import as_setting, chosen
from vit_train.config.tools import EvalDataConfig
from vit_train.data.columns import table_rows
from vit_train.data.dataset import (
    Dataset,
    ImageSet,
    are_among,
    image_keys,
    load_dataset,
    without,
)
from vit_train.data.decisions import relabeled
from vit_train.data.files import Trees, by_split, listed_name
from vit_train.data.folder import find_trees, image_set, label_tensor, load_part, reread
from vit_train.data.splits import hold_out, make_splits, sample, subset
from vit_train.tasks import require_labels
from vit_train.trained.folder import is_builtin, run_folder
from vit_train.trained.model import Meta


class EvalImages(NamedTuple):
    """Images to evaluate. If they are the run's own, `val` holds the run's validation images."""

    images: ImageSet
    val: ImageSet | None = None
    # A note on an advantage of the model on these images, or on images left out; "" for none.
    caveat: str = ""
    # The training images of the same source, without `images` for a test.
    train: ImageSet | None = None
    # True if the model was, or may have been, trained or chosen on these images.
    biased: bool = False


GROUPED = (
    "The images are in groups, but intervals and tests treat them as independent, so the intervals "
    "are too narrow."
)


def evaluated_images(
    given: EvalDataConfig,
    split: str,
    meta: Meta,
    count: int | None = None,
    with_train: bool = False,
) -> tuple[EvalImages, DataConfig]:
    """Return the images of a split, and the data settings that they were loaded with.

    With `count`, return a stratified sample of this many images; with `with_train`, also return
    training images. Raise ValueError if the classes of the images are not the model's classes.
    """
    config = configured(given, meta)
    trained = meta.config.data
    if not isinstance(config, FolderConfig):
        found = run_images(load_dataset(config), config, split, meta)
    else:  # image keys depend on the size, so first read the images at the run's own size
        own_size = trained.image_size if isinstance(trained, FolderConfig) else config.image_size
        at_own = replace(config, image_size=own_size)
        if with_train:
            found = run_images(load_dataset(at_own), at_own, split, meta)
        else:
            own = listed_images(at_own, given, split, meta, count)
            found, used = (own, at_own) if own else folder_images(at_own, given, split, meta)
            config = replace(config, decisions=used.decisions)
        if own_size != config.image_size:
            train = reread(found.train, config) if found.train and with_train else None
            found = found._replace(images=reread(found.images, config), val=None, train=train)
    if not with_train:
        found = found._replace(train=None)  # to free memory
    if count is not None:
        found = found._replace(images=sample(found.images, count))
    require_labels(meta.task, found.images)
    if found.images.groups is not None:
        found = found._replace(caveat=f"{found.caveat} {GROUPED}".strip())
    if found.caveat:
        logger.warning(found.caveat)
    return found, config


def configured(given: EvalDataConfig, meta: Meta) -> DataConfig:
    """Return the run's data settings, overridden by the settings `given` on the command line.

    If the data source differs from the run's, start from the defaults of the new source. Raise
    ValueError for an unknown source, or for a setting that the source does not have.
    """
    own = meta.config.data
    changes = {key: value for key, value in vars(given).items() if value is not None}
    name = changes.pop("name", own.name)
    kind = chosen(DATA_CONFIGS, "data.name", name)
    for key in changes.keys() - {field.name for field in fields(kind)}:
        raise ValueError(f"data.{key}={changes[key]} is not a setting of data.name={name}")
    if given.root is not None and kind is ShapesConfig:
        raise ValueError(
            f"data.root={given.root} has no effect, because this run's images are generated: to "
            "evaluate images in a folder, add data.name=folder"
        )
    start: dict[str, Any] = (
        dict(vars(own)) if name == own.name else {"image_size": as_setting(meta.image_shape[1:])}
    )
    if is_builtin(meta.path):  # its root is a placeholder (see `portable`): use the default
        start.pop("root", None)
    if given.file is not None and isinstance(own, TableConfig) and own.root == folder_of(own.file):
        start["root"] = ""  # the folder of the run's table; now that of the given table
    # The run's own URLs and limits may be malicious.
    start.pop("urls", None)
    if issubclass(kind, FolderConfig):
        earlier = start.get("split_as")
        if earlier and not Path(earlier, IMAGES).is_file():
            earlier = str(run_folder(meta.path))  # this run lists the same splits
        # In another folder, other images may have the same paths.
        is_own = name == own.name and all(
            Path(os.path.expanduser(changes[key])).resolve() == Path(getattr(own, key)).resolve()
            for key in {"root", "file"} & changes.keys()
        )
        start |= {
            "max_pixels": min(start.get("max_pixels", MAX_PIXELS), MAX_PIXELS),
            "fit": meta.fit,
            "white_level": meta.white_level,
            "split_as": earlier,
            "decisions": applied(meta) if is_own else None,
        }
    return kind(**(start | changes))


def applied(meta: Meta) -> str | None:
    """Return the run's copy of its data.decisions, or None without one."""
    copy = run_folder(meta.path) / APPLIED
    return str(copy) if copy.is_file() else None


def listed_images(
    config: FolderConfig, given: EvalDataConfig, split: str, meta: Meta, count: int | None
) -> EvalImages | None:
    """Read only the images of `split` from the run's own folder, or a sample of `count` of them.

    Without `count`, also read the validation images, for a temperature. Return None if the run's
    list of files, and the keys of the images it has seen, do not show that these are its images.
    """
    elsewhere = given.root or given.file or given.decisions or config.cache
    if elsewhere or config.test_subset or meta.seen is None:
        return None
    trees = listed_trees(config, run_folder(meta.path) / IMAGES, meta.classes)
    parts = dict[str, ImageSet]()
    for name in {split, "val"} if count is None and config.val == "split" else {split}:
        tree = trees.get(name)
        broken = dict[str, str]()
        if tree is None:
            return None
        labels = label_tensor(tree, meta.classes)
        numbers = ImageSet(torch.arange(len(labels)), labels)
        chosen = numbers if count is None else sample(numbers, count)
        files = [tree.files[number] for number in chosen.images.tolist()]
        parts[name] = image_set(replace(tree, files=files), meta.classes, config, broken)
        known = are_among(parts[name].images, meta.seen)
        if broken or not (known == (name != "test")).all():
            return None
    caveat = advantage(split, meta)
    return EvalImages(parts[split], parts.get("val"), caveat, biased=bool(caveat))


def listed_trees(config: FolderConfig, table: Path, classes: Sequence[str]) -> Trees:
    """Return the trees of the splits that a run's list of its images names.

    Return no trees if there is no such list, or if a file was added, removed or relabeled.
    """
    if not table.is_file():
        return {}
    found = find_trees(replace(config, split_as=None)).values()
    trees = [relabeled(tree, classes) for tree in found]
    files = {
        (listed_name(file.path, config), plain_cell(file.label)): file
        for tree in trees
        for file in tree.files
    }
    rows = [row for _, row in table_rows(TableConfig(file=str(table)))]
    labeled = [(row["path"], row.get("tags", row.get("label"))) for row in rows]
    if set(labeled) != files.keys():
        return {}
    whole = replace(trees[0], files=[files[each] for each in labeled], other_files=[])
    return by_split(whole, [row["split"] for row in rows])


def folder_images(
    config: FolderConfig, given: EvalDataConfig, split: str, meta: Meta
) -> tuple[EvalImages, FolderConfig]:
    """Read the images of a split from a folder; also return the settings that were used.

    If the folder holds the run's own images, split them as in training. Otherwise, leave out the
    test images that the run has trained or validated on.
    """
    is_given = given.root is not None or given.file is not None
    # The run's decisions count if these are the run's own images.
    decided = replace(config, decisions=given.decisions or applied(meta))
    images = (
        load_part(decided, split, meta.classes if meta.task.needs_labels else None)
        if is_given or config.name != meta.config.data.name
        else None
    )
    if images is None:
        return run_images(load_dataset(config), config, split, meta), config
    data = None
    with suppress(ValueError):  # too few images to split
        data = Dataset(*hold_out(images, "test_fraction", config), tuple(meta.classes))
    if data is None or data.fingerprint != meta.fingerprint:
        # The subset sizes of the run are meant for its own images, not for other images.
        config = replace(config, test_subset=given.test_subset)
        images = images.with_decisions() if config.decisions else images
        return unseen(images, split, config, meta), config
    logger.info(f"the folder holds the run's own images: evaluating the run's {split} images")
    return run_images(data, decided, split, meta), decided


def run_images(data: Dataset, config: DataConfig, split: str, meta: Meta) -> EvalImages:
    """Split the images as in training, and return the images of `split`.

    If the images are the run's own, also return the run's validation images, so that vit-eval can
    fit a temperature on them. The temperature depends on the image size, so images at a different
    size than in training do not count as the run's own. Raise ValueError if the model classifies,
    but into other classes than those of the images.
    """
    if meta.task.needs_labels and list(data.classes) != meta.classes:
        raise ValueError(
            f"the classes of the images ({listed(data.classes)}) are not the model's "
            f"({listed(meta.classes)}): choose images of the model's classes. To compare it with a "
            "model of these classes, name that last: vit-eval 'ckpt=[A,B]'. vit-features and "
            "vit-explain take any images with images="
        )
    tested = replace(data, test=without(data.test, meta.seen_before))
    if split == "test":
        require_unseen(data.test, tested.test)
    splits = make_splits(tested, config)
    images = splits.named(split)
    gain = advantage(split, meta)
    if meta.fingerprint == data.fingerprint:
        left = len(data.test) - len(tested.test) if split == "test" else 0
        count = 0
        if split == "test" and meta.seen is not None:
            count = int(are_among(images.images, meta.seen).sum())
        copies = f"The model was trained or validated on copies of {counted(count, 'test image')}."
        caveat = " ".join(filter(None, (gain or (copies if count else ""), left_out(left))))
        biased = bool(gain) or count > FEW_COPIES * len(images)
        return EvalImages(images, splits.val, caveat, splits.train, biased)
    trained = meta.config.data
    if config.name == trained.name and config.image_size != trained.image_size:
        return EvalImages(images, caveat=gain, train=splits.train, biased=bool(gain))
    # Other decisions change the images.
    if getattr(config, "decisions", None) in (None, applied(meta)):
        logger.warning("the images are not those of the training run")
    if split == "test" and meta.seen is not None:  # the run may have split the images differently
        every = load_part(config, split, data.classes) if isinstance(config, FolderConfig) else None
        found = unseen((every or data.test).with_decisions(), split, config, meta)
        return found._replace(train=without(splits.train, image_keys(found.images.images)))
    caveat = "The model may have been trained on some of these images."
    return EvalImages(images, caveat=caveat, train=splits.train, biased=True)


def unseen(images: ImageSet, split: str, config: DataConfig, meta: Meta) -> EvalImages:
    """Leave out test images that the model was trained or validated on; keep other splits whole.

    Raise ValueError if no image remains.
    """
    unknown = without(images, meta.seen)
    count = len(images) - len(unknown)
    if split != "test":  # here, images that the model has seen are allowed
        caveat = advantage(split, meta) if count else ""
        biased = bool(caveat)
    else:
        require_unseen(images, unknown)
        images = unknown
        caveat = left_out(count)
        if count and applied(meta):
            caveat += " This includes images that data.decisions leaves out."
        if biased := bool(advantage(split, meta)):
            caveat += (
                " The epoch was chosen on the run's own test images. If the evaluated "
                "images are the same, the result is too optimistic."
            )
    images = subset(images, "test_subset", config) if split == "test" else images
    return EvalImages(images, caveat=caveat.strip(), biased=biased)


def require_unseen(images: ImageSet, unseen: ImageSet) -> None:
    """Raise ValueError if no image is left."""
    if not len(unseen):
        raise ValueError(
            f"all {counted(len(images), 'image')} were used for training or validation by this run "
            "or the models that it is compared with: choose other images to test on"
        )


def left_out(count: int) -> str:
    """Return a note that `count` images are left out, because the model has seen them; "" for 0."""
    return (
        f"{counted(count, 'image')} left out: used for training or validation by this model, or by "
        "one that it learned from or is compared with."
        if count
        else ""
    )


# This share of copies may change an accuracy by as much at most, so a test is still fair.
FEW_COPIES = 0.01


def advantage(split: str, meta: Meta) -> str:
    """Return a note if results on the run's own images of `split` are too optimistic, else ""."""
    data = meta.config.data
    if split == "train":
        return "The model was trained on these images."
    shown = "test" if data.val == "test" and split == "val" else split
    # A copy of the best checkpoint may have any name.
    is_best = not (is_builtin(meta.path) or meta.path.name.startswith(("last", "epoch")))
    if is_best and data.selected_on == shown:
        return "The epoch was chosen on these images, so the result is too optimistic."
    return ""
