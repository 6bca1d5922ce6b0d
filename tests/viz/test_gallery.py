import numpy as np
import torch
from torch import Tensor, nn

from vit_train.data.batches import Normalize
from vit_train.data.dataset import Statistics
from vit_train.viz.gallery import ACROSS, IMAGES, draw_gallery
from vit_train.viz.mosaic import GAP, TITLE, WIDE_GAP


class Doubling:
    """Shows the image and what the model makes of it."""

    columns = ("image", "made")

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
    assert sheet.shape[0] == TITLE + 2 * (96 + WIDE_GAP)  # 12 images in rows of 6
    for image in range(IMAGES):
        top = TITLE + (image // across) * (96 + WIDE_GAP)
        for kind in range(2):
            left = (image % across) * step + kind * (96 + GAP)
            assert (sheet[top : top + 96, left : left + 96] == image).all()
