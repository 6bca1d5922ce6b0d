"""Files that are read, but hardly seen, or passed over, are counted, and the first one is named."""

from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL_MODEL, Run
from PIL import Image


@pytest.fixture(autouse=True)
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders a and b with 12-bit scans in files of 16 bits, wide images, TIFFs and good images.

    And a folder good/ without the doubtful ones.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for name in "ab":
        for root in ("scans", "good"):
            folder = tmp_path / root / name
            folder.mkdir(parents=True)
            for number in range(10):
                pixels = rng.integers(0, 256, (20, 24, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
        folder = tmp_path / "scans" / name
        dark = rng.integers(0, 4096, (24, 24)).astype(np.uint16)
        Image.fromarray(dark).save(folder / "dark.png")
        pixels = rng.integers(0, 256, (64, 128, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "wide.png")
        Image.fromarray(pixels).save(folder / "scan.tif")


TRAIN = ["data=folder", "data.image_size=16", *SMALL_MODEL, "train.epochs=1", "train.batch_size=8"]
WARNINGS = (
    "2 images of nearly one color, such as scans/a/dark.png",
    "2 images cropped by more than a fifth, such as scans/a/wide.png",
    "2 files passed over, not JPEG, PNG, WebP or BMP, such as scans/a/scan.tif",
)


def test_they_are_said_once_by_every_command_that_reads_files(run: Run) -> None:
    outcome = run("vit-train", *TRAIN, "data.root=good", "hydra.run.dir=run")
    assert outcome.status == 0, outcome.err
    assert not any(words[1:15] in outcome.out + outcome.err for words in WARNINGS)
    cached = [*TRAIN, "data.root=scans", "data.cache=true"]
    for command in (
        ["vit-train", *cached, "hydra.run.dir=first"],
        ["vit-train", *cached, "hydra.run.dir=second"],  # whose images come from the cache
        ["vit-eval", "ckpt=run", "data.root=scans"],
        ["vit-predict", "ckpt=run", "images=scans"],
        ["vit-explain", "ckpt=run", "images=scans", "count=24"],
    ):
        outcome = run(*command)
        assert outcome.status == 0, outcome.err
        said = " ".join((outcome.out + outcome.err).split())
        for words in WARNINGS:
            assert said.count(words) == 1, (command, words, said)


def test_a_single_file_is_not_one_of_many(run: Run) -> None:
    outcome = run("vit-train", *TRAIN, "data.root=good", "hydra.run.dir=run")
    outcome = run("vit-predict", "ckpt=run", "images=scans/a/dark.png")
    assert outcome.status == 0, outcome.err
    said = " ".join((outcome.out + outcome.err).split())
    assert "1 image of nearly one color, scans/a/dark.png: 16-bit files must use" in said
