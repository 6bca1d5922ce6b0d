"""Settings of training.

Commands can reject a bad value at once, because this module does not import PyTorch.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from vit_train.config.fields import Settings, setting

# Most machines have at most 8 GPUs.
DEVICES = ("auto", "cpu", "cuda", *(f"cuda:{number}" for number in range(8)))
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")


def device_setting() -> Any:
    """Return a dataclass field for the device that computes."""
    text = "auto (a CUDA GPU, if there is one, or the CPU), cpu, cuda, or cuda:0 to cuda:7."
    return setting("auto", text, choices=DEVICES, alters="nothing")


@dataclass
class OptimConfig(Settings):
    """Settings common to all optimizers; `name` selects the optimizer.

    The learning rate rises linearly to `lr` during the warm-up, and then follows `schedule`.
    """

    group: ClassVar[str] = "optim"
    kept_by_fork = False

    name: str = "???"
    # The values of null settings if all weights of a pretrained classifier are trained, chosen on
    # validation images of two tasks with 400 training images each.
    fine_tuning: ClassVar[dict[str, float]] = {"layer_decay": 0.75}

    lr: float | None = setting(
        None,
        "The peak learning rate; null: 0.001 or, to fine-tune a classifier (init_from=) with "
        "AdamW, 0.0003.",
        above=0,
        otherwise=1e-3,
    )
    schedule: str = setting(
        "cosine",
        "Schedule of the learning rate after the warm-up: cosine, linear, wsd (constant, then a "
        "decay in the last fifth of these steps), constant, step (divided by 10 after half and "
        "after three quarters of these steps), or a schedule that your module registers.",
    )
    min_lr: float = setting(
        0.0, "The learning rate at the end of the decay, at most optim.lr.", at_least=0
    )
    warmup_epochs: float = setting(
        1.0,
        "Epochs of linear warm-up to optim.lr; shortened to half of the run if longer.",
        at_least=0,
    )
    lr_every: str = setting(
        "step",
        "step: change the learning rate after every step; epoch: after every epoch, as often done "
        "with PyTorch's schedulers (a warm-up of one epoch then has the peak rate already).",
        choices=("step", "epoch"),
    )
    clip_norm: float | None = setting(
        1.0, "Clip the gradient to at most this norm; null: no clipping.", above=0
    )
    layer_decay: float | None = setting(
        None,
        "Layer-wise decay for fine-tuning: the learning rate of each layer, from the last block "
        "back to the patch embedding, is this factor times the next layer's (BEiT, MAE: 0.65 to "
        "0.75); 1: the same rate for all layers; null: 1 or, to fine-tune a classifier, 0.75.",
        above=0,
        at_most=1,
        kept_by_fork=True,
        otherwise=1.0,
    )
    head_lr_scale: float | None = setting(
        None,
        "Factor for the head's learning rate; null: 1 or, to fine-tune a classifier with AdamW, "
        "10.",
        above=0,
        kept_by_fork=True,
        otherwise=1.0,
    )

    @property
    def peak_lr(self) -> float:
        return float(self.value("lr"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr is not None and self.min_lr > self.lr:
            raise ValueError(f"optim.min_lr={self.min_lr} must be at most optim.lr={self.lr}")


@dataclass
class AdamWConfig(OptimConfig):
    """AdamW (Loshchilov & Hutter 2019)."""

    builds = "vit_train.loop.optimizers:make_adamw"
    fine_tuning: ClassVar[dict[str, float]] = {
        **OptimConfig.fine_tuning,
        "lr": 3e-4,
        "head_lr_scale": 10.0,
    }

    name: str = "adamw"
    weight_decay: float = setting(
        0.05,
        "Weight decay of linear and convolution weights. Biases, LayerNorms, the class token and "
        "positions are not decayed, unless optim.decay_all is true.",
        at_least=0,
    )
    decay_all: bool = setting(
        False,
        "Also decay biases, LayerNorms, the class token and positions, as PyTorch's AdamW does.",
    )
    beta2: float = setting(
        0.999, "Decay rate of the moving average of squared gradients.", at_least=0, below=1
    )


@dataclass
class MuonConfig(AdamWConfig):
    """Muon (Jordan et al. 2024) for the blocks' matrices and convolutions, AdamW for the rest."""

    builds = "vit_train.loop.optimizers:make_muon"
    fine_tuning = OptimConfig.fine_tuning

    name: str = "muon"
    momentum: float = setting(
        0.95, "Momentum of the matrices that Muon trains.", at_least=0, below=1
    )


@dataclass
class SgdConfig(OptimConfig):
    """Stochastic gradient descent with Nesterov momentum (Sutskever et al. 2013)."""

    builds = "vit_train.loop.optimizers:make_sgd"

    name: str = "sgd"
    lr: float | None = setting(None, "The peak learning rate; null: 0.05.", above=0, otherwise=0.05)
    weight_decay: float = setting(5e-4, "L2 penalty on linear and convolution weights.", at_least=0)
    momentum: float = setting(0.9, "Nesterov momentum; 0: none.", at_least=0, below=1)


OPTIM_CONFIGS: dict[str, type[OptimConfig]] = {
    "adamw": AdamWConfig,
    "muon": MuonConfig,
    "sgd": SgdConfig,
}


@dataclass
class CheckpointConfig(Settings):
    """Settings of checkpoints, which are saved after epochs and when a run is stopped.

    Some epochs are not saved if saving all epochs would take more than 1 % of the run's time.
    """

    group: ClassVar[str] = "checkpoint"

    metric: str = setting(
        "auto",
        "The validation metric that selects the best epoch: acc (accuracy), balanced_acc "
        "(mean of the classes' accuracies), map (mean average precision, for task=tags) or loss. "
        "auto: loss for tasks without labels; map for task=tags; "
        "balanced_acc if one class has at least three times as many images as another, or with "
        "task.class_weights or data.sampler=balanced; otherwise acc.",
        choices=("auto", "acc", "balanced_acc", "map", "loss"),
        kept_by_fork=False,
    )
    every_steps: int | None = setting(
        None,
        "Number of steps between additional checkpoints; null: checkpoints only after epochs.",
        at_least=1,
        alters="nothing",
    )
    every_minutes: float | None = setting(
        None,
        "Number of minutes between additional checkpoints; null: checkpoints only after epochs.",
        above=0,
        alters="nothing",
    )
    keep: int = setting(
        1,
        "Number of older checkpoints to keep beside last.safetensors, in case that file is "
        "damaged. If epochs are short, not every epoch is saved; to save at regular intervals, "
        "set checkpoint.every_steps=.",
        at_least=0,
        alters="nothing",
    )
    keep_every: int | None = setting(
        None,
        "Number of epochs between checkpoints that are never deleted, such as "
        "epoch-10.safetensors; null: no such checkpoints.",
        at_least=1,
        alters="nothing",
    )
    on_error: str = setting(
        "stop",
        "If a checkpoint cannot be saved, for example on a full disk: stop, or continue training "
        "and try again at the next checkpoint. In either case, the run fails if its last "
        "checkpoint cannot be saved.",
        choices=("stop", "continue"),
        alters="nothing",
    )


@dataclass
class DistributedConfig(Settings):
    """Settings for training one model in several processes, started by torchrun."""

    group: ClassVar[str] = "distributed"

    timeout_s: float = setting(
        600,
        "Seconds to wait for the other processes before the run ends with an error.",
        above=0,
        alters="nothing",
    )


@dataclass
class LoopConfig(Settings):
    """Settings of the training loop: its length, batch sizes and limits."""

    group: ClassVar[str] = "train"
    kept_by_fork = False

    # As in OptimConfig.
    fine_tuning: ClassVar[dict[str, int]] = {"epochs": 20}

    epochs: int | None = setting(
        None,
        "Passes over the training images. Each pass leaves out the images of an incomplete last "
        "batch, different ones each time: of 97 images, 33 with batches of 64. null: 30; to "
        "fine-tune a classifier (init_from=), 20; with train.minutes, as many as fit.",
        at_least=1,
        otherwise=30,
    )
    minutes: float | None = setting(
        None,
        "Choose train.epochs so that training, validation and the final test fit into this many "
        "minutes; the speed is measured in a few steps before training. null: train.epochs "
        "decides.",
        above=0,
        kept_by_fork=True,
    )
    patience: int | None = setting(
        None,
        "Stop early after this many epochs in a row without a better validation result; "
        "null: never. The learning rate still follows the schedule for train.epochs.",
        at_least=1,
    )
    batch_size: int = setting(64, "Images per optimizer step.", at_least=1, kept_by_fork=True)
    micro_batch: int | None = setting(
        None,
        "Images processed at once (a micro-batch); the gradients of a step's micro-batches are "
        "summed. null: 16 on a CPU (up to 64 in bf16), otherwise the whole batch. A model with "
        "BatchNorm always processes the whole batch, because BatchNorm needs the statistics of "
        "the batch.",
        at_least=1,
        alters="rounding",
    )
    eval_batch_size: int = setting(
        256, "Images per batch in validation and testing.", at_least=1, alters="rounding"
    )
    freeze: str | None = setting(
        None,
        "encoder: freeze the pretrained encoder (init_from=), as for a linear probe; "
        "null: train everything.",
        choices=("encoder",),
        kept_by_fork=True,
    )
    ema_decay: float | None = setting(
        None,
        "Decay of an exponential moving average of the weights. If set, the averaged weights are "
        "evaluated. null: no average.",
        above=0,
        below=1,
        kept_by_fork=True,
    )
    log_every: int = setting(
        20,
        "Steps between two points of the training curves, each the mean since the point before; "
        "every epoch ends with a point. On a GPU, other points are at least a second apart.",
        at_least=1,
        alters="nothing",
    )
    cuda_graph: bool = setting(
        True,
        "On a GPU, replay each step as one CUDA graph instead of launching every operation.",
        alters="rounding",
    )
    max_minutes: float | None = setting(
        None,
        "Save a checkpoint and stop after this many minutes, for job queues with a time limit; "
        "null: no limit.",
        above=0,
        alters="nothing",
    )
    on_nonfinite: str = setting(
        "stop",
        "If the loss or gradient of a step is NaN or infinite: stop the run, or skip the step. "
        "Checked at each point of the training curves and after each epoch; in either case, such a "
        "step changes no weights.",
        choices=("stop", "skip"),
    )

    @property
    def num_epochs(self) -> int:
        return int(self.value("epochs"))
