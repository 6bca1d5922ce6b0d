"""The rounds of one batch size: in each, every contender has a turn, one after the other."""

import contextlib
import logging
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from vit_train.bench import ours, peers
from vit_train.bench.alone import Failed, alone
from vit_train.bench.contender import Contender, Ours
from vit_train.bench.machine import gemm_ceiling
from vit_train.bench.results import Comparison, Result
from vit_train.bench.turn import SHARES, Turn
from vit_train.report.terminal import duration

logger = logging.getLogger(__name__)

CEILING_SHARE = 0.2  # of bench.seconds
# For the estimate, in seconds on two cores: what a turn costs besides its timings. Compiling anew
# finds most in the cache. A warm-up takes about half as long as the timing.
START, COMPILE, COMPILE_ANEW, WARM_UP = 6, 45, 15, 0.5


class Rounds:
    """Collects the turns of all contenders of one batch size, ours first.

    One that fails once is left out from then on; what its process printed is appended to the file
    `failures`.
    """

    def __init__(self, contenders: Sequence[Contender], failures: Path) -> None:
        self.contenders, self.failures = contenders, failures
        self.results = [Result(contender) for contender in contenders]
        self.failed = {
            contender.name: "it is not installed: pip install -e '.[peers]' in the checkout"
            for contender in contenders
            if not is_installed(contender)
        }
        self.ceilings: list[float] = []
        self.seconds: list[float] = []  # of each round

    def measure(self, count: int, end: float = math.inf) -> Iterator[None]:
        """Measure `count` rounds, fewer if they would go on after `end`, and yield after each.

        The `end` is a time of time.monotonic. Raise ValueError if our model cannot be measured.
        """
        turns = count * len(self.contenders)
        with (
            tempfile.TemporaryDirectory() as caches,
            tqdm(total=turns, disable=not sys.stderr.isatty(), leave=False, unit="turn") as bar,
            logging_redirect_tqdm(),
        ):
            for number in range(count):
                if number and time.monotonic() + self.seconds[-1] > end:
                    logger.info(f"stopped after {number} of {count} rounds: see bench.max_minutes")
                    break
                began = time.monotonic()
                self.measure_round(number, Path(caches), bar)
                self.seconds.append(time.monotonic() - began)
                yield
                if number == 0 and count > 1:
                    took, rest = self.seconds[0], (count - 1) * self.seconds[0]
                    logger.info(
                        f"round 1 of {count} took {duration(took)}, the others will take at most "
                        f"{duration(rest)}"
                    )

    def measure_round(self, number: int, caches: Path, bar: "tqdm[None]") -> None:
        """Give everyone a turn, another one first in each round."""
        for place in rotated(range(len(self.contenders)), number):
            contender = self.contenders[place]
            bar.set_description(contender.name)
            if contender.name not in self.failed:
                try:
                    self.results[place].turns.append(turn(contender, caches / str(place)))
                except Failed as error:
                    self.drop(contender, error)
            bar.update()
        first = self.contenders[0]
        with contextlib.suppress(Failed):  # there is a table without it
            device, seconds = torch.device(first.device), CEILING_SHARE * first.seconds
            arguments = device, first.precision, seconds
            self.ceilings.append(alone(caches / "ceiling", gemm_ceiling, *arguments))

    def drop(self, contender: Contender, error: Failed) -> None:
        self.failed[contender.name] = f"{error} (more in {self.failures.name})"
        with self.failures.open("a", encoding="utf-8") as file:
            file.write(
                f"{contender.name}, batch {contender.batch_size}: {error}\n{error.details}\n"
            )
        if all(each.name in self.failed for each in self.contenders if each.is_ours):
            raise ValueError(f"{contender.name} could not be measured: {error}")

    def comparison(self, flops: int) -> Comparison:
        """Return what was measured; `flops` are those of one image in a training step of ours."""
        measured = [each for each in self.results if each.contender.name not in self.failed]
        size = self.contenders[0].batch_size
        return Comparison(size, measured, self.failed, self.ceilings, flops)


def turn(contender: Contender, cache: Path) -> Turn:
    started = time.monotonic()
    module: Any = ours if contender.is_ours else peers
    turn: Turn = alone(cache, module.measure, contender, started)
    return turn


def rotated(order: Sequence[int], number: int) -> list[int]:
    start = number % len(order)
    return [*order[start:], *order[:start]]


def is_installed(contender: Contender) -> bool:
    return find_spec(contender.package.replace("-", "_")) is not None


def expected_seconds(contenders: Sequence[Contender], rounds: int) -> float:
    """Return about how long all rounds take."""
    total = 0.0
    for contender in filter(is_installed, contenders):
        complete = isinstance(contender, Ours) and contender.complete
        share = sum(SHARES.values()) if complete else SHARES["train"] + SHARES["infer"]
        each = START + (1 + WARM_UP) * share * contender.seconds
        compiling = COMPILE + (rounds - 1) * COMPILE_ANEW if contender.compiles else 0
        total += rounds * each + compiling
    return total + rounds * START
