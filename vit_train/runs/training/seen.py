"""The images that a run and the models that it learns from have seen, which must not test it."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vit_train.data.config import DataConfig, FolderConfig
from vit_train.data.dataset import Dataset, Seen, Source, are_among, image_keys, without
from vit_train.data.folder import reread
from vit_train.data.splits import Splits
from vit_train.text import counted

logger = logging.getLogger(__name__)


def inherited(models: Sequence[Seen | None], data: Dataset, config: DataConfig) -> Tensor | None:
    """Return the keys of all images that models have seen, None if they are known of no model.

    Test images that were seen at another size have the keys of this size among them.
    """
    known = [seen for seen in models if seen is not None]
    keys = [seen.keys for seen in known]
    for seen in known:
        if isinstance(config, FolderConfig) and seen.image_size != config.image_size:
            then = reread(data.test, replace(config, image_size=seen.image_size))
            keys.append(image_keys(data.test.images[are_among(then.images, seen.keys)]))
    return torch.cat(keys).unique() if keys else None


def unseen_test(data: Dataset, seen: Tensor | None) -> Dataset:
    """Return the data without the test images whose keys these are; raise ValueError if all are."""
    test = without(data.test, seen)
    if not len(test):
        raise ValueError(
            f"all {counted(len(data.test), 'test image')} were seen in the training or validation "
            "of a model that this run learns from: add other images for testing"
        )
    if left := len(data.test) - len(test):
        logger.warning(
            f"{counted(left, 'test image')} left out, seen in the training or validation of a "
            "model that this run learns from"
        )
    return replace(data, test=test)


def known_source(
    data: Dataset, splits: Splits, config: DataConfig, seen_before: Tensor | None
) -> Source:
    """Return the data's metadata without the images, of which the splits hold copies."""
    before = [] if seen_before is None else [seen_before]
    if not isinstance(config, FolderConfig):
        return data.source._replace(seen=seen_before, seen_before=seen_before)
    validated = [] if splits.val is None or config.val == "test" else [splits.val]
    seen = torch.cat([image_keys(part.images) for part in (splits.train, *validated)])
    copies = int(are_among(splits.test.images, seen).sum())
    if copies:
        logger.warning(
            f"copies of {counted(copies, 'test image')} are among the images to train or validate "
            "on, which flatters the test: remove them"
        )
    return data.source._replace(seen=torch.cat([seen, *before]), seen_before=seen_before)
