"""A run from its settings to its summary: set up, train, test, report, and stop cleanly."""

import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from vit_train.base.log import logged_to, shown_on_terminal
from vit_train.base.memory import is_out_of_memory
from vit_train.base.text import counted
from vit_train.config.data import IMAGES
from vit_train.config.run import CONTINUED, TrainConfig, readable, with_defaults, with_settings
from vit_train.loop.compile import compiles
from vit_train.loop.distributed import join_processes, leave_processes
from vit_train.loop.metrics import Evaluation
from vit_train.loop.precision import (
    batch_norms,
    choose_algorithms,
    keep_freed_memory,
    pick_device,
    require_precision,
)
from vit_train.loop.schedule import NonFinite
from vit_train.loop.trainer import CALLBACKS, Callback, Trainer
from vit_train.run.earlier import Earlier, read_earlier
from vit_train.run.folder import RunFolder, chosen_settings
from vit_train.run.setup import Setup, set_up
from vit_train.trained.folder import Outcome, new_run, run_at

# SIGHUP: the terminal has been closed. SIGUSR2: Slurm warns that the job's time is nearly up.
# Windows has neither.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


class Deadline(Callback):
    """Stops the run after the given number of minutes; None means no limit."""

    def __init__(self, minutes: float | None) -> None:
        self.end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def on_step(self, trainer: Trainer) -> None:
        if time.monotonic() >= self.end:
            trainer.stop_requested = True


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
        trainer.stop_requested = True
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


def why_stopped(trainer: Trainer, received: list[int]) -> str:
    """Return why a run was stopped before its end, for the log."""
    if received:
        return f"on {signal.Signals(received[0]).name}"
    if not trainer.stop_requested:
        return "because another process was stopped"
    if trainer.loop.max_minutes is None:
        return "by a callback"
    return "because train.max_minutes has passed (counted from each start; null: no limit)"


def train(config: TrainConfig, folder: str | Path) -> Outcome:
    """Train as configured and write everything into a new folder.

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
        return train_in_locked_folder(config, path)


def train_in_locked_folder(
    config: TrainConfig, path: Path, checkpoint: Path | None = None, resumed: bool = False
) -> Outcome:
    """Train as configured and write everything into the folder `path`, which the caller has locked.

    A `resumed` run continues from `checkpoint` or, if it is None, starts again from the first step.
    Raise the same errors as `train`.
    """
    deadline = Deadline(config.train.max_minutes)
    keep_freed_memory()
    device = pick_device(config.device)
    require_precision(config.precision, device)
    if device.type != "cpu":
        choose_algorithms(config.deterministic)
    processes = join_processes(device, config.distributed)
    try:
        with logged_to(path / "train.log") if processes.is_main else nullcontext():
            # Only the main process knows the settings of a run that torchrun has restarted.
            config, checkpoint = processes.broadcast((config, checkpoint))
            earlier = read_earlier(config, checkpoint)
            config = with_named_runs(config, (earlier and earlier.folder) or path)
            setup = set_up(
                config, device, processes, earlier.state if earlier else None, chosen_settings()
            )
            if earlier:
                earlier.require_same(setup)
            elif config.train.minutes is not None:
                from vit_train.run.plan import with_planned_epochs  # rarely needed

                setup = with_planned_epochs(setup, config.train.minutes)
            # Processes other than the main one write nothing.
            folder = RunFolder(setup, path, earlier, resumed) if processes.is_main else None
            return run(setup, folder, path, earlier, deadline)
    finally:
        leave_processes()


def with_named_runs(config: TrainConfig, own: Path | None = None) -> TrainConfig:
    """In settings that name a run, replace a folder of runs by its newest finished run.

    If the folder stayed in the config, a resumed run could load a different model, because a newer
    run may have been added to the folder. If the run that data.split_as names no longer exists,
    name the run in the folder `own` instead, which has the same splits.
    """
    if config.init_from is not None:
        config = replace(config, init_from=str(run_at(Path(config.init_from))))
    named = {
        "task.teacher": getattr(config.task, "teacher", None),
        "data.split_as": getattr(config.data, "split_as", None),
    }
    found = {key: run_at(Path(run)) for key, run in named.items() if run is not None}
    other = found.get("data.split_as")
    if other and own and not (other / IMAGES).is_file() and (own / IMAGES).is_file():
        found["data.split_as"] = own
    return with_settings(config, {key: str(run) for key, run in found.items()})


def run(
    setup: Setup, folder: RunFolder | None, path: Path, earlier: Earlier | None, deadline: Deadline
) -> Outcome:
    """Train to the end, from the first step or from the checkpoint `earlier`; test, and report.

    `path` is the run's folder. `folder` writes the run's files; it is None in all processes except
    the main one.
    """
    setup.processes.copy_from_main(setup.model)  # another CPU may have drawn different weights
    trainer = Trainer(
        model=setup.model,
        objective=setup.task,
        train_loader=setup.train_loader,
        val_loader=None if setup.splits.val is None else setup.unaugmented(setup.splits.val),
        config=setup.config,
        precision=setup.precision,
        callbacks=[
            deadline,
            *(make() for make in CALLBACKS),
            *(folder.callbacks if folder else []),
        ],
        processes=setup.processes,
    )
    with advice_on_errors(trainer, setup, folder):
        if compiles(setup.config.compile, setup.precision.device):
            # Compile the model as the next epoch needs it: it may no longer drop patches.
            trainer.set_epoch(earlier.state.epoch if earlier else 0)
            trainer.compile()
        if earlier:
            earlier.restore(trainer)
        if folder:
            folder.open()
        shown = folder.terminal.shown(trainer) if folder else nullcontext()
        with closing(folder.trackers) if folder else nullcontext():
            with shown, stop_on_signals(trainer) as received:
                trainer.fit()
                stopped = setup.processes.any(trainer.stop_requested)
                results = {} if stopped else test_results(trainer, setup, folder)
            if folder:
                folder.close(trainer, results, why_stopped(trainer, received))
    exit_status = 128 + received[0] if received else 0  # as in shells
    return Outcome(path, trainer.best.score if trainer.best else None, not stopped, exit_status)


def test_results(trainer: Trainer, setup: Setup, folder: RunFolder | None) -> dict[str, Evaluation]:
    """Evaluate the final weights and, if there is validation, the best weights on the test set.

    A run uses its test set nowhere else, except that data.val=test validates on it.
    """
    loader, best = setup.unaugmented(setup.splits.test), trainer.best
    with trainer.workers:
        results = {"final": trainer.evaluate(trainer.eval_model, loader)}
        if best is not None and best.epoch == trainer.epoch:
            results["best"] = results["final"]
        elif best is not None:
            weights = setup.processes.broadcast(folder.best_weights() if folder else None)
            if weights is not None:
                model = setup.task.build_model().to(setup.precision.device)
                model.load_state_dict(weights)
                results["best"] = trainer.evaluate(model, loader)
    return results


@contextmanager
def advice_on_errors(trainer: Trainer, setup: Setup, folder: RunFolder | None) -> Iterator[None]:
    """If the block raises an error, add to the message how to fix the error or how to resume.

    Also set the run's status to "diverged" (NonFinite) or "failed". In any case, free the trainer's
    CUDA graph.
    """
    try:
        yield
    except Exception as error:
        if folder:
            folder.fail("diverged" if isinstance(error, NonFinite) else "failed")
        if isinstance(error, OSError):
            raise OSError(f"{error}{folder.advice() if folder else ''}") from error
        if not isinstance(error, MemoryError | RuntimeError) or not is_out_of_memory(error):
            raise
        tried = trainer.workers.micro_batch or -(-trainer.loop.batch_size // setup.processes.count)
        key = "train.batch_size" if batch_norms(setup.model) else "train.micro_batch"
        if trainer.evaluating:
            tried, key = trainer.loop.eval_batch_size, "train.eval_batch_size"
        less = f"{key}={tried // 2}" if tried > 1 else "a smaller model or image size"
        raise ValueError(
            f"out of memory with {counted(tried, 'image')} at once: use {less}"
            f"{folder.advice() if folder else ''}"
        ) from error
    finally:
        trainer.graphed_step.restart()  # NCCL does not end before the graphs that use it
