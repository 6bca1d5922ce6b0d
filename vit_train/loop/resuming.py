"""Save a trainer's state, and resume or extend a run from a saved state."""

import time
from dataclasses import replace

import torch

from vit_train.loop.metrics import score
from vit_train.loop.state import RandomState, Start, TrainerState
from vit_train.loop.trainer import Trainer


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
    best, by = state.best, trainer.objective.best_by  # a fork may select by another metric
    trainer.best = best and replace(best, score=score(best.values, by))
    if trainer.batch > len(trainer.train_loader) or trainer.epoch > trainer.last_epoch:
        raise ValueError(
            f"it was saved {state.batch} batches after epoch {state.epoch}, but this run has fewer "
            "batches in an epoch, or fewer epochs"
        )
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
    steps = state.step - state.start.step
    epochs = state.epoch - state.start.epoch
    if min(steps, epochs, state.batch, state.images_seen, state.skipped) < 0:
        raise ValueError("a counter in it, such as the number of steps, is negative")
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
    if trainer.processes.is_main:  # other processes have their own random states
        torch.set_rng_state(state.random.torch.byte())  # of bytes: a forged file may hold others
        if state.random.cuda and trainer.precision.device.type == "cuda":
            torch.cuda.set_rng_state(state.random.cuda[0].byte())
