"""Trained models that travel with the package: `builtin:NAME` wherever a run can be named.

Each is a checkpoint whose weights have half precision, NAME.safetensors in vit_train/builtin/, with
its card NAME.md, its run's summary NAME.json and curve NAME.csv beside it.
"""

from pathlib import Path

PREFIX, SUFFIX = "builtin:", ".safetensors"
FOLDER = Path(__file__).parents[1] / "builtin"


def is_builtin(checkpoint: Path) -> bool:
    return checkpoint.parent == FOLDER


def builtin_names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob(f"*{SUFFIX}"))


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
    return FOLDER / f"{name.removeprefix(PREFIX)}{SUFFIX}"
