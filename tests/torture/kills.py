"""Kill training at random, go on, and compare with a run that was left alone: bitwise equal."""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from test_resume import assert_same_run

from torture.children import FORK, Outcome, Process, ended, start
from vit_train.loop import workers

SMALL = [
    *("data.train_images=120", "data.test_images=30", "train.epochs=4", "train.batch_size=16"),
    *("train.log_every=2", "checkpoint.every_steps=3"),
    "precision=fp32",  # in every process, however close a measurement of bf16 is
]
VIT = ["model.patch_size=8", "model.embed_dim=8", "model.num_heads=2", "model.depth=1"]
CONFIGURATIONS = {
    "plain": [*VIT, "train.micro_batch=8"],
    "dropout, strong augmentation": [
        *(*VIT, "augment=strong", "model.dropout=0.1", "model.drop_path=0.1"),
    ],
    "EMA, accumulation, Mixup": [
        *(*VIT, "train.ema_decay=0.9", "train.micro_batch=4", "augment.mixup_alpha=0.4"),
    ],
    "autoregress": [*VIT, "task=autoregress", "task.given_rows=2"],
    "reconstruct": [*VIT, "task=reconstruct", "model.dropout=0.1"],
    "CNN with BatchNorm": ["model=cnn", "model.widths=[4,8]"],
}
# What writes a checkpoint makes these calls, and whatever else changes the run's folder.
FILE_CALLS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"}


def in_child(dies_at: int | None) -> Callable[[], None]:
    """In the child: two workers on any machine; and death at this call that concerns files."""

    def prepare() -> None:
        workers.CORES = 2
        left = dies_at or sys.maxsize

        def hook(event: str, what: tuple[object, ...]) -> None:
            nonlocal left
            if event in FILE_CALLS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    return prepare


def train(settings: list[str], folder: Path, dies_at: int | None = None) -> Process:
    """Training in this folder, from its beginning or from where it was killed."""
    arguments = [*SMALL, *settings, f"hydra.run.dir={folder}"]
    if (folder / "config.yaml").exists():
        arguments = [f"resume={folder}"]
    folder.parent.mkdir(exist_ok=True)
    return start("vit-train", arguments, folder.parent / "train", before=in_child(dies_at))


def require_good(outcome: Outcome) -> None:
    if outcome.status or outcome.stopped:
        words = f"status {outcome.status} {outcome.stopped}\n{outcome.out}{outcome.err}"
        raise AssertionError(words[-4000:])


def killed(settings: list[str], folder: Path, pace: float, rng: random.Random) -> bool:
    """Whether it was killed before it ended by itself, which it must do with status 0."""
    if rng.random() < 0.3:
        child = train(settings, folder, dies_at=rng.randrange(1, 120))
        child.join()
    else:
        child = train(settings, folder)
        child.join(rng.uniform(0, pace))
        child.kill()
    outcome = ended(child, folder.parent / "train")
    if outcome.status == -signal.SIGKILL:
        return True
    require_good(outcome)
    return False


def torture(name: str, kills: int, seed: int) -> None:
    """Runs of this configuration until so many processes were killed; AssertionError for a run
    that ended otherwise than the one that was left alone.
    """
    rng, settings = random.Random(f"{name}{seed}"), CONFIGURATIONS[name]
    scratch = Path(tempfile.mkdtemp(prefix="torture-"))  # kept if this fails, to look at
    whole, began = scratch / "whole" / "run", time.monotonic()
    require_good(ended(train(settings, whole), whole.parent / "train"))
    pace, done, runs = time.monotonic() - began, 0, 0
    while done < kills:
        runs += 1
        folder = scratch / str(runs) / "run"
        here = 0
        while killed(settings, folder, pace, rng):
            here += 1
        done += here
        assert_same_run(whole, folder)
        print(f"{name}: run {runs} was killed {here} times and ended bitwise equal", flush=True)
        shutil.rmtree(folder.parent)
    shutil.rmtree(scratch)


def torture_all(kills: int, seed: int, jobs: int) -> bool:
    """Every configuration; whether all runs ended as they must."""
    with ProcessPoolExecutor(jobs, FORK) as pool:
        work = {name: pool.submit(torture, name, kills, seed) for name in CONFIGURATIONS}
    for name, each in work.items():
        print(f"{name}: {each.exception() or 'all bitwise equal'}", flush=True)
    return not any(each.exception() for each in work.values())
