"""Kill training at random, go on, and compare with a run that was left alone: bitwise equal."""

import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from test_resume import assert_same_run

from torture.children import Child, in_children
from vit_train.commands import train
from vit_train.engine import workers

SMALL = [
    "data.train_images=120",
    "data.test_images=30",
    "train.epochs=4",
    "train.batch_size=16",
    "train.log_every=2",
    "checkpoint.every_steps=3",
    "precision=fp32",  # in every process, however close a measurement of bf16 is
]
VIT = ["model.patch_size=8", "model.embed_dim=8", "model.num_heads=2", "model.depth=1"]


@dataclass(frozen=True)
class Configuration:
    """A run's settings, and in how many processes it trains."""

    arguments: list[str]
    processes: int = 1


CONFIGURATIONS = {
    "plain": Configuration([*VIT, "train.micro_batch=8"]),
    "dropout, strong augmentation": Configuration(
        [*VIT, "augment=strong", "model.dropout=0.1", "model.drop_path=0.1"]
    ),
    "EMA, accumulation, Mixup": Configuration(
        [*VIT, "train.ema_decay=0.9", "train.micro_batch=4", "augment.mixup_alpha=0.4"]
    ),
    "autoregress": Configuration([*VIT, "task=autoregress", "task.given_rows=2"]),
    "reconstruct": Configuration([*VIT, "task=reconstruct", "model.dropout=0.1"]),
    "CNN with BatchNorm": Configuration(["model=cnn", "model.widths=[4,8]"]),
    "two processes": Configuration([*VIT, "model.dropout=0.1", "train.ema_decay=0.9"], 2),
}
# What writes a checkpoint makes these calls, and whatever else changes the run's folder.
FILE_CALLS = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"}


def in_child(rank: int, dies_at: int | None) -> Callable[[], None]:
    """In the child: two workers on any machine; and death at this call that concerns files."""

    def prepare() -> None:
        workers.CORES = 2
        train.IS_MAIN = rank == 0  # what is imported anew elsewhere has asked the environment
        left = dies_at

        def hook(event: str, what: tuple[object, ...]) -> None:
            nonlocal left
            if left is not None and event in FILE_CALLS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        if dies_at is not None:
            sys.addaudithook(hook)

    return prepare


def environments(processes: int) -> list[dict[str, str]]:
    """What torchrun would set for each. The port is one that was free a moment ago."""
    if processes == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


class Training:
    """The processes that train in one folder, from its beginning or from where they were killed."""

    def __init__(self, one: Configuration, folder: Path, dies_at: int | None = None) -> None:
        self.folder, self.config = folder, folder / "config.yaml"
        self.begun = self.changed()
        arguments = [*SMALL, *one.arguments, f"hydra.run.dir={folder}"]
        if self.begun:
            arguments = [f"resume={folder}"]
        self.children = [
            Child(
                "vit-train", arguments, folder.parent / f"process-{rank}", environment,
                in_child(rank, None if rank else dies_at), seconds=600,
            )
            for rank, environment in enumerate(environments(one.processes))
        ]  # fmt: skip

    def changed(self) -> int:
        """When the settings were written, which is just before the first step."""
        return self.config.stat().st_mtime_ns if self.config.exists() else 0

    def wait_for_training(self) -> None:
        while self.changed() == self.begun and not self.over():
            time.sleep(0.002)

    def over(self) -> bool:
        """Whether one of the processes has ended; then the others do so soon."""
        return any([child.poll() for child in self.children])

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.over():
            time.sleep(0.002)

    def was_killed(self) -> bool:
        outcomes = [child.poll() for child in self.children]
        return any(outcome and outcome.status == -signal.SIGKILL for outcome in outcomes)

    def end(self) -> None:
        """As torchrun ends those that are left when one has died."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 60)):
            left = [child for child in self.children if child.poll() is None]
            for child in left:
                os.kill(child.pid, number)
            deadline = time.monotonic() + patience
            while left and time.monotonic() < deadline:
                left = [child for child in left if child.poll() is None]
                time.sleep(0.01)

    def finish(self) -> None:
        """To the end; it must be a good one."""
        for child in self.children:
            outcome = child.wait()
            if outcome.status:
                raise AssertionError(
                    f"{self.folder}: status {outcome.status} {outcome.stopped}\n"
                    f"{outcome.out[-2000:]}{outcome.err[-2000:]}"
                )


@dataclass(frozen=True)
class Pace:
    """Of a run that was left alone: seconds until the first step, and from there to the end."""

    start: float
    training: float


def undisturbed(one: Configuration, folder: Path) -> Pace:
    began = time.monotonic()
    training = Training(one, folder)
    training.wait_for_training()
    first_step = time.monotonic()
    training.finish()
    return Pace(first_step - began, time.monotonic() - first_step)


def killed(one: Configuration, folder: Path, pace: Pace, rng: random.Random) -> bool:
    """Whether it was killed before it ended by itself, which it must do with status 0."""
    way = rng.choice(["at a call", "while it trains", "while it trains", "at any moment"])
    training = Training(one, folder, rng.randrange(1, 120) if way == "at a call" else None)
    if way == "at a call":
        training.wait(60)
    elif way == "while it trains":
        training.wait_for_training()
        training.wait(rng.uniform(0, pace.training / 2))
    else:
        training.wait(rng.uniform(0, pace.start + pace.training / 2))
    for child in rng.choice([training.children, [rng.choice(training.children)]]):
        if child.poll() is None:
            child.kill()
            child.wait()
    if training.was_killed():
        training.end()
        return True
    training.finish()
    return False


def torture(name: str, kills: int, seed: int) -> None:
    """Runs of this configuration until so many processes were killed; AssertionError for a run
    that ended otherwise than the one that was left alone.
    """
    rng, one = random.Random(f"{name}{seed}"), CONFIGURATIONS[name]
    done = runs = 0
    scratch = Path(tempfile.mkdtemp(prefix="torture-"))  # kept if this fails, to look at
    whole = scratch / "whole" / "run"
    whole.parent.mkdir()
    pace = undisturbed(one, whole)
    while done < kills:
        runs += 1
        folder = scratch / str(runs) / "run"
        folder.parent.mkdir()
        here = 0
        while killed(one, folder, pace, rng):
            here += 1
        done += here
        try:
            assert_same_run(whole, folder)
        except AssertionError as error:
            raise AssertionError(f"{folder} ended otherwise than {whole}") from error
        print(f"{name}: run {runs} was killed {here} times and ended bitwise equal", flush=True)
        shutil.rmtree(folder.parent)
    shutil.rmtree(scratch)
    print(f"{name}: {done} kills, {runs} runs, all bitwise equal", flush=True)


def torture_all(kills: int, seed: int, jobs: int) -> bool:
    """Every configuration; whether all runs ended as they must."""
    good = True
    work = in_children(iter(CONFIGURATIONS), lambda name: torture(name, kills, seed), jobs)
    for name, status, _ in work:
        if status:
            print(f"{name}: status {status}", flush=True)
            good = False
    print(
        f"{len(CONFIGURATIONS)} configurations, {'all well' if good else 'not all well'}",
        flush=True,
    )
    return good
