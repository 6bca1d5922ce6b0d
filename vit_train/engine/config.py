"""How to train; torch-free, so that a bad value is refused at once."""

from dataclasses import dataclass

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def require_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field}={value} must be one of: {', '.join(choices)}")


@dataclass
class OptimConfig:
    """AdamW (Loshchilov & Hutter 2019) with linear warm-up and a cosine to `min_lr`."""

    lr: float = 1e-3
    min_lr: float = 0.0
    warmup_epochs: float = 1.0
    # On matrices only: biases, LayerNorms, the class token and the positions are left alone.
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.999
    # The gradient's greatest norm; null does not clip.
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"optim.lr={self.lr} must be positive")
        if not 0 <= self.min_lr <= self.lr:
            raise ValueError(f"optim.min_lr={self.min_lr} must be between 0 and optim.lr={self.lr}")
        for field in ("warmup_epochs", "weight_decay"):
            if getattr(self, field) < 0:
                raise ValueError(f"optim.{field}={getattr(self, field)} must not be negative")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"optim.{field}={getattr(self, field)} must be in [0, 1)")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"optim.clip_norm={self.clip_norm} must be positive, or null")


@dataclass
class LoopConfig:
    """The length and shape of a run."""

    epochs: int = 30
    # Images an optimizer step.
    batch_size: int = 64
    # Images computed at once, their gradients added up; null: what the device does fastest. A
    # model with BatchNorm always takes the whole batch, whose statistics it needs.
    micro_batch: int | None = None
    eval_batch_size: int = 256
    # Evaluate an exponential average of the weights, with this decay; null keeps none.
    ema_decay: float | None = None
    # Steps between two points of the training curves.
    log_every: int = 20

    def __post_init__(self) -> None:
        for field in ("epochs", "batch_size", "micro_batch", "eval_batch_size", "log_every"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"train.{field}={value} must be at least 1")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"train.ema_decay={self.ema_decay} must be between 0 and 1, or null")
