"""Settings of training; torch-free, so that a bad value is rejected at once."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from vit_train.engine.optim import Optimizer

DEVICES = ("auto", "cpu", "cuda")
# What to do on an error: stop the run, skip what is bad, or continue as if it had not happened.
ON_ERROR = ("stop", "continue")
ON_NONFINITE = ("stop", "skip")
# Whether to compile; auto: on a GPU.
COMPILE = ("auto", "true", "false")
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
FREEZE = ("encoder",)
LR_EVERY = ("step", "epoch")


def require_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field}={value} must be one of: {', '.join(choices)}")


@dataclass
class OptimConfig:
    """The learning rate, with linear warm-up, then cosine decay to `min_lr`.

    `name` selects the optimizer.
    """

    name: str = "???"
    # The highest learning rate: a straight line leads up to it in warmup_epochs, and a cosine from
    # there down to min_lr.
    lr: float = 1e-3
    min_lr: float = 0.0
    warmup_epochs: float = 1.0
    # Change the learning rate with every step or, as a scheduler of PyTorch that is stepped after
    # every epoch, with every epoch.
    lr_every: str = "step"
    # Maximum norm of the gradient; null does not clip.
    clip_norm: float | None = 1.0
    # For fine-tuning: each block's learning rate is that of the next one times this, and the
    # embedding of patches has the smallest (BEiT, MAE: 0.65 to 0.75); null is one rate for all.
    layer_decay: float | None = None
    # Factor of the head's learning rate.
    head_lr_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.lr > 0:  # written so that NaN is rejected, too
            raise ValueError(f"optim.lr={self.lr} must be positive")
        if not 0 <= self.min_lr <= self.lr:
            raise ValueError(f"optim.min_lr={self.min_lr} must be between 0 and optim.lr={self.lr}")
        if not self.warmup_epochs >= 0:
            raise ValueError(f"optim.warmup_epochs={self.warmup_epochs} must not be negative")
        require_choice("optim.lr_every", self.lr_every, LR_EVERY)
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"optim.clip_norm={self.clip_norm} must be positive, or null")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(f"optim.layer_decay={self.layer_decay} must be in (0, 1], or null")
        if not self.head_lr_scale > 0:
            raise ValueError(f"optim.head_lr_scale={self.head_lr_scale} must be positive")

    def make(self, model: "nn.Module") -> "list[Optimizer]":
        """Return the optimizers of the model: each of its parameters belongs to exactly one.

        Those that do not require gradients are in none.
        """
        raise NotImplementedError


@dataclass
class AdamWConfig(OptimConfig):
    """AdamW (Loshchilov & Hutter 2019)."""

    name: str = "adamw"
    # Applied to matrices only: not to biases, LayerNorms, the class token and the positions.
    weight_decay: float = 0.05
    # Apply it to them, too, as PyTorch's AdamW does.
    decay_all: bool = False
    # How slowly the averages of the gradient and of its square forget.
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight_decay >= 0:
            raise ValueError(f"optim.weight_decay={self.weight_decay} must not be negative")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"optim.{field}={getattr(self, field)} must be in [0, 1)")

    def make(self, model: "nn.Module") -> "list[Optimizer]":
        from vit_train.engine.optim import make_adamw

        return [make_adamw(model, self)]


@dataclass
class MuonConfig(AdamWConfig):
    """Muon (Jordan et al. 2024) for the matrices of the blocks, and AdamW for all other weights."""

    name: str = "muon"
    # How slowly the average of the gradient forgets, for the matrices.
    momentum: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"optim.momentum={self.momentum} must be in [0, 1)")

    def make(self, model: "nn.Module") -> "list[Optimizer]":
        from vit_train.engine.muon import make_muon

        return make_muon(model, self)


OPTIM_CONFIGS: dict[str, type[OptimConfig]] = {
    "adamw": AdamWConfig,
    "muon": MuonConfig,
}


# What the best epoch has the best of; auto is chosen for the data.
METRICS = ("auto", "acc", "balanced_acc", "loss")
# The files of the best epoch by validation and of the latest state.
BEST, LAST = "best.safetensors", "last.safetensors"


@dataclass
class CheckpointConfig:
    """Checkpoints besides those when a run is stopped and after epochs.

    Epochs are left out where saving them all would take more than 1 % of the time.
    """

    # What tells the best epoch in validation: the highest acc (accuracy), the highest balanced_acc
    # (the mean of the classes' accuracies) or the lowest loss. auto: balanced_acc with uneven
    # classes, task.class_weights or data.sampler=balanced, else acc; loss without labels.
    metric: str = "auto"
    # Also save after this many steps or minutes; null: after epochs alone.
    every_steps: int | None = None
    every_minutes: float | None = None
    # Number of older checkpoints that are kept beside last.safetensors, in case it is damaged. Of
    # short epochs only some are saved; every_steps= saves at even distances.
    keep: int = 1
    # If the disk is full or fails: stop, or continue training and try again next time; the end of
    # training must be saved.
    on_error: str = "stop"

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ValueError(f"checkpoint.every_steps={self.every_steps} must be at least 1")
        if self.every_minutes is not None and self.every_minutes <= 0:
            raise ValueError(f"checkpoint.every_minutes={self.every_minutes} must be positive")
        if self.keep < 0:
            raise ValueError(f"checkpoint.keep={self.keep} must not be negative")
        require_choice("checkpoint.metric", self.metric, METRICS)
        require_choice("checkpoint.on_error", self.on_error, ON_ERROR)


@dataclass
class DistributedConfig:
    """Several processes that train one model, as torchrun starts them."""

    # Seconds that a process waits for an answer from the others, before it ends with a message.
    timeout_s: float = 600

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(f"distributed.timeout_s={self.timeout_s} must be positive")


@dataclass
class LoopConfig:
    """Length, batch sizes and limits of the training loop."""

    # Passes over the training images.
    epochs: int = 30
    # Stop early once this many epochs in a row have not improved validation; null never does. The
    # learning rate's schedule remains that of train.epochs.
    patience: int | None = None
    # Images per optimizer step.
    batch_size: int = 64
    # Images computed at once; their gradients are summed. null picks what is fastest on the device.
    # A model with BatchNorm always takes the whole batch, because it needs the batch's statistics.
    micro_batch: int | None = None
    # Images that validation and test take from the data set at once.
    eval_batch_size: int = 256
    # What not to train: encoder trains the head alone, a linear probe of pretrained weights
    # (init_from=); null trains everything.
    freeze: str | None = None
    # Evaluate an exponential moving average of the weights with this decay; null keeps none.
    ema_decay: float | None = None
    # Steps between two points of the training curves.
    log_every: int = 20
    # On a GPU, replay each step as one CUDA graph; without it the CPU launches every operation.
    cuda_graph: bool = True
    # Stop after this time, with a checkpoint, for queues that limit how long a job may run.
    max_minutes: float | None = None
    # If a loss or gradient is NaN or infinity: stop, or skip the step, up to max_skips times in a
    # run. Looked at every log_every steps, so that a GPU need not be waited for.
    on_nonfinite: str = "stop"
    max_skips: int = 10

    def __post_init__(self) -> None:
        counts = "epochs", "patience", "batch_size", "micro_batch", "eval_batch_size", "log_every"
        for field in counts:
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"train.{field}={value} must be at least 1")
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise ValueError(f"train.max_minutes={self.max_minutes} must be positive, or null")
        require_choice("train.on_nonfinite", self.on_nonfinite, ON_NONFINITE)
        if self.freeze is not None:
            require_choice("train.freeze", self.freeze, FREEZE)
        if self.max_skips < 0:
            raise ValueError(f"train.max_skips={self.max_skips} must not be negative")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"train.ema_decay={self.ema_decay} must be between 0 and 1, or null")
