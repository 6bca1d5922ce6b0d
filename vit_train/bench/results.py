"""Figures derived from the timings: images/s, ratios per round, shares of a step's time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from vit_train.bench.contender import LOOP_STEPS, OURS, Contender
from vit_train.bench.process import Answer

# A timing counts as disturbed if other programs used more than this share of a core.
QUIET = 0.1


@dataclass(frozen=True)
class Spread:
    """The median and range of a figure over the rounds."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(median(values), min(values), max(values))


@dataclass
class Result:
    """A contender's timings: for each kind of work, one per round."""

    contender: Contender
    parameters: int
    peak_memory: int = 0
    timings: dict[str, list[Answer]] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.contender.package == OURS

    def add(self, name: str, timing: Answer) -> None:
        self.timings.setdefault(name, []).append(timing)

    def seconds(self, name: str) -> float:
        return median(timing.value for timing in self.timings[name])

    def speeds(self, name: str) -> list[float]:
        """Return images/s, one value per round."""
        images = self.contender.batch_size * (LOOP_STEPS if name == "loop" else 1)
        return [images / timing.value for timing in self.timings[name]]

    def speed(self, name: str) -> Spread:
        return Spread.of(self.speeds(name))

    def ratio(self, name: str, other: "Result", other_name: str | None = None) -> Spread:
        """Return this speed divided by another's of the same round."""
        pairs = zip(self.speeds(name), other.speeds(other_name or name), strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs])

    @property
    def disturbed(self) -> int:
        all_timings = [timing for timings in self.timings.values() for timing in timings]
        return sum(timing.others is not None and timing.others > QUIET for timing in all_timings)

    @property
    def measured(self) -> int:
        return sum(map(len, self.timings.values()))

    def shares(self) -> dict[str, float]:
        """Return each part's share of the loop's time.

        A part that cannot be timed alone is computed as a difference.
        """
        step, gradients = self.seconds("train"), self.seconds("gradients")
        parts = {
            "input": self.seconds("input"),
            "forward": self.seconds("forward"),
            "backward": gradients - self.seconds("forward"),
            "optimizer": step - gradients,
            "reporting": self.seconds("loop") / LOOP_STEPS - step - self.seconds("input"),
        }
        parts = {name: max(0.0, seconds) for name, seconds in parts.items()}
        whole = sum(parts.values())
        return {name: seconds / whole for name, seconds in parts.items()}
