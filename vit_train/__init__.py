"""Train and understand Vision Transformers on small images.

In Python: `model, meta = vit_train.load("outputs/.../")` gives a trained model and what it means.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["load"]

if TYPE_CHECKING:
    from vit_train.trained import load


def __getattr__(name: str) -> Any:
    """Import torch only when `load` is used: the commands answer `--help` without it."""
    if name == "load":
        from vit_train.trained import load

        return load
    raise AttributeError(f"module 'vit_train' has no attribute {name!r}")
