"""The checkpoint from which training continues with resume=, extend= or fork=; saved states."""

import contextlib
import hashlib
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vit_train.base.log import logger
from vit_train.config.run import TrainConfig, default_settings
from vit_train.loop.metrics import score
from vit_train.loop.state import RandomState, Start, TrainerState
from vit_train.loop.trainer import Trainer
from vit_train.run.start import Run
from vit_train.trained.checkpoint import Checkpoint, Extended
from vit_train.trained.folder import BEST, CHECKPOINTS, LAST, finished_run, run_folder
from vit_train.trained.own_code import saved_code


@dataclass(frozen=True)
class Earlier:
    """A checkpoint to continue from.

    If `folder` is None, the checkpoint belongs to this run; otherwise, to the run in `folder`.
    """

    state: Checkpoint
    # The chain of runs that this one extends or forks, the first one first.
    chain: list[Extended]
    # One of CONTINUED.
    verb: str = "resume"
    # The folder of the run being extended or forked.
    folder: Path | None = None
    # The file of the best epoch so far, and its content, because a run that is still training may
    # replace the file; None if there is no best epoch yet.
    best: tuple[Path, Checkpoint] | None = None

    def words(self, config: TrainConfig) -> str:
        """Describe, for the log, the step from which training continues."""
        if self.folder is None:
            return f"resuming after step {self.state.step}"
        if self.verb == "fork":
            return f"forks {self.folder} after step {self.state.step}"
        return (
            f"extends {self.folder} after epoch {self.state.epoch}: the learning rate rises to "
            f"{config.optim.peak_lr:g}, then follows optim.schedule={config.optim.schedule}"
        )

    def require_same(self, run: Run) -> None:
        """Raise ValueError if the checkpoint was trained with other images or another teacher."""
        now = run.teacher
        then = self.state.teacher
        if self.state.fingerprint != run.data.facts.fingerprint:
            raise self.refusal(
                "the images on disk have changed since the checkpoint was saved: restore them, or "
                "start a new run"
            )
        if then.get("fingerprint") != now.get("fingerprint"):
            raise self.refusal(
                f"the teacher {now.get('checkpoint')} has changed since the checkpoint was saved: "
                "restore it, or start a new run"
            )

    def restore(self, trainer: Trainer) -> None:
        """Load the checkpoint into a trainer; raise ValueError if it does not fit the trainer.

        The checksum has already shown that the checkpoint is intact, so a checkpoint that does not
        fit belongs to another run.
        """
        load = extend if self.verb == "extend" else restore
        try:
            load(trainer, self.state)
            if self.verb == "fork" and trainer.finished:
                more = f"train.epochs= to more than {trainer.epoch - trainer.start.epoch}"
                if trainer.stopped_early:
                    more = f"train.patience= to null or more than {trainer.waited}"
                raise ValueError(f"it leaves nothing to train: set {more}")
            if trainer.batch > trainer.steps_per_epoch or trainer.epoch > trainer.last_epoch:
                raise ValueError("this run has fewer batches in an epoch, or fewer epochs")
        except (KeyError, ValueError, RuntimeError) as error:
            raise self.refusal(str(error)) from error

    def refusal(self, reason: str) -> ValueError:
        return ValueError(f"cannot use this checkpoint for {self.verb}=: {reason}")


def read_earlier(config: TrainConfig, checkpoint: Path | None) -> Earlier | None:
    """Read the checkpoint that a run continues from; return None for a run that starts anew.

    `checkpoint` is the file to resume from. If it is None, `config` may name a run to extend or
    fork. Raise ValueError if the run to extend is not finished, or if a checkpoint is missing or
    damaged.
    """
    if checkpoint is not None:
        state, best = with_best(Checkpoint.load(checkpoint), checkpoint)
        return Earlier(state, state.extends, best=best)
    if config.fork is not None:
        verb = "fork"
        path = Path(config.fork)
        folder = run_folder(path)
    elif config.extend is not None:
        verb = "extend"
        folder = finished_run(config.extend)
        path = folder / CHECKPOINTS / LAST
    else:
        return None
    state = Checkpoint.load(path)
    own = Extended(
        run=str(folder),
        epochs=state.epoch,
        steps=state.step,
        images_seen=state.images_seen,
        seconds=state.seconds,
        fingerprint=state.checksum,
        recipe=recipe(state.config, state.extends, state.fingerprint, saved_code(folder)),
    )
    if verb == "extend":  # the longer run selects the best of its own epochs
        state = replace(state, best=None)
    state, best = with_best(state, path)
    return Earlier(state, [*state.extends, own], verb, folder, best)


def with_best(state: Checkpoint, path: Path) -> tuple[Checkpoint, tuple[Path, Checkpoint] | None]:
    """Return the `state` saved in `path`, and the file of its best epoch's checkpoint.

    If there is no such checkpoint beside `path`, forget the best epoch, because its weights are
    lost.
    """
    if state.best is None:
        return state, None
    epoch = state.best.epoch
    for each in (path.with_name(BEST), path.with_name(f"epoch-{epoch}.safetensors"), path):
        with contextlib.suppress(OSError, ValueError):
            found = Checkpoint.load(each)
            if (found.epoch, found.batch) == (epoch, 0):
                return state, (each, found)
    logger.warning(
        f"the best weights are lost: no intact checkpoint beside {path} is of epoch {epoch}. "
        f"{BEST} will hold the best of the following epochs"
    )
    return replace(state, best=None), None


def recipe(
    config: dict[str, Any],
    chain: list[Extended],
    images: str = "",
    code: dict[str, bytes] | None = None,
) -> str:
    """Return a hash of a run's settings, without the seed and the fold of cross-validation.

    `images` is the fingerprint of the run's images, which counts instead of their folder; `code`
    holds the files of the user's own code.

    Settings at their defaults are left out, so that the hash stays the same when a later version
    adds settings.
    """
    from vit_train.evaluate.summaries import REPEATED, settings_of  # rarely needed

    extends = list(map(asdict, chain))
    settings = settings_of(
        {"config": config, "extends": extends, "fingerprint": images, "code": code}
    )
    defaults = default_settings(config)
    shared = sorted(
        (key, str(value))
        for key, value in settings.items()
        if key not in REPEATED and (key.endswith("name") or value != defaults.get(key))
    )
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:8]


def state_of(trainer: Trainer) -> TrainerState:
    """Return the trainer's state; raise NonFinite if a NaN or infinite loss must end the run.

    The state's tensors are not copies: later steps change them.
    """
    trainer.nonfinite.check(trainer.step)
    return TrainerState(
        model=trainer.model.state_dict(),
        ema=trainer.ema.model.state_dict() if trainer.ema else None,
        optimizers=trainer.optimizers.moments(),
        scaler=trainer.scaler.state_dict(),
        random=RandomState(
            torch.get_rng_state(),
            [torch.cuda.get_rng_state()] if trainer.precision.device.type == "cuda" else [],
        ),
        epoch_averages=trainer.epoch_averages.state(),
        log_averages=trainer.log_averages.state(),
        best=trainer.best,
        start=trainer.start,
        skipped=trainer.nonfinite.skipped,
        lr=trainer.lr,
        seconds=trainer.seconds,
        step=trainer.step,
        epoch=trainer.epoch,
        batch=trainer.batch,
        images_seen=trainer.images_seen,
    )


def restore(trainer: Trainer, state: TrainerState) -> None:
    """Restore a saved state of the trainer's run, even a state from the middle of an epoch.

    Raise ValueError or RuntimeError if the state does not fit this run.
    """
    load_trained(trainer, state)
    trainer.epoch_averages.restore(state.epoch_averages)
    trainer.log_averages.restore(state.log_averages)
    trainer.nonfinite.skipped = state.skipped
    trainer.start = state.start
    if state.best:  # a fork may select by another metric
        best_by = trainer.objective.best_by
        trainer.best = replace(state.best, score=score(state.best.values, best_by))
    trainer.ready = time.perf_counter()


def extend(trainer: Trainer, state: TrainerState) -> None:
    """Continue from the last state of another run, with this run's own warm-up and decay.

    Epochs and steps keep counting up, so that images come in a new order. Raise ValueError or
    RuntimeError if the state does not fit this run.
    """
    load_trained(trainer, state)
    trainer.start = Start(trainer.epoch, trainer.step, state.lr)


def load_trained(trainer: Trainer, state: TrainerState) -> None:
    """Load weights, the weights' average, optimizer moments, counters and random states."""
    trainer.model.load_state_dict(state.model)
    if trainer.ema:
        if state.ema is None:
            raise ValueError("it has no averaged weights, which train.ema_decay needs")
        trainer.ema.model.load_state_dict(state.ema)
    trainer.optimizers.restore(state.optimizers)
    if state.scaler:  # otherwise it was not trained in fp16, and a new scaler finds its own scale
        trainer.scaler.load_state_dict(trainer.scaler.state_dict() | state.scaler)
    trainer.began = time.perf_counter() - state.seconds
    trainer.step = state.step
    trainer.lr = state.lr
    trainer.epoch = state.epoch
    trainer.batch = state.batch
    trainer.images_seen = state.images_seen
    trainer.nonfinite.read_until = trainer.step
    if trainer.processes.is_main:
        torch.set_rng_state(state.random.torch.byte())  # of bytes: a forged file may hold others
        if state.random.cuda and trainer.precision.device.type == "cuda":
            torch.cuda.set_rng_state(state.random.cuda[0].byte())
    else:  # the states of other processes are not saved: draw new numbers
        torch.manual_seed(torch.initial_seed() + trainer.step)
