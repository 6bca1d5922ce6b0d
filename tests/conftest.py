"""Drives the commands in this process: a subprocess would spend its time importing torch."""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from vit_train.commands import augment, bench, evaluate, results, train

MAINS = {
    "vit-train": train.main,
    "vit-eval": evaluate.main,
    "vit-augment": augment.main,
    "vit-bench": bench.main,
    "vit-results": results.main,
}
SMALL_MODEL = [
    "model.embed_dim=16",
    "model.depth=2",
    "train.epochs=2",
    "train.batch_size=32",
    "train.log_every=2",
]
SMALL = ["data.train_images=200", "data.test_images=60", *SMALL_MODEL]


@dataclass
class Outcome:
    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def the_same_draws_every_time() -> None:
    """Whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_leftover_logging() -> Iterator[None]:
    """Hydra configures logging for the process; put it back, so that no file stays open."""
    yield
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler) in (logging.StreamHandler, logging.FileHandler):
            root.removeHandler(handler)
            handler.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """run("vit-train", "data=shapes", …) in an empty folder, as if typed there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIT_TRAIN_DATA", raising=False)

    def call(command: str, *arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", [command, *arguments])
        GlobalHydra.instance().clear()
        capfd.readouterr()
        status = 0
        try:
            MAINS[command]()
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
                status = 1
            else:
                status = int(end.code or 0)
        captured = capfd.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def kept() -> dict[str, bytes]:
    return {}


@pytest.fixture
def checkpoint(run: Run, kept: dict[str, bytes]) -> bytes:
    """A small run's last checkpoint; one run serves a whole file of tests."""
    if not kept:
        assert run("vit-train", *SMALL, "train.epochs=1", "hydra.run.dir=kept").status == 0
        kept["last"] = Path("kept/checkpoints/last.pt").read_bytes()
    return kept["last"]
