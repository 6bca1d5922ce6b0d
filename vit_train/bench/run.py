"""The work of `vit-bench`: time every contender in turn, then report tables and a figure."""

import logging
import sys
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from vit_train.bench import report
from vit_train.bench.contender import OURS, Contender, classification, flops_per_image
from vit_train.bench.process import ContenderProcess
from vit_train.bench.results import Result
from vit_train.config import BenchConfig, as_dict
from vit_train.data.memory import require_images_fit
from vit_train.engine.compile import compiles
from vit_train.engine.device import pick_device, pick_precision
from vit_train.model.config import ViTConfig
from vit_train.report import provenance
from vit_train.report.summary import write_json
from vit_train.runs.setup import require_room
from vit_train.tasks.classify import Classify

logger = logging.getLogger(__name__)

# What is timed for us and for peers, and for how long relative to bench.seconds.
OUR_WORK = {"train": 1.0, "infer": 0.5, "forward": 0.4, "gradients": 0.6, "input": 0.1, "loop": 1.0}
PEER_WORK = {"train": 1.0, "infer": 0.5}
BATCH_BYTES = 12  # per RGB pixel, in 32-bit floats


def benchmark(config: BenchConfig, folder: Path) -> None:
    """Measure every batch size, log the tables and write all results to the run's folder."""
    device = pick_device(config.device)
    precision = pick_precision(config.precision, device)
    data = config.data.load()
    shape, num_classes = data.image_shape, len(data.classes)
    del data  # every contender's process loads what it needs
    task = Classify(classification(config), config.model, shape, num_classes)
    require_room(config, task, shape[1])
    for batch_size in config.bench.batch_sizes:
        require_images_fit(batch_size, shape[1], f"bench.batch_sizes={batch_size}", BATCH_BYTES)
    title = describe(config, shape[1], f"{precision.name} on {device.type}")
    logger.info(title)

    reports, by_batch = [], []
    text = [f"# {title}", f"`{provenance.command_line()}`"]
    for batch_size in config.bench.batch_sizes:
        peers = [(peer, keep) for keep in (False, True) for peer in config.bench.peers]
        contenders = [
            Contender(library, keep_memory, batch_size, shape, num_classes, config)
            for library, keep_memory in [(OURS, True), *peers]
        ]
        results, ceilings = measure(contenders, folder if config.bench.profile else None)
        flops = flops_per_image(contenders[0])
        table, notes = report.table(results), report.notes(results[0], flops, ceilings, results)
        logger.info(f"\n{table}\n\n{notes}")
        text += [table, notes]
        by_batch.append(results)
        reports.append(report.as_json(results, flops, ceilings))

    (folder / "bench.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    report.chart(by_batch, title).savefig(folder / "bench.png")
    about = {
        "title": title,
        "command": provenance.command_line(),
        "machine": provenance.machine(device),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "config": as_dict(config),
    }
    write_json(folder / "bench.json", about | {"results": reports})
    logger.info(f"written to {folder}")


def describe(config: BenchConfig, size: int, where: str) -> str:
    model, name = config.model, config.model.name
    if isinstance(model, ViTConfig):
        shape = f"ViT {model.embed_dim}/{model.depth}, patch {model.patch_size}"
        name = f"{shape}, {model.kernels} kernels"
    compiled = ", compiled" if compiles(config.compile, pick_device(config.device)) else ""
    return f"{name}{compiled}, {size}×{size}, {where}"


def measure(contenders: list[Contender], trace: Path | None) -> tuple[list[Result], list[float]]:
    """Return every contender's timings, ours first, and the ceiling in each round."""
    options = contenders[0].config.bench
    with ExitStack() as stack:
        processes = [stack.enter_context(ContenderProcess(contender)) for contender in contenders]
        results = [Result(process.contender, process.wait_until_ready()) for process in processes]
        check_parameters(results)
        ceilings = []
        rounds = tqdm(range(options.rounds), "rounds", disable=not sys.stderr.isatty(), leave=False)
        for _ in rounds:
            for process, result in zip(processes, results, strict=True):
                for name, share in (OUR_WORK if result.is_ours else PEER_WORK).items():
                    result.add(name, process.call("time", name, share * options.seconds))
            ceilings.append(processes[0].call("ceiling", 0.2 * options.seconds).value)
        for process, result in zip(processes, results, strict=True):
            result.peak_memory = process.peak_memory
        if trace is not None:
            processes[0].call("trace", str(trace / f"trace-{contenders[0].batch_size}.json"))
    return results, ceilings


def check_parameters(results: list[Result]) -> None:
    """Raise ValueError if a peer has built another model; vit-pytorch's is 0.2 % smaller."""
    ours = results[0].parameters
    for result in results:
        if abs(result.parameters / ours - 1) > 0.01:
            raise ValueError(
                f"{result.contender.name} builds a model of {result.parameters:,} parameters, ours "
                f"has {ours:,}: they cannot be compared"
            )
