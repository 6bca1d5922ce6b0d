"""What a run goes on from: a checkpoint of its own, or the end of the run that it extends."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vit_train.config import TrainConfig, default_settings
from vit_train.engine.config import LAST
from vit_train.files.plain_values import flatten
from vit_train.files.reading import read_text
from vit_train.report.metrics_csv import CSV_BYTES
from vit_train.runs.checkpoint import Checkpoint, Extended
from vit_train.runs.paths import CHECKPOINTS, SUMMARY, finished_run
from vit_train.runs.results.summaries import REPEATED, read_curve, settings_of


@dataclass(frozen=True)
class Earlier:
    """What a run goes on from: its own checkpoint or, with a `folder`, the last one of that run."""

    state: Checkpoint
    # The runs that this one extends, the first one first.
    chain: list[Extended]
    # Of the run that is extended now.
    folder: Path | None = None

    @property
    def argument(self) -> str:
        return "extend" if self.folder else "resume"

    def curve(self) -> str:
        """Return the metrics.csv of the extended run, if it has one; else ""."""
        if self.folder and (path := self.folder / "metrics.csv").is_file():
            read_curve(path.with_name(SUMMARY))  # raises ValueError if it is damaged
            return read_text(path, CSV_BYTES)
        return ""


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
    state = Checkpoint.load(checkpoint)
    if folder is None:
        return Earlier(state, state.extends)
    own = Extended(
        run=str(folder),
        epochs=state.epoch,
        steps=state.step,
        images_seen=state.images_seen,
        seconds=state.seconds,
        fingerprint=state.checksum,
        recipe=recipe(state.config, state.extends),
    )
    return Earlier(state, [*state.extends, own], folder)


def recipe(config: dict[str, Any], chain: list[Extended]) -> str:
    """Return a short name of the settings that this run shares with its repetitions.

    What is at its default is left out, so that a later version with more settings agrees.
    """
    settings = settings_of({"config": config, "extends": list(map(asdict, chain))})
    defaults = dict(flatten(default_settings(config)))
    shared = sorted(
        (key, str(value))
        for key, value in settings.items()
        if key not in REPEATED and (key.endswith("name") or value != defaults.get(key))
    )
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:8]
