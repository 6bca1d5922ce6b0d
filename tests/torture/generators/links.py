"""Run folders with links and special files in them, at names that the commands read or write."""

import os
import random
import shutil
from pathlib import Path

from torture.kills import SMALL, VIT
from torture.place import Place

BEST, LAST = (f"checkpoints/{name}.safetensors" for name in ("best", "last"))
NAMES = (
    *("config.yaml", "summary.json", "metrics.csv", "train.log", ".lock"),
    *("events.out.tfevents.1.x.1.0", "events"),
    *(
        "checkpoints",
        "checkpoints/last.safetensors",
        "checkpoints/best.safetensors",
        "checkpoints/last-1.safetensors",
    ),
    *("checkpoints/x.pt"),
    *("eval-test", "eval-test-last", "calibration.json", "positions.png", "pictures.png"),
    *("nonfinite-step-1.pt", "run.json", "run.csv"),
    *("results.md", "results.png", "curves.png", "images.png"),
)
KINDS = (
    *("link to a file", "link to a copy", "dangling link", "link to a folder"),
    *("link to a copy of the folder", "FIFO", "folder", "link to zeros", "link to itself"),
    *("link to a FIFO", "empty file"),
)
COMMANDS = ("eval", "eval", "resume", "resume", "results", "results inside", "start")


def make(rng: random.Random, place: Place) -> None:
    command = rng.choice(COMMANDS)
    place.note(command)
    if command == "start":
        run = place.here / "run"
        (run / "checkpoints").mkdir(parents=True)
    else:
        kind = "interrupted" if command == "resume" else rng.choice(["finished", "reconstruct"])
        run = place.copy(kind)
    for number in range(rng.choice([1, 1, 2])):
        put(rng.choice(KINDS), chosen(rng, run), place, number)
    checkpoint = rng.choice(
        ["run", "run/checkpoints/last.safetensors", "run/checkpoints/best.safetensors"]
    )
    arguments = {
        "eval": ["vit-eval", f"ckpt={checkpoint}"],
        "resume": ["vit-train", "resume=run", "train.max_minutes=null"],
        "results": ["vit-results", "run", "--out", "out"],
        "results inside": ["vit-results", "run", "--out", "run"],
        "start": ["vit-train", *VIT, *SMALL, "train.epochs=1", "hydra.run.dir=run"],
    }[command]
    place.run(*arguments, writes=["out" if command == "results" else "run"])


def chosen(rng: random.Random, run: Path) -> Path:
    name = rng.choice(NAMES)
    there = sorted(run.glob("events.*"))
    return rng.choice(there) if name == "events" and there else run / name


def irregular(folder: str, names: list[str]) -> list[str]:
    """The FIFOs and dangling links that were put there before."""
    there = (Path(folder, name) for name in names)
    return [path.name for path in there if not (path.is_file() or path.is_dir())]


def put(kind: str, path: Path, place: Place, number: int) -> None:
    """Instead of what is there."""
    place.note(f"{path.relative_to(place.here)}: {kind}")
    victim = place.outside / f"{number}-{path.name}"
    copied = kind in ("link to a copy", "link to a copy of the folder")
    if copied and path.is_dir():
        shutil.copytree(path, victim, ignore=irregular)
    elif copied and path.is_file():
        shutil.copy2(path, victim)
    elif kind == "link to a folder" or kind == "link to a copy of the folder":
        victim.mkdir(exist_ok=True)
        (victim / "kept").write_text("kept", encoding="utf-8")
    elif kind == "link to a FIFO":
        os.mkfifo(victim)
    elif kind != "dangling link":
        victim.write_text("a victim\n", encoding="utf-8")
    if not path.parent.is_dir():
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "kept").write_text("kept", encoding="utf-8")
    elif kind == "empty file":
        path.touch()
    else:
        path.symlink_to(
            {"link to zeros": "/dev/zero", "link to itself": path.name}.get(kind, victim)
        )
