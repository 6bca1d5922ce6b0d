"""The work of `vit-train` in its run's folder: set up, train, report, stop in order."""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from vit_train.base.log import logged_to, shown_on_terminal
from vit_train.base.memory import is_out_of_memory
from vit_train.base.text import counted
from vit_train.engine.compile import compiles
from vit_train.engine.distributed import join_processes, leave_processes
from vit_train.engine.metrics import Evaluation
from vit_train.engine.precision import (
    batch_norms,
    choose_algorithms,
    keep_freed_memory,
    pick_device,
    require_precision,
)
from vit_train.engine.schedule import NonFinite
from vit_train.engine.trainer import Callback, Trainer
from vit_train.runs.config import TrainConfig, readable, with_defaults
from vit_train.runs.paths import Outcome, new_run, run_at
from vit_train.runs.trained import load
from vit_train.tasks.config import DistillConfig
from vit_train.training.checkpoints import Earlier, read_earlier
from vit_train.training.folder import RunFolder
from vit_train.training.setup import Setup, set_up

# SIGHUP: the terminal has been closed. SIGUSR2: Slurm's launcher says that the time is nearly up.
# Windows has neither.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2")


class Deadline(Callback):
    """Requests a stop so many minutes after time.monotonic() was `began`; None: never."""

    def __init__(self, began: float, minutes: float | None) -> None:
        self.end = math.inf if minutes is None else began + 60 * minutes

    def on_step(self, trainer: Trainer) -> None:
        if time.monotonic() >= self.end:
            trainer.stop_requested = True


@contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[list[int]]:
    """Stop the run after the current step on any of SIGNALS, except those that are ignored.

    Yield the list in which the signal is noted. nohup has SIGHUP ignored, for instance. A second
    signal ends the process at once, unless it is SIGHUP, of which a terminal that is closed may
    send several. In another thread than the main one, which alone may handle signals, this does
    nothing.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]

    def request(number: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True
        received.append(number)
        for handled in numbers:
            signal.signal(handled, end_at_once)

    def end_at_once(number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name == "SIGHUP":
            return
        # `request` cannot install the default handler itself: if a signal is already pending then,
        # Python reports an error instead of ending the process.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def why_stopped(trainer: Trainer, received: list[int]) -> str:
    """Return why a run stops before its end, in words."""
    if received:
        return f"on {signal.Signals(received[0]).name}"
    if not trainer.stop_requested:
        return "as another process was told to"
    return "its time is up (train.max_minutes counts anew from each start; null lifts it)"


def train(config: TrainConfig, folder: str | Path) -> Outcome:
    """Train as configured and write everything into a new folder.

    A config that chooses no model, task or data gets a ViT, classification and the built-in shapes.
    Raise InUse if the folder is in use or already holds a run, ValueError for problems that the
    user can fix, NonFinite if training diverges, and OSError if the disk fails.
    """
    for key, run in (("resume", config.resume), ("extend", config.extend)):
        if run is not None:  # the command takes the run's own settings
            raise ValueError(f"{key}={run} is for the command: vit-train {key}=RUN")
    config = readable(with_defaults(config))
    # A caller with handlers decides what is shown.
    shown = nullcontext() if logging.getLogger().handlers else shown_on_terminal()
    with new_run(Path(folder), named=True) as path, shown:
        return train_in_held_folder(config, path)


def train_in_held_folder(
    config: TrainConfig, path: Path, checkpoint: Path | None = None, resumed: bool = False
) -> Outcome:
    """Train as configured and write everything into the folder `path`, which the caller holds.

    A `resumed` run continues from `checkpoint` or, without one, starts from its beginning. Raise
    ValueError for problems that the user can fix, NonFinite if training diverges, and OSError if
    the disk fails.
    """
    began = time.monotonic()
    keep_freed_memory()
    device = pick_device(config.device)
    require_precision(config.precision, device)
    if device.type != "cpu":
        choose_algorithms(config.deterministic)
    processes = join_processes(device, config.distributed)
    try:
        with logged_to(path / "train.log") if processes.is_main else nullcontext():
            checkpoint = processes.broadcast(checkpoint)
            earlier = read_earlier(config, checkpoint)
            if earlier is None:
                config = with_named_runs(config)
            named = config.task.teacher if isinstance(config.task, DistillConfig) else None
            teacher = None if named is None else load(named, device)
            state = earlier.state if earlier else None
            setup = set_up(config, device, processes, state, teacher)
            if earlier:
                earlier.require_same(setup)
            # Processes other than the main one write nothing.
            folder = RunFolder(setup, path, earlier, resumed) if processes.is_main else None
            return run(setup, folder, path, earlier, began)
    finally:
        leave_processes()


def with_named_runs(config: TrainConfig) -> TrainConfig:
    """Resolve init_from= and task.teacher= to one run each.

    A folder of runs means the newest finished one, which may be another one later.
    """
    if config.init_from is not None:
        config = replace(config, init_from=str(run_at(Path(config.init_from))))
    if isinstance(config.task, DistillConfig):
        teacher = str(run_at(Path(config.task.teacher)))
        config = replace(config, task=replace(config.task, teacher=teacher))
    return config


def run(
    setup: Setup, folder: RunFolder | None, path: Path, earlier: Earlier | None, began: float
) -> Outcome:
    """Train from the first step, or the one after `earlier`, to the end and write the summary.

    `path` is where the `folder` is, and `began` the time.monotonic() of the start.
    """
    deadline = Deadline(began, setup.config.train.max_minutes)
    trainer = Trainer(
        model=setup.model,
        objective=setup.task,
        train_loader=setup.train_loader,
        val_loader=setup.val_loader,
        config=setup.config,
        precision=setup.precision,
        callbacks=[deadline, *(folder.callbacks if folder else [])],
        processes=setup.processes,
    )
    with with_advice(trainer, setup, folder):
        if compiles(setup.config.compile, setup.device):
            compile_step(trainer, setup)
        if earlier:
            earlier.restore(trainer)
        if folder:
            folder.open()
        shown = folder.terminal.shown(trainer) if folder else nullcontext()
        with shown, stop_on_signals(trainer) as received:
            trainer.fit()
            stopped = setup.processes.any(trainer.stop_requested)
            results = {} if stopped else test_results(trainer, setup, folder)
        if folder:
            folder.close(trainer, results, why_stopped(trainer, received))
    score = trainer.best.score if trainer.best else math.nan
    exit_status = 128 + received[0] if received else 0  # as in shells
    return Outcome(path, score if math.isfinite(score) else None, not stopped, exit_status)


def compile_step(trainer: Trainer, setup: Setup) -> None:
    """Compile the model; without success, divide a step among threads as for one that is not."""
    images, targets = next(setup.train_loader.epoch(0))
    with trainer.workers:  # compiled code depends on the number of threads
        compiled = trainer.compile(images, targets)
    if not compiled:
        trainer.choose_workers(compiled=False)


def test_results(trainer: Trainer, setup: Setup, folder: RunFolder | None) -> dict[str, Evaluation]:
    """Evaluate the final and, with validation, the best weights on the test set.

    This is the only use of the test set in a run.
    """
    loader = setup.unaugmented(setup.splits.test)
    best = setup.processes.broadcast(folder.best_weights(trainer.best) if folder else None)
    with trainer.workers:
        results = {"final": trainer.evaluate(trainer.eval_model, loader)}
        if best is not None and best["epoch"] == trainer.epoch:
            results["best"] = results["final"]
        elif best is not None:
            model = setup.task.build_model().to(setup.device)
            model.load_state_dict(best["weights"])
            results["best"] = trainer.evaluate(model, loader)
    return results


@contextmanager
def with_advice(trainer: Trainer, setup: Setup, folder: RunFolder | None) -> Iterator[None]:
    """Add to the message of an error that ends the run what the user can do about it."""
    try:
        yield
    except NonFinite:
        if folder:
            folder.summarize("diverged")
        raise
    except OSError as error:
        raise OSError(f"{error}{folder.advice() if folder else ''}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        tried = trainer.workers.micro_batch or trainer.loop.batch_size
        key = "train.batch_size" if batch_norms(setup.model) else "train.micro_batch"
        less = f"{key}={tried // 2}" if tried > 1 else "a smaller model or image size"
        raise ValueError(
            f"out of memory with {counted(tried, 'image')} at once: set {less}"
            f"{folder.advice() if folder else ''}"
        ) from error
