"""Drives the commands in this process: a subprocess would spend its time importing torch."""

import csv
import gc
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

import loopback
import numpy as np
import pytest
import torch
from filelock import FileLock
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from matplotlib.figure import Figure
from omegaconf import DictConfig
from PIL import Image

from vit_train.commands import tools, train
from vit_train.commands.errors import FULL_ERROR
from vit_train.config import run as run_config
from vit_train.config.model import MODEL_CONFIGS
from vit_train.config.training import OPTIM_CONFIGS
from vit_train.figures import images
from vit_train.figures.measures import FIGURES, NUMBERS
from vit_train.loop import device
from vit_train.loop.schedule import SCHEDULES
from vit_train.loop.trainer import CALLBACKS
from vit_train.model.attention import ATTENTIONS
from vit_train.model.layers import ACTIVATIONS
from vit_train.model.positions import POSITIONS
from vit_train.trained import folder as folders

IMAGE_SECONDS = device.image_seconds  # which tests replace
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals, links or pipes")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those of GPUs: what they promise, they promise of a CPU."""
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["no_proxy"] = "127.0.0.1"  # the tests' own servers


def csv_rows(path: Path | str) -> list[dict[str, str]]:
    """The rows of a CSV file, by the names of their columns."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


Color = tuple[int, int, int]


def write_images(
    root: Path | str,
    names: Iterable[str],
    color: Color = (80, 80, 80),
    size: tuple[int, int] = (20, 20),
) -> list[str]:
    """Write an image of noise around a color under each name, another one for each path."""
    names = list(names)
    for path in (Path(root, name) for name in names):
        rng = np.random.default_rng(list(os.fsencode(path)))
        noise = rng.integers(0, 90, (*size[::-1], 3))
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((0.6 * np.array(color) + noise).astype(np.uint8)).save(path)
    return names


@pytest.fixture
def web() -> Iterator[loopback.Loopback]:
    with loopback.serve() as server:
        yield server


MAINS = {
    "vit-train": train.main,
    "vit-eval": tools.vit_eval,
    "vit-suspects": tools.vit_suspects,
    "vit-predict": tools.vit_predict,
    "vit-explain": tools.vit_explain,
    "vit-augment": tools.vit_augment,
    "vit-data": tools.vit_data,
    "vit-inspect": tools.vit_inspect,
    "vit-check": tools.vit_check,
    "vit-features": tools.vit_features,
    "vit-export": tools.vit_export,
    "vit-results": tools.vit_results,
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

    @property
    def said(self) -> str:
        """All that was printed as one line: where it breaks depends on the width."""
        return " ".join((self.out + self.err).split())


def pytest_collection_finish() -> None:
    """Spare the garbage collector all that was imported: a million objects each time."""
    gc.freeze()


@dataclass
class Run:
    """run("vit-train", "data=shapes", …): a command as if typed in an empty folder."""

    call: Callable[..., Outcome]

    def __call__(self, *command: str) -> Outcome:
        return self.call(*command)

    def succeeds(self, *command: str) -> Outcome:
        outcome = self(*command)
        assert outcome.status == 0, outcome.err
        return outcome

    def says(self, words: str, *command: str) -> Outcome:
        """It succeeds with a message that contains the words."""
        outcome = self.succeeds(*command)
        assert words in outcome.said or words in outcome.out, outcome.out + outcome.err
        return outcome

    def fails(self, words: str, *command: str) -> Outcome:
        """With a message that contains the words, and no traceback."""
        outcome = self(*command)
        assert outcome.status in (1, 2) and words in outcome.err, outcome.err + outcome.out
        assert "Traceback" not in outcome.err, outcome.err
        return outcome


@pytest.fixture
def registries() -> Iterator[None]:
    """Forget, after the test, the parts and modules that it registers."""
    with ExitStack() as unchanged:
        for table in (
            *(POSITIONS, ATTENTIONS, ACTIVATIONS, SCHEDULES),
            *(OPTIM_CONFIGS, MODEL_CONFIGS, NUMBERS),
        ):
            unchanged.enter_context(patch.dict(table))
        yield
    for group in run_config.CHOSEN_BY_NAME:  # which the next command registers again
        ConfigStore.instance().repo.pop(group, None)
    run_config.store.cache_clear()
    CALLBACKS.clear()
    forget_own_modules()


def forget_own_modules() -> None:
    for name in ("my_parts", "my_helper"):
        sys.modules.pop(name, None)


SmallRun = Callable[..., Path]


@pytest.fixture(autouse=True)
def the_same_draws_every_time() -> None:
    """Whichever tests ran before."""
    torch.manual_seed(0)


# Hydra copies the store of all settings for each command, though it copies what it reads, too.
ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]


def measured(speedup: float) -> dict[str, float]:
    """What `image_seconds` finds on a CPU where bf16 has this speedup."""
    return {"fp32": speedup / 1024, "bf16": 1 / 1024}


@pytest.fixture(autouse=True)
def a_cpu_that_is_slow_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run says, and how it is evaluated, is the same whichever CPU the tests run on."""
    monkeypatch.setattr(device, "image_seconds", lambda model, inputs: measured(0.5))


@pytest.fixture(autouse=True)
def no_leftover_logging() -> Iterator[None]:
    """Hydra configures logging for the process; put it back, so that no file stays open."""
    yield
    remove_handlers()
    logging.getLogger("vit_train").setLevel(logging.NOTSET)


def remove_handlers() -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if type(handler) in (logging.StreamHandler, logging.FileHandler):
            root.removeHandler(handler)
            handler.close()


def blank(*_: object, **__: object) -> Figure:
    return Figure((1, 1), 10)


def save_blank(figure: Figure, file: BinaryIO, format: str) -> None:
    SAVE(blank(), file, format=format)


SAVE = Figure.savefig


@pytest.fixture
def figures_are_blank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figures, which take half of the time of a small run."""
    if "every_figure_is_drawn" not in request.fixturenames:
        monkeypatch.setattr(images, "draw_sheet", blank)
        monkeypatch.setattr(Figure, "savefig", save_blank)
        for name in FIGURES:
            monkeypatch.setitem(FIGURES, name, blank)


@pytest.fixture
def every_figure_is_drawn() -> None:
    """Ask for all figures, as a user gets them."""


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    figures_are_blank: None,
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIT_TRAIN_DATA", raising=False)

    def call(command: str, *arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", [command, *arguments])
        GlobalHydra.instance().clear()
        remove_handlers()
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
        os.environ.pop(FULL_ERROR, None)  # which a command sets for all of its process
        captured = capfd.readouterr()
        return Outcome(status, captured.out, captured.err)

    return Run(call)


Started = list[tuple[DictConfig, Path]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The settings and folders of the runs that would start; none does."""
    seen: Started = []

    def note(composed: DictConfig, settings: object, folder: Path) -> folders.Outcome:
        seen.append((composed, folder))
        return folders.Outcome(folder)

    monkeypatch.setattr(train, "start", note)
    return seen


# What many tests begin with, each made once for all of them: how a run ended, or its weights.
KINDS = {
    "finished": [],
    "averaged": ["train.ema_decay=0.9"],
    "interrupted": ["train.max_minutes=1e-9"],
    "reconstruct": ["task=reconstruct", "task.decoder_depth=1"],
    # The first epoch is the best, because the weights stay as they are.
    "still": ["model.init=torch", "optim.lr=1e-30", "checkpoint.keep_every=1"],
    "autoregress": ["task=autoregress", "task.decoder_depth=1", "task.given_rows=5"],
}


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes among which pytest-xdist shares the tests out."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "small_runs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def small_run(run: Run, small_runs: Path, monkeypatch: pytest.MonkeyPatch) -> SmallRun:
    """small_run("interrupted", "run"): the folder of a run of SMALL of this kind."""

    def copied(kind: str, folder: str = "run") -> Path:
        original = small_runs / kind
        with FileLock(f"{original}.lock"):
            if not original.exists():
                new = original.with_name(f"{kind}.new")
                with monkeypatch.context() as patch:
                    # Hydra removes all handlers of the root logger, also that of caplog.
                    patch.setattr(logging.getLogger(), "handlers", logging.getLogger().handlers[:])
                    run.succeeds("vit-train", *SMALL, *KINDS[kind], f"hydra.run.dir={new}")
                new.rename(original)
        return Path(shutil.copytree(original, folder))

    return copied


@pytest.fixture
def checkpoint(small_run: SmallRun) -> bytes:
    """A small run's last checkpoint."""
    return (small_run("finished", "kept") / "checkpoints/last.safetensors").read_bytes()
