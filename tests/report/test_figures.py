import numpy as np
import torch

from vit_train.report.figures import colours, image_grid, shortened


def test_a_grid_shows_each_image_upright_under_its_title() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (5, 3, 6, 6), generator=generator, dtype=torch.uint8)
    titles = [f"image {number}" for number in range(5)]
    axes = image_grid(images, titles, columns=3).axes
    assert len(axes) == 6  # two rows of three, the last place empty
    for axis, image, title in zip(axes, images, titles, strict=False):
        shown = axis.images[0].get_array()
        assert np.array_equal(shown, image.permute(1, 2, 0)) and axis.get_title() == title
    places = [axis.get_subplotspec().num1 for axis in axes]
    assert places == list(range(6)) and not axes[5].images


def test_a_long_title_is_shortened_and_colours_differ() -> None:
    assert shortened("a" * 22) == "a" * 22 and shortened("a" * 23) == "a" * 21 + "…"
    for count in (1, 8, 9, 30):
        assert len(set(colours(count))) == count
