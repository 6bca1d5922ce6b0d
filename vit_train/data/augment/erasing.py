"""Random erasing (Zhong et al. 2017, arXiv:1708.04896)."""

import numpy as np
import torch
from torch import Tensor

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.rectangles import Rectangles, random_rectangles

SMALLEST = 0.02
ERASED_ASPECTS = (0.3, 3.3)


class Eraser:
    """Fills a rectangle in some of the normalized images with 0, the mean color."""

    def __init__(self, size: int, config: AugmentConfig) -> None:
        self.size, self.prob = size, config.erase_prob
        self.share = (SMALLEST, config.erase_area)

    def draw(self, rng: np.random.Generator, count: int) -> Rectangles:
        """Draw one rectangle per image; its height is 0 for images that are left unchanged."""
        boxes, found = random_rectangles(
            rng, count, self.size, self.share, ERASED_ASPECTS, self.size - 1
        )
        chosen = found & torch.from_numpy(rng.random(count) < self.prob)
        return boxes._replace(height=boxes.height * chosen)

    def erase(self, images: Tensor, boxes: Rectangles) -> Tensor:
        """Fill the rectangles of float images (B,C,S,S), in place."""
        return images.masked_fill_(boxes.contain(self.size), 0)
