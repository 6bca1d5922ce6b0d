"""Every picture and map stands beside its image, in the colors of the scale."""

import numpy as np
import torch
from torch import Tensor, nn

from vit_train.data.batches import Normalize
from vit_train.data.dataset import Statistics
from vit_train.figures.charts import colormaps
from vit_train.figures.images import GALLERY, HEAT, draw_filters, draw_gallery, side_by_side

NORMALIZE = Normalize(Statistics((0.5,) * 3, (0.5,) * 3), torch.device("cpu"))


class Doubling:
    """Shows the image and what the model makes of it."""

    columns, legend = ("image", "made"), ""

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        assert not torch.is_grad_enabled() and len(images) == len(targets)
        return [images, model(images)]


class Looking:
    """Shows the image and a map over it, which is highest in the last of 4 × 4 patches."""

    columns, legend = ("image", "where"), "what it looks at"

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        maps = torch.zeros(len(images), 4, 4)
        maps[:, 3, 3] = 0.1
        return [images, maps]


def batch_of(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Images of one gray each."""
    pixels = levels.view(-1, 1, 1, 1).expand(-1, 3, 96, 96) / 255
    return (pixels - 0.5) / 0.5, torch.arange(len(levels))


def test_the_first_images_are_shown_as_the_model_sees_them_in_evaluation() -> None:
    batch = batch_of(torch.arange(20.0))
    (axes,) = draw_gallery(Doubling(), nn.Dropout(0.5).eval(), batch, NORMALIZE).axes
    assert len(axes.images) == GALLERY and "image, made" in axes.texts[0].get_text()
    for level, shown in enumerate(axes.images):
        pixels = shown.get_array()
        assert (pixels[:, :96] == level).all() and (pixels[:, -96:] == level).all()


def test_a_map_lies_over_its_image_in_the_colors_of_the_scale_below() -> None:
    batch = batch_of(20 * torch.arange(12.0))
    (axes,) = draw_gallery(Looking(), nn.Identity(), batch, NORMALIZE).axes
    lowest, highest = 255 * colormaps[HEAT]((0, 255))[:, :3]
    pixels = axes.images[1].get_array()[:, -96:]  # of the second image
    assert np.abs(pixels[5, 5] - (0.3 * lowest + 0.7 * 20)).max() < 1
    assert np.abs(pixels[90, 90] - (0.8 * highest + 0.2 * 20)).max() < 1
    scale = axes.images[-1]
    assert scale.get_cmap().name == HEAT and scale.get_array().shape == (1, 256)


def test_pictures_are_joined_unchanged() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = torch.randint(256, (2, 5, 3, 32, 32), generator=generator, dtype=torch.uint8)
    both = side_by_side([one, two])
    assert torch.equal(both[..., :32], one) and torch.equal(both[..., -32:], two)
    assert both.shape == (5, 3, 32, 65) and (both[..., 32] == 255).all()


def test_filters_are_scaled_around_gray_with_their_shares_below() -> None:
    filters = torch.tensor([-2.0, 0, 1]).view(1, 3, 1, 1).expand(2, 3, 4, 4)
    (axes,) = draw_filters(filters, [0.7, 0.0625]).axes
    assert axes.images[0].get_array()[0, 0].tolist() == [0, 128, 191]
    words = [text.get_text() for text in axes.texts]
    assert "shares of variance" in words[0] and words[1:] == ["70.0 %", "6.2 %"]
