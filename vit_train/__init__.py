"""Train and understand Vision Transformers on small images.

`model, meta = load("outputs/…")` returns a run's model and its metadata. To train one:

    from vit_train import TrainConfig, ViTConfig, train

    run = train(TrainConfig(model=ViTConfig(depth=4)), "outputs/mine")

Then `run.summary` and `run.metrics` hold its results, and `run.load()` returns its model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["TrainConfig", "ViTConfig", "VisionTransformer", "load", "train"]

if TYPE_CHECKING:
    from vit_train.config.model import ViTConfig
    from vit_train.config.run import TrainConfig
    from vit_train.model.vit import VisionTransformer
    from vit_train.run.train import train
    from vit_train.trained.load import load

HOMES = {
    "TrainConfig": "vit_train.config.run",
    "ViTConfig": "vit_train.config.model",
    "VisionTransformer": "vit_train.model.vit",
    "load": "vit_train.trained.load",
    "train": "vit_train.run.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `--help` prints without importing torch."""
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    if name == "__version__":
        from importlib.metadata import version  # slow, and rarely needed

        return version("vit-train")
    raise AttributeError(f"module 'vit_train' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the module's names, including those that are imported on first use."""
    return sorted({*globals(), *HOMES, "__version__"})
