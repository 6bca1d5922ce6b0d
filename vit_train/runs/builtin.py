"""Trained models that travel with the package: `builtin:NAME` wherever a run can be named.

Each is a checkpoint whose weights have half precision, NAME.pt in vit_train/builtin/, with its card
NAME.md beside it.
"""

from pathlib import Path

import torch

from vit_train.engine.checkpoint import read_checkpoint, save_checkpoint

PREFIX = "builtin:"
FOLDER = Path(__file__).parents[1] / "builtin"


def builtin_names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.pt"))


def builtin_checkpoint(path: str | Path) -> Path | None:
    """Return the file that `builtin:NAME` means; None for any other path.

    Raise ValueError if there is no such model.
    """
    name = str(path)
    if not name.startswith(PREFIX):
        return None
    if name.removeprefix(PREFIX) not in builtin_names():
        known = ", ".join(PREFIX + each for each in builtin_names())
        raise ValueError(f"there is no {name}: choose from {known}")
    return FOLDER / f"{name.removeprefix(PREFIX)}.pt"


def pack(checkpoint: Path, target: Path, temperature: float | None = None) -> None:
    """Write what `load` needs of a checkpoint, its weights in half precision.

    The averaged weights are taken if there are any. What belongs to the machine that trained them
    is left out.
    """
    content = read_checkpoint(checkpoint)
    weights = content["ema"] or content["model"]
    kept = ("classes", "image_shape", "mean", "std", "versions", "fingerprint")
    progress = ("epoch", "step", "images_seen")
    config = content["config"]
    config["data"] |= {"root": "data", "download": False}
    save_checkpoint(
        target,
        {key: content[key] for key in (*kept, *progress)}
        | {"config": config, "ema": None, "temperature": temperature}
        | {"model": {key: halved(value) for key, value in weights.items()}},
    )


def halved(value: torch.Tensor) -> torch.Tensor:
    return value.half() if value.is_floating_point() else value
