"""vit-inspect and vit-augment."""

import re
from itertools import combinations
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import Run
from matplotlib.figure import Figure
from PIL import Image

from vit_train.config.augment import AugmentConfig
from vit_train.config.data import ShapesConfig
from vit_train.config.tools import SheetConfig
from vit_train.data.dataset import load_dataset
from vit_train.data.splits import make_splits
from vit_train.run.preview import draw_contact_sheet

SMALL_VIT = ("model.embed_dim=16", "model.depth=2", "model.patch_size=8")


@pytest.mark.parametrize("positions", ["sinusoidal", "relative", "none"])
def test_a_model_is_described_before_it_is_trained(run: Run, positions: str) -> None:
    """Only without positions does the order of the patches make no difference."""
    outcome = run.says("parameters = ", "vit-inspect", *SMALL_VIT, f"model.positions={positions}")
    assert "GFLOP" in outcome.out
    errors = re.search(r"patches\): (\S+) without positions, (\S+) with", outcome.out)
    without, with_positions = map(float, errors.groups())
    assert without < 1e-12 and (with_positions < 1e-12) == (positions == "none")
    assert Path("positions.png").exists() == (positions == "sinusoidal")


@pytest.mark.usefixtures("every_figure_is_drawn")
def test_tiny_has_its_published_size(run: Run) -> None:
    """System E's parameters, and by hand: 4 · (3 D² + D²) + 8 D² + attention + head and patches."""
    start = "init_from=builtin:cifar10"
    outcome = run.says("1,205,898 parameters", "vit-inspect", "out=table.png", start)
    assert f"{start} is not read" in outcome.said
    with Image.open("table.png") as picture:
        assert picture.size[0] > 500
    tokens, dim, hidden, depth = 65, 128, 512, 6
    block = 2 * tokens * dim * (4 * dim + 2 * hidden) + 4 * tokens**2 * dim
    # Of the last block the class token alone leaves.
    last = 2 * tokens * dim * 2 * dim + 2 * dim * (2 * dim + 2 * hidden) + 4 * tokens * dim
    flops = (depth - 1) * block + last + 2 * 64 * 48 * dim + 2 * dim * 10
    assert f"{flops / 1e9:.3f} GFLOP" in outcome.out


def test_the_kernels_make_no_difference_to_the_arithmetic(run: Run) -> None:
    """PyTorch's counter does not see into its own attention."""
    kernels = (f"model.kernels={name}" for name in ("scratch", "fused"))
    scratch, fused = (run("vit-inspect", *SMALL_VIT, each).out.splitlines()[1] for each in kernels)
    assert scratch == fused and "GFLOP" in scratch


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("experiment=system_d_classifier", "809,354 parameters = "),
        ("experiment=system_d_decoder", " decoder"),
        ("experiment=data_efficiency", " parameters = "),  # a sweep, at its first settings
        ("data=folder data.root=photos classes=3", "1,229,571 parameters"),
        ("model=cnn", "141,354 parameters"),
    ],
)
def test_a_model_is_counted_without_its_images(arguments: str, words: str, run: Run) -> None:
    outcome = run.says(words, "vit-inspect", *arguments.split())
    assert arguments != "model=cnn" or "permutation" not in outcome.out  # it has no patches


def test_a_row_is_an_image_as_it_is_and_then_in_other_variants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grid = Mock(side_effect=lambda *what, **how: Figure())
    monkeypatch.setattr("vit_train.run.preview.image_grid", grid)
    data = ShapesConfig(train_images=60, test_images=10, val_fraction=0.8)
    augment = AugmentConfig(mixup_alpha=1.0, mix_epochs=1)
    out = str(tmp_path / "a.png")
    for _ in range(2):
        draw_contact_sheet(SheetConfig(data, augment, images=5, variants=3, out=out))
    (drawn, labels, _), (again, _, _) = (
        (*call.args, *call.kwargs.values()) for call in grid.mock_calls
    )
    images = drawn.unflatten(0, (5, 4))
    assert images.shape == (5, 4, 3, 32, 32) and torch.equal(again, drawn) and Path(out).exists()
    for column, other in combinations(range(4), 2):
        assert not torch.equal(images[:, column], images[:, other])
    source = load_dataset(data)
    train = make_splits(source, data).train
    for row in range(5):
        (place,) = (train.images == images[row, 0]).flatten(1).all(1).nonzero()
        name = source.classes[train.labels[place]]
        assert labels[4 * row] == [name]
        # A mixed label names the image's own class.
        assert all(name in " ".join(each) for each in labels[4 * row : 4 * row + 4])
