import numpy as np
import torch

from vit_train.figures.maps import GAP, TITLE_HEIGHT, WIDE_GAP, side_by_side


def test_every_picture_stands_in_its_place_unchanged() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = torch.randint(256, (2, 5, 3, 32, 32), generator=generator, dtype=torch.uint8)
    sheet = np.asarray(side_by_side([one, two], ["one", "two"], across=3))
    step = 2 * (96 + GAP) + WIDE_GAP
    assert sheet.shape == (TITLE_HEIGHT + 2 * (96 + WIDE_GAP), 3 * step - WIDE_GAP, 3)
    for image in range(5):
        top = TITLE_HEIGHT + (image // 3) * (96 + WIDE_GAP)
        for kind, pictures in enumerate((one, two)):
            left = (image % 3) * step + kind * (96 + GAP)
            tile = sheet[top : top + 96 : 3, left : left + 96 : 3]
            assert np.array_equal(tile, pictures[image].permute(1, 2, 0).numpy())


def test_large_images_keep_their_size_and_titles_are_written() -> None:
    black = torch.zeros(1, 3, 128, 128, dtype=torch.uint8)
    sheet = np.asarray(side_by_side([black, black], ["a", "b"], across=4))
    assert sheet.shape[1] == 2 * (128 + GAP)
    assert (sheet[:TITLE_HEIGHT] < 128).any() and (sheet[:TITLE_HEIGHT] > 250).any()


def test_small_images_are_enlarged_by_whole_numbers_to_about_the_same_size() -> None:
    for size, width in ((8, 96), (20, 100), (40, 80), (64, 128), (96, 96), (200, 200)):
        grey = torch.zeros(1, 3, size, size, dtype=torch.uint8)
        assert side_by_side([grey], ["a"], across=1).width == width + GAP
