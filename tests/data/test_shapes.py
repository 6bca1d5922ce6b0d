import pytest
import torch

from vit_train.data.shapes import FIGURES, draw


def test_a_set_depends_on_its_arguments_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw(300, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(300, seed=3), strict=True))
    assert not torch.equal(first[0], draw(300, seed=4)[0])
    # The same images on every machine, to a gray level.
    some = [101, 86, 67, 69, 6, 57, 25, 62, 0, 26, 44, 69]
    assert first[0][0, :, ::16, ::16].flatten().tolist() == pytest.approx(some, abs=1)


def test_objects_cover_at_most_a_fifth_and_every_one_is_visible() -> None:
    _, labels, masks = draw(2000)
    coverage = masks.float().mean((1, 2))
    assert coverage.mean() <= 0.20 and coverage.min() > 0.01
    for label in range(len(FIGURES)):
        assert coverage[labels == label].mean() > 0.05


def test_the_mask_marks_the_object() -> None:
    """Objects are bright and grounds are dark: image by image, not only on average."""
    images, _, masks = draw(500)
    brightness = images.amax(1).float() / 255  # (N,S,S)
    inside, outside = (
        (brightness * each).sum((1, 2)) / each.sum((1, 2)) for each in (masks, ~masks)
    )
    assert (inside - outside).min() > 0.1 and (inside - outside).mean() > 0.3


def test_figures_lie_inside_the_image_anywhere_and_at_their_sizes() -> None:
    _, labels, masks = draw(2000, num_classes=2)
    discs = masks[labels == 0]
    heights, widths = (discs.any(axis).sum(1) for axis in (2, 1))
    assert (heights - widths).abs().max() <= 1  # none is cut off by the border
    # A disc's radius is 0.9 of 0.22 to 0.34 of the side.
    assert 12 <= heights.min() <= 14 and 18 <= heights.max() <= 20
    tops, lefts = (discs.any(axis).float().argmax(1) for axis in (2, 1))
    for firsts, lengths in ((tops, heights), (lefts, widths)):
        assert firsts.min() <= 2 and (firsts + lengths).max() >= 30
        assert abs((firsts + lengths / 2).mean() - 16) < 0.4


def test_classes_come_in_any_order_and_figures_are_turned_either_way() -> None:
    _, labels, masks = draw(2000, num_classes=8)
    assert not torch.equal(labels, torch.arange(2000) % 8)
    assert torch.bincount(labels[:400], minlength=8).min() > 25
    bars = masks[labels == list(FIGURES).index("bar")].float()
    place = torch.arange(32.0)
    area = bars.sum((1, 2))
    x, y = ((bars.sum(axis) * place).sum(1) / area for axis in (1, 2))
    along = (bars * (place - x.view(-1, 1, 1)) * (place.view(-1, 1) - y.view(-1, 1, 1))).sum((1, 2))
    assert abs((along > 0).float().mean() - 0.5) < 0.1
