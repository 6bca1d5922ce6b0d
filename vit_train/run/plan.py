"""train.minutes: choose the number of epochs from the measured speed."""

import copy
import math
import sys
import time
from dataclasses import replace
from itertools import chain, count

import torch

from vit_train.base.log import logger
from vit_train.config.run import with_settings
from vit_train.loop.compile import WARM_UP, compiles
from vit_train.loop.trainer import Trainer
from vit_train.run.start import Run

# Share of train.minutes for measuring the speed, and share left in case training becomes slower.
MEASURING = 0.02
SPARE = 0.05
# Number of steps before the speed is measured: on a GPU, the last of them captures the graph.
MEASURED_FROM = WARM_UP + 1
# The number of steps after which to wait for the device.
WAIT_EVERY = 32
# Number of training images on which the speed of evaluations is measured.
PREDICTED = 1024


def planned(run: Run) -> Run:
    """Return the run with as many epochs as fit into train.minutes, by the speed of some steps.

    If train.minutes is null, return the run as it is.

    The steps are taken by a copy of the model and change nothing. Validation after each epoch and
    the final test are included. Raise ValueError if not even one epoch fits.
    """
    minutes = run.config.train.minutes
    if minutes is None:
        return run
    device = run.precision.device
    began = time.perf_counter()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        trainer = Trainer(
            copy.deepcopy(run.model),
            run.task,
            run.train_loader,
            run.config,
            run.precision,
            processes=run.processes,
        )
        trainer.set_epoch(sys.maxsize)  # the last epochs see all patches, so no others are slower
        if compiles(run.config.compile, device):
            trainer.compile()
        try:
            with trainer.workers:
                step_seconds = seconds_per_step(trainer, 60 * minutes * MEASURING)
                image_seconds = seconds_per_evaluated_image(trainer, run)
        finally:
            trainer.graphed_step.restart()  # NCCL does not end before the graphs that use it
    sizes = run.data.sizes
    epoch_seconds = step_seconds * len(run.train_loader) + image_seconds * sizes["val"]
    # With validation, the best weights are tested, too.
    test_seconds = image_seconds * sizes["test"] * (2 if sizes["val"] else 1)
    left = 60 * minutes * (1 - SPARE) - (time.perf_counter() - began) - test_seconds
    epochs = run.processes.broadcast(int(left / epoch_seconds))
    if epochs < 1:
        raise ValueError(
            f"train.minutes={minutes:g} is too short for one epoch (about {epoch_seconds / 60:.2g} "
            f"min) and the final test ({test_seconds / 60:.2g} min): set a longer time, or a "
            "smaller data.train_subset or data.test_subset"
        )
    logger.info(f"train.minutes={minutes:g}: train.epochs={epochs}")
    return replace(run, config=with_settings(run.config, {"train.epochs": epochs}))


def seconds_per_evaluated_image(trainer: Trainer, run: Run) -> float:
    """Measure on training images: a run reads its test images only at its end."""
    few = torch.arange(min(PREDICTED, len(run.data.train)))
    images = run.unaugmented(run.data.train.subset(few))
    if run.precision.device.type == "cuda":
        for _ in range(MEASURED_FROM):  # until the graph is captured
            trainer.evaluate(trainer.eval_model, images)
    began = time.perf_counter()
    trainer.evaluate(trainer.eval_model, images)
    return (time.perf_counter() - began) / len(few)


def seconds_per_step(trainer: Trainer, budget: float) -> float:
    """Take steps for about `budget` seconds; return the mean time of a step after the first few."""
    trainer.model.train()
    began = math.inf
    for draws in chain.from_iterable(map(trainer.train_loader.draws, count())):
        trainer.train_on(draws)
        # Else the CPU runs hundreds of steps ahead of a GPU, or flags of an epoch are overwritten.
        if trainer.step % min(WAIT_EVERY, trainer.steps_per_epoch) == 0:
            trainer.read(trainer.log_averages)
        if trainer.step == MEASURED_FROM:
            trainer.read(trainer.epoch_averages)  # wait for the device
            began = time.perf_counter()
        # All processes break at the same step.
        elif trainer.processes.any(time.perf_counter() - began > budget):
            break
    trainer.read(trainer.epoch_averages)
    return (time.perf_counter() - began) / (trainer.step - MEASURED_FROM)
