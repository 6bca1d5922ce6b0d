"""The run from which another one continues: the same, stopped before, or one that it extends."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vit_train.base.memory import is_out_of_memory
from vit_train.base.reading import flatten, read_text
from vit_train.base.text import counted
from vit_train.engine import resuming
from vit_train.engine.config import LAST
from vit_train.engine.trainer import Trainer
from vit_train.results.summaries import CSV_BYTES, REPEATED, settings_of
from vit_train.runs.checkpoint import Checkpoint, Extended
from vit_train.runs.config import TrainConfig, default_settings
from vit_train.runs.paths import CHECKPOINTS, finished_run
from vit_train.training.setup import Setup


@dataclass(frozen=True)
class Earlier:
    """The checkpoint from which a run continues: its own or, with a `folder`, that run's last."""

    state: Checkpoint
    # The runs that this one extends, the first one first.
    chain: list[Extended]
    # Of the run that is extended now.
    folder: Path | None = None

    def words(self, config: TrainConfig) -> str:
        """Describe where training begins."""
        if self.folder is None:
            return f"resuming after step {self.state.step}"
        optim, epochs = config.optim, counted(config.train.epochs, "epoch")
        return (
            f"extends {self.folder} after epoch {self.state.epoch}: the learning rate rises to "
            f"{optim.lr:g} in {optim.warmup_epochs:g} of {epochs}, then falls to {optim.min_lr:g}"
        )

    def require_same(self, setup: Setup) -> None:
        """Raise ValueError if this is a run of other images, or of another teacher."""
        now, then = setup.teacher, self.state.teacher
        if self.state.fingerprint != setup.data.fingerprint:
            raise self.refusal("the images on disk are not those it was trained on")
        if then.get("fingerprint") != now.get("fingerprint"):
            teacher = now.get("checkpoint", "none")
            raise self.refusal(f"its teacher was not this one, as it is now: {teacher}")

    def restore(self, trainer: Trainer) -> None:
        """Continue with this run's state; raise ValueError if it does not fit.

        The checkpoint's checksum was valid: then it belongs to another run.
        """
        try:
            if self.folder:
                resuming.extend(trainer, self.state)
            else:
                resuming.restore(trainer, self.state)
        except (ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise self.refusal(str(error)) from error

    def refusal(self, reason: str) -> ValueError:
        argument = "extend" if self.folder else "resume"
        return ValueError(f"{argument}: this checkpoint is not from this run: {reason}")

    def curve(self) -> str:
        """Return the metrics.csv of the extended run, if it has one; else ""."""
        if self.folder and (path := self.folder / "metrics.csv").is_file():
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
