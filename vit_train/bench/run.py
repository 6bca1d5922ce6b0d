"""The work of `vit-bench`: say what is measured, measure each batch size, report."""

import logging
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from vit_train.bench import report
from vit_train.bench.alone import Failed, alone
from vit_train.bench.config import BenchConfig
from vit_train.bench.contender import Contender, Ours
from vit_train.bench.heading import describe, origin, title_of
from vit_train.bench.lineup import line_up
from vit_train.bench.ours import classification, trace
from vit_train.bench.results import Comparison
from vit_train.bench.rounds import Rounds, expected_seconds, is_installed
from vit_train.data.memory import require_images_fit
from vit_train.engine.device import pick_device
from vit_train.engine.precision import pick_precision
from vit_train.files.writing import write_json, write_text
from vit_train.model.flops import count_flops
from vit_train.model.memory import on_meta
from vit_train.report.figure_file import save
from vit_train.report.terminal import counted, duration
from vit_train.runs.training.setup import require_countable, require_room
from vit_train.tasks.classify import Classify

logger = logging.getLogger(__name__)

BATCH_BYTES = 12  # per RGB pixel, in 32-bit floats


def benchmark(config: BenchConfig, folder: Path) -> None:
    """Measure every batch size, log the tables and write all results to the run's folder."""
    device = pick_device(config.device)
    data = config.data.load()
    shape, num_classes = data.image_shape, len(data.classes)
    del data  # every process loads what it needs
    model = possible_model(config, shape, num_classes)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    precision = pick_precision(config.precision, device, model).name
    config = replace(config, precision=precision)
    flops = count_flops(config.model, shape, num_classes).training
    line_ups = [
        line_up(config, batch_size, shape, num_classes, parameters)
        for batch_size in config.bench.batch_sizes
    ]

    title = title_of(config, shape[1], parameters, f"{precision} on {device.type}")
    about = {"title": title} | origin(config, device)
    logger.info(f"{describe(about)}\n{plan(line_ups, config.bench.rounds)}")
    minutes, seconds = config.bench.max_minutes, 0.0
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    comparisons: list[Comparison] = []
    for contenders in line_ups:
        batch_size = contenders[0].batch_size
        if comparisons and time.monotonic() + seconds > end:
            logger.info(f"no time is left for batches of {batch_size}: see bench.max_minutes")
            break
        rounds = Rounds(contenders, folder / "failures.log")
        for _ in rounds.measure(config.bench.rounds, end):
            # After each, so that who loses patience has the rounds before.
            write(folder, about, [*comparisons, rounds.comparison(flops)])
        comparisons.append(rounds.comparison(flops))
        logger.info(f"\n{report.table(comparisons[-1])}\n\n{report.notes(comparisons[-1])}")
        seconds = rounds.seconds[0]
        if config.bench.profile and contenders[0].name not in rounds.failed:
            profile(contenders[0], folder)
    logger.info(f"written to {folder}")


def possible_model(config: BenchConfig, shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Return our model, without values; raise ValueError if the memory is too small for it all."""
    task = Classify(classification(config), config.model, shape, num_classes)
    require_room(config, task, shape[1])
    require_countable(config.model, shape[1])
    for batch_size in config.bench.batch_sizes:
        require_images_fit(batch_size, shape[1], f"bench.batch_sizes={batch_size}", BATCH_BYTES)
    return on_meta(task.build_model, config.model)


def plan(line_ups: Sequence[Sequence[Contender]], rounds: int) -> str:
    """Say what will be done, and how long it will take."""
    seconds = sum(expected_seconds(contenders, rounds) for contenders in line_ups)
    sizes = ", ".join(str(contenders[0].batch_size) for contenders in line_ups)
    names = "; ".join(contender.name for contender in line_ups[0] if is_installed(contender))
    what = f"{counted(rounds, 'round')} with batches of {sizes}"
    return f"measuring {what}, about {duration(seconds)} on an idle machine: {names}"


def write(folder: Path, about: dict[str, Any], comparisons: Sequence[Comparison]) -> None:
    """Write what has been measured so far."""
    tables = [f"{report.table(each)}\n\n{report.notes(each)}" for each in comparisons]
    text = "\n\n".join([describe(about), f"`{about['command']}`", *tables])
    write_text(folder / "bench.md", f"{text}\n")
    results = [report.as_json(each) for each in comparisons]
    write_json(folder / "bench.json", about | {"results": results})
    save(report.chart(comparisons, about["title"]), folder / "bench.png")


def profile(contender: Contender, folder: Path) -> None:
    assert isinstance(contender, Ours)
    path = folder / f"trace-{contender.batch_size}.json"
    with tempfile.TemporaryDirectory() as cache:
        try:
            alone(Path(cache), trace, contender, path)
        except Failed as error:  # the other batch sizes can still be measured
            logger.warning(f"there is no {path}: {error}")
