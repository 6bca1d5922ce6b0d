"""Contenders that are quick to build, their results, and a clock."""

import pytest
import torch

from vit_train.bench.config import BenchConfig, BenchOptions
from vit_train.bench.contender import Contender
from vit_train.bench.lineup import line_up
from vit_train.bench.results import Result
from vit_train.bench.turn import Timing, Turn
from vit_train.data.config import ShapesConfig
from vit_train.engine.config import AdamWConfig
from vit_train.model.config import ModelConfig, ViTConfig
from vit_train.tasks.config import ClassifyConfig

CPU = torch.device("cpu")
TINY = ViTConfig(embed_dim=16, depth=1)


def contenders(
    *variants: str, of: tuple[str, ...] = ("timm",), model: ModelConfig = TINY, **options: object
) -> list[Contender]:
    """Ours, then those of the peers `of`, in batches of 10."""
    bench = BenchOptions(peers=list(of), variants=list(variants), seconds=0.01, **options)
    data = ShapesConfig(train_images=40, test_images=10)
    config = BenchConfig(
        model=model, task=ClassifyConfig(), data=data, optim=AdamWConfig(), device="cpu",
        precision="fp32", bench=bench,
    )  # fmt: skip
    return line_up(config, 10, (3, 32, 32), 10, parameters=sum_of(model))


def sum_of(model: ModelConfig) -> int:
    return sum(weight.numel() for weight in model.build((3, 32, 32), 10).parameters())


def result(contender: Contender, **seconds: list[float]) -> Result:
    """A turn for each value; starts take 2 s and training 2 MB."""
    rows = zip(*seconds.values(), strict=True)
    return Result(contender, [
        Turn(1, 2.0, 0.5, 2**21, {
            name: Timing(value, 0.0, True) for name, value in zip(seconds, row, strict=True)
        })
        for row in rows
    ])  # fmt: skip


class Clock:
    """Time that passes only in the calls, which take the given durations, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, durations: list[float]) -> None:
        self.now, self.durations = 0.0, durations
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def work(self, *arguments: object, **more: object) -> None:
        self.now += self.durations.pop(0)
