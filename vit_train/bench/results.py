"""Figures derived from the turns: images/s, ratios per round, shares of a step's time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from vit_train.bench.contender import Contender
from vit_train.bench.ours import LOOP_STEPS
from vit_train.bench.turn import Timing, Turn

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
    """A contender's turns, one per round."""

    contender: Contender
    turns: list[Turn] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        return self.turns[0].parameters

    @property
    def peak_memory(self) -> int:
        return max(turn.peak_memory for turn in self.turns)

    @property
    def start_up(self) -> Spread:
        return Spread.of([turn.start_up for turn in self.turns])

    @property
    def first_step(self) -> Spread:
        return Spread.of([turn.first_step for turn in self.turns])

    def has(self, name: str) -> bool:
        return name in self.turns[0].timings

    def seconds(self, name: str) -> float:
        return median(turn.timings[name].seconds for turn in self.turns)

    def speeds(self, name: str) -> list[float]:
        """Return images/s, one value per round."""
        images = self.contender.batch_size * (LOOP_STEPS if name == "loop" else 1)
        return [images / turn.timings[name].seconds for turn in self.turns]

    def speed(self, name: str) -> Spread:
        return Spread.of(self.speeds(name))

    def ratio(self, name: str, other: "Result", other_name: str | None = None) -> Spread:
        """Return this speed divided by another's of the same round."""
        pairs = zip(self.speeds(name), other.speeds(other_name or name), strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs])

    @property
    def timings(self) -> Iterator[Timing]:
        return (timing for turn in self.turns for timing in turn.timings.values())

    @property
    def measured(self) -> int:
        return len(list(self.timings))

    @property
    def disturbed(self) -> int:
        return sum(each.others is not None and each.others > QUIET for each in self.timings)

    @property
    def unstable(self) -> int:
        return sum(not each.stable for each in self.timings)

    def shares(self) -> dict[str, float] | None:
        """Return each part's share of the loop's time, or None if that is not known.

        A part that cannot be timed alone is computed as a difference. On a GPU the parts of a step
        that is one graph cannot be timed.
        """
        if not self.has("loop") or self.contender.device != "cpu":
            return None
        step, gradients = self.seconds("train"), self.seconds("gradients")
        parts = {
            "input": self.seconds("input"),
            "forward and backward": gradients,
            "optimizer": step - gradients,
            "reporting": self.seconds("loop") / LOOP_STEPS - step - self.seconds("input"),
        }
        parts = {name: max(0.0, seconds) for name, seconds in parts.items()}
        whole = sum(parts.values())
        return {name: seconds / whole for name, seconds in parts.items()}


@dataclass(frozen=True)
class Comparison:
    """All results of one batch size.

    `failed` has the reasons why contenders could not be measured, by their names; `ceilings` are
    the FLOP/s of large matrix products, one per round; `flops` are those of an image in training.
    """

    batch_size: int
    results: list[Result]
    failed: dict[str, str]
    ceilings: list[float]
    flops: int

    @property
    def ours(self) -> list[Result]:
        return [result for result in self.results if result.contender.is_ours]

    @property
    def peers(self) -> list[Result]:
        return [result for result in self.results if not result.contender.is_ours]

    def rival(self, peer: Result) -> Result | None:
        """Return the first of ours in the same precision."""
        same = (each for each in self.ours if each.contender.precision == peer.contender.precision)
        return next(same, None)

    def fastest_peer(self, name: str) -> Result | None:
        return max(self.peers, key=lambda peer: peer.speed(name).median, default=None)
