"""What a run goes on from: a checkpoint of its own, or the end of the run that it extends."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_train.config import TrainConfig, default_settings
from vit_train.engine.checkpoint import read_checkpoint
from vit_train.engine.config import LAST
from vit_train.files.plain_values import flatten
from vit_train.files.reading import read_text
from vit_train.files.writing import write_text
from vit_train.report.metrics_csv import CSV_BYTES
from vit_train.runs.load import MISFITS
from vit_train.runs.paths import CHECKPOINTS, SUMMARY, finished_run
from vit_train.runs.results.summaries import REPEATED, read_curve, settings_of

# What the provenance of a longer run says of a run that it extends, up to that run's end. The
# fingerprint is the checksum of its last checkpoint, in which the longer run begins; the recipe is
# a hash of all its settings but the seed and the fold, by which runs of one recipe are known.
FACTS: dict[str, Callable[[Any], Any]] = {
    "run": str,
    "epochs": int,
    "steps": int,
    "images_seen": int,
    "seconds": float,
    "fingerprint": str,
    "recipe": str,
}


@dataclass(frozen=True)
class Earlier:
    """What a run goes on from: its own checkpoint or, with a `folder`, the last one of that run."""

    state: dict[str, Any]
    # The runs that this one extends, the first one first.
    chain: list[dict[str, Any]]
    # Of the run that is extended now.
    folder: Path | None = None

    @property
    def argument(self) -> str:
        return "extend" if self.folder else "resume"

    def continue_curve(self, folder: Path) -> None:
        """Begin the metrics.csv of a new folder with that of the extended run, if it has one."""
        if self.folder and (path := self.folder / "metrics.csv").is_file():
            read_curve(path.with_name(SUMMARY))  # raises ValueError if it is damaged
            write_text(folder / "metrics.csv", read_text(path, CSV_BYTES))


def read_earlier(config: TrainConfig, checkpoint: Path | None) -> Earlier | None:
    """Read what a run goes on from; None if it begins at its beginning.

    Raise ValueError if the run that it extends is not finished, or a checkpoint is missing or
    damaged.
    """
    folder = None
    if checkpoint is None:
        if config.extend is None:
            return None
        folder = finished_run(config.extend)
        checkpoint = folder / CHECKPOINTS / LAST
    state = read_checkpoint(checkpoint)
    try:
        chain = [checked(each) for each in state.get("extends", [])]
        if folder is None:
            return Earlier(state, chain)
        own = {"run": folder, "epochs": state["epoch"], "steps": state["step"]}
        own |= {"fingerprint": state["seal"], "recipe": recipe(state["config"], chain)}
        own |= {key: state[key] for key in ("images_seen", "seconds")}
        return Earlier(state, [*chain, checked(own)], folder)
    except (*MISFITS, ValueError) as error:
        raise ValueError(
            f"{checkpoint} is not a checkpoint of this version of vit-train"
        ) from error


def recipe(config: dict[str, Any], chain: list[dict[str, Any]]) -> str:
    """Return a short name of the settings that this run shares with its repetitions.

    What is at its default is left out, so that a later version with more settings agrees.
    """
    settings = settings_of({"config": config, "extends": chain})
    defaults = dict(flatten(default_settings(config)))
    shared = sorted(
        (key, str(value))
        for key, value in settings.items()
        if key not in REPEATED and (key.endswith("name") or value != defaults.get(key))
    )
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:8]


def checked(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts, each of its type; runs of earlier versions note no recipe."""
    return {key: kind(facts[key]) for key, kind in FACTS.items() if key != "recipe" or key in facts}
