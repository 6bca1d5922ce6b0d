"""Mosaics of many pictures, built from pixels in milliseconds, without a plotting library."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

# In pixels: the approximate width to which small pictures are enlarged (by a whole factor), the
# gaps between pictures and between images, and the height of the titles.
PICTURE, GAP, WIDE_GAP, TITLE = 96, 2, 14, 20


def side_by_side(pictures: Sequence[Tensor], titles: Sequence[str], across: int) -> Image.Image:
    """Draw several pictures of each of N images in one mosaic, with titles above the columns.

    Each of `pictures` is RGB uint8 (N,3,S,S) and has one of the `titles`. The pictures of one image
    stand next to each other, with `across` images in a row.
    """
    size = pictures[0].shape[-1]
    size *= max(1, round(PICTURE / size))
    together = torch.stack(list(pictures), dim=1)  # (N,K,3,S,S)
    number, kinds = together.shape[:2]
    tiles = F.interpolate(together.flatten(0, 1).float(), (size, size)).byte().cpu()
    step = kinds * (size + GAP) + WIDE_GAP
    rows = -(-number // across)
    shape = step * min(across, number) - WIDE_GAP, rows * (size + WIDE_GAP) + TITLE
    sheet = Image.new("RGB", shape, "white")
    draw = ImageDraw.Draw(sheet)
    for place, tile in enumerate(tiles):
        image, kind = divmod(place, kinds)
        row, column = divmod(image, across)
        left, top = column * step + kind * (size + GAP), row * (size + WIDE_GAP) + TITLE
        sheet.paste(Image.fromarray(tile.permute(1, 2, 0).numpy()), (left, top))
        if row == 0:
            middle = left + size // 2, TITLE // 2
            draw.text(middle, titles[kind], fill="black", anchor="mm", font_size=12)
    return sheet
