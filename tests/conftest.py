"""Drives the commands in this process: a subprocess would spend its time importing torch."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from vit_train.commands import augment, bench, evaluate, inspect, results, train

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals, links or pipes")
if os.name != "posix":
    collect_ignore = ["bench"]  # vit-bench reads a process's memory from POSIX's `resource`


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those of GPUs: what they promise, they promise of a CPU."""
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


MAINS = {
    "vit-train": train.main,
    "vit-eval": evaluate.main,
    "vit-augment": augment.main,
    "vit-inspect": inspect.main,
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
SmallRun = Callable[..., Path]


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


@pytest.fixture(autouse=True)
def hydra_composes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra composes all settings twice, first for hydra.mode alone, which experiments set."""
    get_mode = Hydra.get_mode

    def quick(self: Hydra, config_name: str | None, overrides: list[str]) -> object:
        sets_it = any(word in each for each in overrides for word in ("experiment", "hydra.mode"))
        return get_mode(self, config_name, overrides) if sets_it else None

    monkeypatch.setattr(Hydra, "get_mode", quick)


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


# How runs ended that many tests begin with; each is made once for all of them.
ENDINGS = {"finished": [], "interrupted": ["train.max_minutes=1e-9"]}


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small_runs")


@pytest.fixture
def small_run(run: Run, small_runs: Path) -> SmallRun:
    """small_run("interrupted", "run"): the folder of a run of SMALL that ended so."""

    def copy(ending: str, folder: str = "run") -> Path:
        original = small_runs / ending
        if not original.exists():
            arguments = [*SMALL, *ENDINGS[ending], f"hydra.run.dir={original}"]
            outcome = run("vit-train", *arguments)
            assert outcome.status == 0, outcome.err
        return Path(shutil.copytree(original, folder))

    return copy


@pytest.fixture
def checkpoint(small_run: SmallRun) -> bytes:
    """A small run's last checkpoint."""
    return (small_run("finished", "kept") / "checkpoints/last.pt").read_bytes()
