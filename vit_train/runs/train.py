"""`vit-train` in the folder of its run: set_up the setup, train, report."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_train.config import TrainConfig
from vit_train.engine.callbacks import Callback
from vit_train.engine.checkpoint import read_checkpoint, set_rng_states
from vit_train.engine.compiling import compile_model
from vit_train.engine.device import be_deterministic, keep_freed_memory, pick_device, pick_precision
from vit_train.engine.distributed import join_processes, leave_processes
from vit_train.engine.metrics import Evaluation
from vit_train.engine.stopping import Deadline, stop_on_signals
from vit_train.engine.trainer import NonFinite, Trainer
from vit_train.engine.workers import has_batch_norm
from vit_train.files.plain import Refused
from vit_train.limits import is_out_of_memory
from vit_train.report.run_log import logged_to
from vit_train.runs.claim import new_run
from vit_train.runs.folder import RunFolder
from vit_train.runs.load import MISFITS
from vit_train.runs.setup import Setup, set_up


@dataclass(frozen=True)
class Outcome:
    """How a run ended: 130 or 143 after a signal, else 0; and validation's best score."""

    exit_status: int
    score: float | None


def train(config: TrainConfig, folder: str | Path) -> Outcome:
    """Train as the config says and leave everything in a new folder.

    Raises InUse if there is a run in the folder, and what `train_in_held_folder` raises.
    """
    with new_run(Path(folder), named=True) as path:
        return train_in_held_folder(config, path)


def train_in_held_folder(
    config: TrainConfig, path: Path, checkpoint: Path | None = None, resumed: bool = False
) -> Outcome:
    """Train as the config says and leave everything in the folder `path`, which the caller holds.

    A `resumed` run goes on from `checkpoint`, or from its beginning if it has none. Raises
    ValueError for what the user can mend, NonFinite if training diverges, OSError if the disk
    fails.
    """
    keep_freed_memory()
    device = pick_device(config.device)
    precision = pick_precision(config.precision, device)
    if config.deterministic and device.type != "cpu":
        be_deterministic()
    processes = join_processes(device)
    try:
        with logged_to(path / "train.log") if processes.is_main else nullcontext():
            checkpoint = processes.broadcast(checkpoint)
            state = None if checkpoint is None else read_checkpoint(checkpoint)
            setup = set_up(config, precision, processes, fresh=state is None)
            if processes.count > 1 and has_batch_norm(setup.model):
                raise ValueError(
                    f"model.name={config.model.name} has BatchNorm, which needs the whole batch: "
                    "train it in one process"
                )
            with refusing_other_runs() if state else nullcontext():
                if state and state["fingerprint"] != setup.data.fingerprint:
                    raise ValueError("the images on disk are others than it was trained on")
                folder = RunFolder(setup, path, state, resumed) if processes.is_main else None
            return run(setup, folder, state)
    finally:
        leave_processes()


def run(setup: Setup, folder: RunFolder | None, state: dict[str, Any] | None) -> Outcome:
    """From the first or the next step to the summary; only the main process has a folder."""
    config = setup.config
    callbacks: list[Callback] = []
    if config.train.max_minutes is not None:
        callbacks.append(Deadline(config.train.max_minutes))
    if folder:
        callbacks += folder.callbacks()
    trainer = Trainer(
        model=setup.model,
        objective=setup.task,
        train=setup.train_loader,
        val=setup.val_loader,
        config=config,
        precision=setup.precision,
        callbacks=callbacks,
        processes=setup.processes,
    )
    if config.compile:
        images, targets = next(setup.train_loader.epoch(0))
        sample = images[: trainer.workers.micro_batch], targets[: trainer.workers.micro_batch]
        with trainer.workers:  # compiled code is bound to a number of threads
            compile_model(setup.model, setup.task, sample, setup.precision)
    if state:
        with refusing_other_runs():
            trainer.load_state_dict(state)
            if setup.processes.is_main:
                set_rng_states(state["rng"])
    if folder:
        folder.open()
    with with_advice(setup, folder):
        bar = folder.terminal if folder else nullcontext()
        with bar, stop_on_signals(trainer) as interruption:
            trainer.fit()
            stopped = setup.processes.any(trainer.stop_requested)
            results = {} if stopped else test_results(trainer, setup, folder)
        if folder:
            folder.close(trainer, results, interruption.reason)
    return Outcome(interruption.exit_status, folder.checkpoints.best_score if folder else None)


def test_results(trainer: Trainer, setup: Setup, folder: RunFolder | None) -> dict[str, Evaluation]:
    """The one time the test set is read: the final weights and, with validation, the best."""
    batches = setup.unaugmented(setup.splits.test)
    best = setup.processes.broadcast(folder.best_weights() if folder else None)
    with trainer.workers:
        results = {"final": trainer.evaluate(trainer.eval_model, batches)}
        if best is not None and best["epoch"] == trainer.epoch:
            results["best"] = results["final"]
        elif best is not None:
            model = setup.task.build_model().to(setup.device)
            model.load_state_dict(best["weights"])
            results["best"] = trainer.evaluate(model, batches)
    return results


@contextmanager
def refusing_other_runs() -> Iterator[None]:
    """Around all that reads a checkpoint's state: it may be sealed, and yet of another run."""
    try:
        yield
    except Refused:
        raise
    except (*MISFITS, ValueError) as error:
        raise ValueError(f"resume: this checkpoint is not of this run: {error}") from error


@contextmanager
def with_advice(setup: Setup, folder: RunFolder | None) -> Iterator[None]:
    """What ends a run before its time, with what can be done about it."""
    try:
        yield
    except NonFinite:
        if folder:
            folder.write_summary("diverged")
        raise
    except OSError as error:
        raise OSError(f"{error}{folder.advice() if folder else ''}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        loop = setup.config.train
        tried = loop.micro_batch or loop.batch_size
        less = f"train.micro_batch={tried // 2}" if tried > 1 else "a smaller model or image size"
        raise ValueError(
            f"out of memory with {tried} images at once: set {less}"
            + (folder.advice() if folder else "")
        ) from error
