from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data import dataset
from vit_train.data.dataset import Dataset, ImageSet, channel_statistics, resize


def pixels(count: int, size: int = 8, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def some(count: int, seed: int = 0) -> ImageSet:
    return ImageSet(pixels(count, seed=seed), torch.arange(count) % 3)


DATA = Dataset(some(10), some(5, seed=1), ("a", "b", "c"))


def changed(part: ImageSet, what: str) -> ImageSet:
    tensor = getattr(part, what).clone()
    tensor.view(-1)[-1] ^= 1
    return replace(part, **{what: tensor})


def test_the_fingerprint_is_of_every_image_label_and_name() -> None:
    same = Dataset(some(10), some(5, seed=1), ("a", "b", "c"))
    assert same.fingerprint == DATA.fingerprint and len(DATA.fingerprint) == 8
    others = [
        *(replace(DATA, train=changed(DATA.train, what)) for what in ("images", "labels")),
        *(replace(DATA, test=changed(DATA.test, what)) for what in ("images", "labels")),
        replace(DATA, classes=("a", "b", "d")),
        replace(DATA, val=some(4)),
        replace(DATA, val=changed(some(4), "labels")),
        replace(DATA, unlabeled=pixels(3)),
        replace(DATA, train=DATA.test, test=DATA.train),
    ]
    prints = [DATA.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize("chosen", [[], [3], [4, 0]])
def test_a_subset_keeps_all_that_belongs_to_its_images(chosen: list[int]) -> None:
    """Also if it is a single image, whose index numpy could take for a number."""
    names = np.array(list("abcde"), dtype=object)
    whole = replace(some(5), names=names, groups=names, weights=torch.arange(5.0))
    index = torch.tensor(chosen, dtype=torch.long)
    for part in (whole.subset(index), whole.subset(index).with_others(whole.subset(index[:0]))):
        assert torch.equal(part.images, whole.images[index]) and part.masks is None
        assert torch.equal(part.labels, whole.labels[index])
        assert part.names is not None and part.names.tolist() == [names[each] for each in chosen]
        assert part.groups is not None and part.groups.tolist() == part.names.tolist()
        assert part.weights is not None and part.weights.tolist() == chosen


def test_statistics_are_numpys() -> None:
    images = pixels(20)
    images[:, 1] //= 3
    images[:, 2] = 77
    mean, std = channel_statistics(images)
    scaled = images.numpy() / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std[:2], scaled.std((0, 2, 3))[:2], rtol=1e-12)
    assert std[2] == 1 / 255  # a constant channel's, which can be divided by


@pytest.mark.parametrize("size", [5, 12, 24, 40])
def test_resizing_is_exact_to_half_a_gray_level(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pixels(7, 24)
    monkeypatch.setattr(dataset, "CHUNK_PIXELS", 3 * max(size, 24) ** 2)  # three images at a time
    ours = resize(images, size)
    exact = F.interpolate(images.double(), (size, size), mode="bilinear", antialias=True)
    assert ours.shape == exact.shape and ours.dtype == torch.uint8
    assert (ours - exact).abs().max() < 0.51  # rounded, not cut off
