"""The learning rate as a pure function of the step."""

import math

from vit_train.engine.config import OptimConfig


def learning_rate(step: int, config: OptimConfig, steps_per_epoch: int, epochs: int) -> float:
    """Return the learning rate of a step, counted from 0.

    It is a linear warm-up, followed by half a cosine (Loshchilov & Hutter 2017).
    """
    total = steps_per_epoch * epochs
    warmup = min(round(config.warmup_epochs * steps_per_epoch), total)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
    return config.min_lr + (config.lr - config.min_lr) * cosine
