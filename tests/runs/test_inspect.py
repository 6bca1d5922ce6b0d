import re
from pathlib import Path

import pytest
from conftest import Run
from PIL import Image

SMALL_VIT = ("model.embed_dim=16", "model.depth=2", "model.patch_size=8")


@pytest.mark.parametrize("positions", ["sinusoidal", "relative", "none"])
def test_a_model_is_described_before_it_is_trained(run: Run, positions: str) -> None:
    """Only without positions does the order of the patches make no difference."""
    outcome = run.succeeds("vit-inspect", *SMALL_VIT, f"model.positions={positions}")
    assert "parameters = " in outcome.out and "GFLOP" in outcome.out
    errors = re.search(r"patches: (\S+) without positions, (\S+) with", outcome.out)
    without, with_positions = map(float, errors.groups())
    assert without < 1e-12 and (with_positions < 1e-12) == (positions == "none")
    assert Path("positions.png").exists() == (positions == "sinusoidal")


def test_tiny_has_its_published_size(run: Run) -> None:
    """System E's parameters, and by hand: 4 · (3 D² + D²) + 8 D² + attention + head and patches."""
    outcome = run("vit-inspect", "out=table.png")
    assert "1,205,898 parameters" in outcome.out
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
    scratch, fused = (
        run("vit-inspect", *SMALL_VIT, f"model.kernels={kernels}").out.splitlines()[1]
        for kernels in ("scratch", "fused")
    )
    assert scratch == fused and "GFLOP" in scratch


def test_attention_that_no_machine_can_hold_is_refused(run: Run) -> None:
    run.fails(
        "the attention between all patches of an image of 4096", "vit-inspect", "image_size=4096"
    )


def test_a_cnn_has_no_patches_to_reorder(run: Run) -> None:
    outcome = run("vit-inspect", "model=cnn")
    assert outcome.status == 0 and "141,354 parameters" in outcome.out
    assert "permutation" not in outcome.out


@pytest.mark.parametrize(
    "experiment, words",
    [
        ("system_d_classifier", "809,354 parameters = "),
        ("system_d_decoder", " decoder"),
        ("data_efficiency", " parameters = "),
    ],
)
def test_a_recipe_is_counted_without_its_images(experiment: str, words: str, run: Run) -> None:
    """A sweep is counted at its first settings."""
    assert words in run.succeeds("vit-inspect", f"experiment={experiment}").out


def test_images_that_are_not_loaded_have_a_size_and_classes(run: Run) -> None:
    folder = ("data=folder", "data.root=photos")
    run.fails("data=folder is not loaded: set classes=N", "vit-inspect", *folder)
    assert "1,229,571 parameters" in run("vit-inspect", *folder, "classes=3").out
    run.fails("resume=run is for vit-train", "vit-inspect", "resume=run")


@pytest.mark.parametrize(
    "argument, message",
    [
        ("image_size=33", "must divide the image size 33"),
        ("image_size=0", "image_size=0 must be at least 1"),
        ("out=table.txt", "out=table.txt must end in .png, .pdf or .svg"),
        ("model.positions=rotary", "must be one of: none, learned"),
        ("model.depth=100000000", "at most 10,000 layers"),
    ],
)
def test_what_is_wrong_is_said(run: Run, argument: str, message: str) -> None:
    outcome = run("vit-inspect", argument)
    assert outcome.status == 1 and message in outcome.err and not Path("positions.png").exists()
