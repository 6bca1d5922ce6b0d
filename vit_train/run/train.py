"""One run, read from top to bottom: from its settings to its summary."""

import gc
import logging
import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from vit_train.base.log import logged_to, shown_on_terminal
from vit_train.base.machine import command_line, is_out_of_memory
from vit_train.base.reading import read_object
from vit_train.base.text import counted
from vit_train.config.run import CONTINUED, TrainConfig, readable, with_defaults
from vit_train.loop.compile import compiles
from vit_train.loop.device import (
    batch_norms,
    choose_algorithms,
    keep_freed_memory,
    pick_device,
    require_precision,
)
from vit_train.loop.distributed import join_processes, leave_processes
from vit_train.loop.metrics import Results
from vit_train.loop.objective import Batch
from vit_train.loop.schedule import NonFinite
from vit_train.loop.trainer import CALLBACKS, Trainer
from vit_train.run.earlier import read_earlier
from vit_train.run.folder import NO_FILES, RunFiles, RunFolder, registered_code
from vit_train.run.plan import planned
from vit_train.run.start import Run, resolve, with_named_runs
from vit_train.trained.folder import SUMMARY, Launch, Outcome, new_run
from vit_train.trained.own_code import require_same_code

if TYPE_CHECKING:  # rarely needed
    from vit_train.trained.model import Trained

# SIGHUP: the terminal has been closed. SIGUSR2: Slurm warns that the job's time is nearly up.
# Windows has neither.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


class TrainedRun(Outcome):
    """A run that has been trained, finished or stopped: its outcome, and what it wrote."""

    @property
    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        return read_object(self.folder / SUMMARY)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Return the rows of metrics.csv, one for each epoch."""
        from vit_train.evaluate.summaries import read_curve  # rarely needed

        return read_curve(self.folder / SUMMARY)

    def load(self, device: torch.device | str = "cpu", weights: str = "auto") -> "Trained":
        """Return the best model of the run, as `vit_train.load` does."""
        from vit_train.trained.load import load  # rarely needed

        return load(self.folder, device, weights)


def train(config: TrainConfig, folder: str | Path) -> TrainedRun:
    """Train as configured, write everything into a new folder, and return the run.

    The defaults of model, task and data are a ViT, classification and the built-in shapes. Raise
    InUse if the folder is in use or already contains a run, ValueError for problems that the user
    can fix, NonFinite if training diverges, and OSError if the disk fails.
    """
    for key in CONTINUED:
        if (named := getattr(config, key)) is not None:  # the command reads the run's own settings
            raise ValueError(f"{key}={named} works only on the command line: vit-train {key}=RUN")
    config = readable(with_defaults(config))
    # A caller that has its own handlers decides what is shown.
    shown = nullcontext() if logging.getLogger().handlers else shown_on_terminal()
    with new_run(Path(folder), named=True) as path, shown:
        return train_in(path, config, Launch(command_line()))


def train_in(
    path: Path,
    requested: TrainConfig,
    launch: Launch,
    checkpoint: Path | None = None,
    resumed: bool = False,
) -> TrainedRun:
    """Train as `requested`, and write everything into the folder `path`, which is locked.

    A `resumed` run continues from `checkpoint` or, if it is None, starts again from the first step.
    Raise the same errors as `train`.
    """
    if resumed:
        require_same_code(path, registered_code())
    # The machine
    deadline = time.monotonic() + 60 * (requested.train.max_minutes or math.inf)
    keep_freed_memory()
    device = pick_device(requested.device)
    require_precision(requested.precision, device)
    if device.type != "cpu":
        gc.collect()  # an earlier run of a sweep, whose images would stay on the GPU
        choose_algorithms(requested.deterministic)
    processes = join_processes(device, requested.distributed)
    try:
        with logged_to(path / "train.log") if processes.is_main else nullcontext():
            # Where it begins. Only the main process knows a run that torchrun has restarted.
            requested, checkpoint = processes.broadcast((requested, checkpoint))
            earlier = read_earlier(requested, checkpoint)
            requested = with_named_runs(requested, path, earlier.folder if earlier else None)

            # Data, task and model; from here on, the settings are final.
            run = resolve(requested, device, processes, earlier.state if earlier else None)
            processes.copy_from_main(run.model)  # another CPU may have drawn different weights
            if earlier:
                earlier.require_same(run)
            else:
                run = planned(run)

            # What is written. Only the main process writes.
            files = NO_FILES
            if processes.is_main:
                files = RunFolder(path, requested, run, launch, earlier, resumed)
            trainer = Trainer(
                run.model,
                run.task,
                run.train_loader,
                run.config,
                run.precision,
                [*(make() for make in CALLBACKS), *files.callbacks],
                processes,
            )
            trainer.deadline = deadline
            with advice_on_errors(trainer, run, files):
                if compiles(run.config.compile, device):
                    # Compile the model as the next epoch needs it: it may no longer drop patches.
                    trainer.set_epoch(earlier.state.epoch if earlier else 0)
                    trainer.compile()
                if earlier:
                    earlier.restore(trainer)
                files.open()

                # The loop
                shown = files.shown(trainer)
                with shown, trainer.workers, stop_on_signals(trainer) as received:
                    val = run.data.splits.val
                    train_epochs(trainer, None if val is None else run.unaugmented(val))

                    # The test, once
                    results = test_results(trainer, run, files)
                files.close(trainer, results)
    finally:
        leave_processes()
    exit_status = 128 + received[0] if received else 0  # as in shells
    best = trainer.best.score if trainer.best else None
    return TrainedRun(path, best, bool(results), exit_status)


def train_epochs(trainer: Trainer, val_loader: Iterable[Batch] | None) -> None:
    """Train until the last epoch, or until something has called `trainer.stop`.

    Call this within `trainer.workers`.
    """
    trainer.model.train()
    trainer.leave_out(trainer.ready)  # time for compiling and for opening the reports
    while not trainer.finished:
        trainer.set_epoch(trainer.epoch)
        for draws in trainer.train_loader.draws(trainer.epoch, trainer.batch):
            if trainer.must_stop():
                for callback in trainer.callbacks:
                    callback.on_stop(trainer)
                return
            trainer.train_on(draws)
            if log := trainer.log_if_due():
                with trainer.paused():
                    for callback in trainer.callbacks:
                        callback.on_log(trainer, log)
            for callback in trainer.callbacks:
                callback.on_step(trainer)
        log = trainer.end_epoch()
        val = None if val_loader is None else trainer.validate(val_loader)
        with trainer.paused():
            for callback in trainer.callbacks:
                callback.on_epoch(trainer, log, val)


def test_results(trainer: Trainer, run: Run, files: RunFiles) -> Results:
    """Evaluate the final weights and, if there is validation, the best weights on the test set.

    Return {} for a run that was stopped. A run uses its test set nowhere else, except that
    data.val=test validates on it.
    """
    if run.processes.any(bool(trainer.stop_reason)):
        return {}
    trainer.graphed_step.restart()  # until then, the test images cannot use the graph's memory
    loader = run.unaugmented(run.data.splits.test)
    best = trainer.best
    results = {"final": trainer.evaluate(trainer.eval_model, loader)}
    if best is not None and best.epoch == trainer.epoch:
        results["best"] = results["final"]
    elif best is not None:
        weights = run.processes.broadcast(files.best_weights())
        if weights is not None:
            model = run.task.build_model().to(run.precision.device)
            model.load_state_dict(weights)
            results["best"] = trainer.evaluate(model, loader)
    return results


@contextmanager
def advice_on_errors(trainer: Trainer, run: Run, files: RunFiles) -> Iterator[None]:
    """If the block raises an error, add to the message how to fix the error or how to resume.

    Also set the run's status to "diverged" (NonFinite) or "failed", with the reason. In any case,
    free the trainer's CUDA graph.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        files.fail("diverged" if isinstance(error, NonFinite) else "failed", error)
        if isinstance(error, OSError):
            error.add_note(files.advice())
        if not isinstance(error, MemoryError | RuntimeError) or not is_out_of_memory(error):
            raise
        tried = trainer.workers.micro_batch or -(-trainer.loop.batch_size // run.processes.count)
        key = "train.batch_size" if batch_norms(run.model) else "train.micro_batch"
        if trainer.evaluating:
            tried = trainer.loop.eval_batch_size
            key = "train.eval_batch_size"
        less = f"{key}={tried // 2}" if tried > 1 else "a smaller model or image size"
        raise ValueError(
            f"out of memory with {counted(tried, 'image')} at once: use {less}{files.advice()}"
        ) from error
    finally:
        trainer.graphed_step.restart()  # NCCL does not end before the graphs that use it


@contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[list[int]]:
    """Stop the run after the current step if any of SIGNALS is received.

    Yield a list that will contain the number of the received signal. A second signal is handled as
    before the run, unless it is SIGHUP, which a closing terminal may send several times. Signals
    that the process ignores, such as SIGHUP under nohup, stay ignored. Outside the main thread, do
    nothing, because Python lets only the main thread handle signals.
    """
    received: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [each for each in SIGNALS if is_main and signal.getsignal(each) != signal.SIG_IGN]

    def request(number: int, frame: FrameType | None) -> None:
        trainer.stop(f"on {signal.Signals(number).name}")
        received.append(number)
        for handled in numbers:
            signal.signal(handled, handle_as_before)

    def handle_as_before(number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name == "SIGHUP":
            return
        # `request` cannot itself restore the earlier handler: with another signal pending, Python
        # would report an error instead of ending the process.
        signal.signal(number, before[number])
        signal.raise_signal(number)

    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
