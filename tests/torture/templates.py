"""Runs that inputs begin with: made once, copied for each."""

from pathlib import Path

from torture.children import Child
from torture.kills import SMALL, VIT

RUN = [*VIT, *SMALL, "train.epochs=2"]
RUNS = {
    "finished": RUN,
    "interrupted": [*RUN, "train.max_minutes=1e-9"],
    "reconstruct": [*RUN, "task=reconstruct", "task.decoder_depth=1"],
}


def make_templates(folder: Path) -> None:
    """A finished run and others, each in a folder by its name."""
    folder.mkdir()
    for name, arguments in RUNS.items():
        output = folder / f"{name}-output"
        child = Child("vit-train", [*arguments, f"hydra.run.dir={folder / name}"], output)
        outcome = child.wait()
        if outcome.status:
            raise AssertionError(f"no {name} run: {outcome.stopped}{outcome.out}{outcome.err}")
