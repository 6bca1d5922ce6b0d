import numpy as np
import torch
from torch import Tensor, nn

from vit_train.data.batches import Normalize
from vit_train.data.dataset import Statistics
from vit_train.figures.maps import (
    ACROSS,
    GAP,
    IMAGES,
    TITLE_HEIGHT,
    WIDE_GAP,
    color_scale,
    covered,
    draw_gallery,
)


class Doubling:
    """Shows the image and what the model makes of it."""

    columns, legend = ("image", "made"), ""

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        assert not torch.is_grad_enabled() and len(images) == len(targets)
        return [images, model(images)]


def test_the_first_images_are_shown_as_the_model_sees_them_in_evaluation() -> None:
    levels = torch.arange(20.0).view(-1, 1, 1, 1).expand(-1, 3, 96, 96) / 255
    normalize = Normalize(Statistics((0.5,) * 3, (0.5,) * 3), torch.device("cpu"))
    model = nn.Dropout(0.5).eval()
    batch = (levels - 0.5) / 0.5, torch.arange(20)
    sheet = np.asarray(draw_gallery(Doubling(), model, batch, normalize))
    across = ACROSS // 2
    step = 2 * (96 + GAP) + WIDE_GAP
    assert sheet.shape[0] == TITLE_HEIGHT + 2 * (96 + WIDE_GAP)  # 12 images in rows of 6
    for image in range(IMAGES):
        top = TITLE_HEIGHT + (image // across) * (96 + WIDE_GAP)
        for kind in range(2):
            left = (image % across) * step + kind * (96 + GAP)
            assert (sheet[top : top + 96, left : left + 96] == image).all()


class Looking:
    """Shows the image and a map over it, which is highest in the last of 4 × 4 patches."""

    columns, legend = ("image", "where"), "what it looks at"

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        maps = torch.zeros(len(images), 4, 4)
        maps[:, 3, 3] = 0.1
        return [images, maps]


def test_a_map_lies_over_its_image_in_the_colors_of_the_scale_below() -> None:
    levels = torch.arange(12.0).view(-1, 1, 1, 1).expand(-1, 3, 96, 96) * 20 / 255
    normalize = Normalize(Statistics((0.5,) * 3, (0.5,) * 3), torch.device("cpu"))
    batch = (levels - 0.5) / 0.5, torch.arange(12)
    sheet = np.asarray(draw_gallery(Looking(), nn.Identity(), batch, normalize))
    lowest, highest = color_scale()[[0, -1]].astype(int)
    # The second image's map, scaled to its own highest value.
    left = 2 * (96 + GAP) + WIDE_GAP + 96 + GAP
    shown, gray = (
        sheet[TITLE_HEIGHT : TITLE_HEIGHT + 96, left : left + 96],
        np.full((96, 96, 3), 20, np.uint8),
    )
    assert np.abs(shown[5, 5] - (0.3 * lowest + 0.7 * 20)).max() < 1
    assert np.abs(shown[90, 90] - (0.8 * highest + 0.2 * 20)).max() < 1
    assert np.array_equal(shown, covered(gray, np.eye(4)[3:] * np.eye(4)[:, 3:]))
    # The scale: its first and last color, and words, below the last row of images.
    below = sheet[TITLE_HEIGHT + 2 * (96 + WIDE_GAP) :].reshape(-1, 3)
    for color in (lowest, highest):
        assert (below == color).all(axis=1).any()
    assert (sheet[-TITLE_HEIGHT:] < 128).any()
