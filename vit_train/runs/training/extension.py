"""The finished run that a new one extends by more epochs: its state, and what is noted of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vit_train.config import TrainConfig
from vit_train.engine.checkpoint import read_checkpoint
from vit_train.files.reading import read_text
from vit_train.files.writing import write_text
from vit_train.report.metrics_csv import CSV_BYTES
from vit_train.runs.load import MISFITS
from vit_train.runs.newest import finished_run
from vit_train.runs.results.summaries import read_curve


@dataclass(frozen=True)
class Extended:
    """What the provenance of a longer run says of a run that it extends, up to its end."""

    run: str
    epochs: int
    steps: int
    images_seen: int
    seconds: float
    # The checksum of its last checkpoint, in which the longer run begins.
    fingerprint: str


@dataclass(frozen=True)
class Earlier:
    """The run that another one extends: its last checkpoint, and all runs so far."""

    folder: Path
    state: dict[str, Any]
    chain: list[Extended]

    def continue_curve(self, folder: Path) -> None:
        """Begin the metrics.csv of this folder with that of the earlier run, if it has one."""
        path = self.folder / "metrics.csv"
        if path.is_file():
            read_curve(path.with_name("summary.json"))  # raises ValueError if it is damaged
            write_text(folder / "metrics.csv", read_text(path, CSV_BYTES))


def read_earlier(config: TrainConfig) -> Earlier | None:
    """Read the run that this config extends; None if it extends none.

    Raise ValueError if it is not finished, or its last checkpoint is missing or damaged.
    """
    if config.extend is None:
        return None
    folder = finished_run(config.extend)
    path = folder / "checkpoints" / "last.pt"
    state = read_checkpoint(path)
    try:
        own = Extended(
            run=str(folder),
            epochs=int(state["epoch"]),
            steps=int(state["step"]),
            images_seen=int(state["images_seen"]),
            seconds=float(state["seconds"]),
            fingerprint=state["seal"],
        )
        return Earlier(folder, state, [*noted(state), own])
    except (*MISFITS, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint of this version of vit-train") from error


def noted(state: dict[str, Any]) -> list[Extended]:
    """Return the runs that a checkpoint's run extends, the first one first.

    Raise TypeError, ValueError or LookupError if the checkpoint says it in another way.
    """
    return [
        Extended(
            str(each["run"]),
            int(each["epochs"]),
            int(each["steps"]),
            int(each["images_seen"]),
            float(each["seconds"]),
            str(each["fingerprint"]),
        )
        for each in state.get("extends", [])
    ]


def as_dicts(chain: Sequence[Extended]) -> list[dict[str, Any]]:
    return [asdict(each) for each in chain]
