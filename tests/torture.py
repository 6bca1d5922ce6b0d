"""make torture: kill training at random moments, go on, and compare with a run that was left alone.

Every run ends bitwise equal to the undisturbed one, or this ends with an error.
"""

import argparse
import importlib
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from test_resume import assert_same_run

from vit_train.commands.train import main

SMALL = [
    "data.train_images=300",
    "data.test_images=60",
    "model.embed_dim=16",
    "model.depth=2",
    "train.epochs=12",
    "train.batch_size=32",
    "train.log_every=3",
    "checkpoint.every_steps=5",
]
CONFIGS = {
    "plain": [],
    "EMA, accumulation, Mixup": [
        "train.ema_decay=0.9", "train.micro_batch=8", "augment.mixup_alpha=0.4",
        "model.dropout=0.1",
    ],
    "reconstruct": ["task=reconstruct", "task.decoder_depth=1"],
}  # fmt: skip


# Children begin where this process is, with everything imported: so the time they are given to
# live falls on training.
FORK = multiprocessing.get_context("fork")


def vit_train(arguments: list[str], log: Path) -> None:
    """In a process of its own."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["vit-train", *arguments]
    main()


def start(folder: Path, arguments: list[str]) -> multiprocessing.Process:
    """The run from its beginning, or from where the last process left it."""
    begun = (folder / "config.yaml").exists()
    rest = [f"resume={folder}"] if begun else [*SMALL, *arguments, f"hydra.run.dir={folder}"]
    process = FORK.Process(target=vit_train, args=(rest, folder.parent / "output.txt"))
    process.start()
    return process


def finish(process: multiprocessing.Process, folder: Path) -> None:
    process.join()
    if process.exitcode:
        text = (folder.parent / "output.txt").read_text()[-2000:]
        sys.exit(f"status {process.exitcode}: {text}")


def kill_at_random(folder: Path, arguments: list[str], seconds: float, rng: random.Random) -> bool:
    """Whether the process was killed before it ended by itself, which it must do with status 0."""
    process = start(folder, arguments)
    process.join(rng.uniform(0, seconds))
    if process.exitcode is None:
        process.kill()
        process.join()
        return True
    finish(process, folder)
    return False


def torture(name: str, kills: int, seed: int) -> None:
    rng = random.Random(f"{name}{seed}")
    done = runs = 0
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole", "run")
        whole.parent.mkdir()
        began = time.monotonic()
        finish(start(whole, CONFIGS[name]), whole)
        seconds = time.monotonic() - began
        while done < kills:
            runs += 1
            folder = Path(scratch, str(runs), "run")
            folder.parent.mkdir()
            here = 0
            while kill_at_random(folder, CONFIGS[name], seconds, rng):
                here += 1
            done += here
            assert_same_run(whole, folder)
            print(f"{name}: run {runs} was killed {here} times and ended bitwise equal", flush=True)
    print(f"{name}: {done} kills, {runs} runs, all bitwise equal", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=17, help="of each configuration, at least")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    importlib.import_module("vit_train.training")
    for each in CONFIGS:
        torture(each, options.kills, options.seed)
