"""What the package does on a CUDA device, in scenarios, each in a process of its own.

Run by hand on a stand-in for the CUDA runtime whose kernels do nothing and are counted; `fakecuda`
is its Python side. It shows errors of device and dtype, what a deterministic run refuses, and how
many launches, copies and synchronizations a step costs; all numbers that it computes are garbage.

    python tests/gpu/scenarios.py                      # all
    python tests/gpu/scenarios.py 'batch |step fused'  # those whose names begin so
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any

import fakecuda
import torch
from torch import Tensor
from torch.nn.functional import dropout

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.batches import Batch, EvalBatches, Normalize, to_device
from vit_train.data.dataset import ImageSet, channel_statistics
from vit_train.data.train_batches import TrainBatches
from vit_train.engine import resuming
from vit_train.engine.compile import GraphedStep
from vit_train.engine.config import AdamWConfig, LoopConfig, MuonConfig, SgdConfig
from vit_train.engine.distributed import ALONE, Processes
from vit_train.engine.precision import Precision, choose_algorithms, pick_device
from vit_train.engine.trainer import Trainer
from vit_train.figures.maps import draw_gallery
from vit_train.model.config import CnnConfig, ResNetConfig, ViTConfig
from vit_train.runs.config import TrainConfig
from vit_train.tasks.config import AutoregressConfig, ClassifyConfig, ReconstructConfig
from vit_train.tasks.make import make_task
from vit_train.tasks.task import Task

GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randint(256, (1200, 3, 32, 32), generator=GENERATOR, dtype=torch.uint8)
DATA = ImageSet(PIXELS, torch.randint(10, (1200,), generator=GENERATOR))
STATISTICS = channel_statistics(PIXELS)
STRONG = {
    "policy": "randaugment", "erase_prob": 0.25, "mixup_alpha": 0.8, "cutmix_alpha": 1.0,
    "mix_prob": 0.5,
}  # fmt: skip
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "none": {"crop_padding": 0, "flip": False},
    "light": {},
    "strong": STRONG,
    "trivial": {"policy": "trivialaugment"},
    "auto": {"policy": "autoaugment"},
    "crop_scale": {"crop_scale": 0.3},
    "mixup": {"mixup_alpha": 0.8},
    "cutmix": {"cutmix_alpha": 1.0},
}
small = partial(ViTConfig, embed_dim=32, depth=2)


@dataclass
class Parts:
    trainer: Trainer
    task: Task
    batches: TrainBatches
    normalize: Normalize
    precision: Precision


def make(
    batch_size: int = 32,
    augment: dict[str, Any] | None = None,
    model: Any = None,
    task: Any = None,
    precision: str = "bf16",
    processes: Processes = ALONE,
    **settings: Any,
) -> Parts:
    device = pick_device("cuda")
    torch.manual_seed(0)
    model, task = model or small(), task or ClassifyConfig()
    learned = make_task(task, model, (3, 32, 32), 10)
    normalize = Normalize(STATISTICS, device)
    augmented = AugmentConfig(**augment or {})
    place = processes.rank, processes.count
    batches = TrainBatches(DATA, 10, normalize, augmented, batch_size, 0, device, *place)
    of_loop = {key: settings.pop(key) for key in list(settings) if hasattr(LoopConfig, key)}
    loop = LoopConfig(epochs=50, batch_size=batch_size, **of_loop)
    config = TrainConfig(**{"optim": AdamWConfig(), "train": loop} | settings)
    chosen = Precision(precision, device)
    loader, network = learned.train_loader(batches), learned.build_model().to(device)
    trainer = Trainer(network, learned, loader, None, config, chosen, processes=processes)
    trainer.nonfinite.check = lambda step: None  # type: ignore[method-assign]  # all is garbage
    return Parts(trainer, learned, batches, normalize, chosen)


class OneOfTwo(Processes):
    """The first of two processes: one kernel stands for NCCL's, which adds the gradients."""

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.add_(0)


def run(**settings: Any) -> str:
    """Take steps, evaluate, draw, save, load, and take another step."""
    parts = make(**settings)
    trainer, task = parts.trainer, parts.task
    steps = trainer.train_loader.draws(0)
    for _ in range(6):  # some as they are, then as a graph
        advance(trainer, next(steps))
    trainer.epoch_averages.read()
    loader = validation(parts, 500, 64)
    trainer.evaluate(trainer.eval_model, loader)
    if task.columns:
        draw_gallery(task, trainer.eval_model.eval(), next(iter(loader)), parts.normalize)
        trainer.eval_model.train()
    resuming.restore(trainer, resuming.state_of(trainer))
    advance(trainer, next(steps))
    graphs = trainer.graphed_step.graph, trainer.graphed_outputs.graphed.graph
    return f"done, {'as graphs' if all(graphs) else f'NO GRAPH: {graphs}'}"


def validation(parts: Parts, count: int, batch_size: int) -> Iterable[Batch]:
    images = DATA.subset(torch.arange(count))
    parts.task.evaluation = lambda outputs: outputs.shape  # type: ignore
    return parts.task.eval_loader(
        EvalBatches(images, parts.normalize, batch_size, parts.precision.device)
    )


def evaluation(**settings: Any) -> dict[str, Any]:
    """Count what evaluating ten batches takes, once their graph is captured."""
    parts = make(model=ViTConfig(), **settings)
    loader, trainer = validation(parts, 1000, 100), parts.trainer
    trainer.evaluate(trainer.eval_model, loader)
    result = counted(lambda: trainer.evaluate(trainer.eval_model, loader))
    return result | {"graph": trainer.graphed_outputs.graphed.graph is not None}


def advance(trainer: Trainer, draws: tuple[Tensor, ...]) -> None:
    """Take a step as the loop does."""
    trainer.graphed_step(trainer.schedule(), *draws)
    trainer.step += 1


def restarted() -> str:
    """Take steps with half of the patches, then with all of them: other work, another graph."""
    trainer = make(model=small(patch_dropout=0.5, patch_dropout_epochs=1)).trainer
    graphs = []
    for epoch in range(2):
        trainer.set_epoch(epoch)
        for draws in islice(trainer.train_loader.draws(epoch), 6):
            advance(trainer, draws)
        graphs.append(trainer.graphed_step.graph)
    return (
        "done, as graphs" if all(graphs) and graphs[0] is not graphs[1] else f"NO GRAPH: {graphs}"
    )


def deterministic(**settings: Any) -> str:
    choose_algorithms(deterministic=True)
    return run(**settings)


def counted(work: Callable[[], object], calls: int = 1) -> dict[str, Any]:
    """Count what one call of `work` asks of the device."""
    fakecuda.reset()
    began = time.perf_counter()
    for _ in range(calls):
        work()
    milliseconds = (time.perf_counter() - began) / calls * 1e3
    launches, others = fakecuda.summary(fakecuda.dump())
    others = {name: count for name, count in others.items() if "event" not in name}
    return {"launches": launches / calls, "host_ms": round(milliseconds, 2), **others}


def invalid() -> str:
    """Try to capture a step that waits for the device, and use the device afterwards."""
    ones = torch.ones(8, device="cuda")

    def waiting(scale: Tensor) -> None:
        (ones * scale).sum().item()

    step = GraphedStep(waiting, ones.device, replay=True)
    try:
        for _ in range(5):
            step(torch.ones(1))
    except ValueError as error:
        return f"stopped: {error}"
    return f"done, {'as a graph' if step.graph else 'WITHOUT A GRAPH'}, {dropout(ones, 0.5).shape}"


def batch(augment: dict[str, Any], size: int = 512) -> dict[str, Any]:
    """Count what augmenting one batch takes."""
    batches = make(size, augment).batches
    numbers = iter(range(100))

    def one() -> None:
        draws = batches.draw(torch.arange(size), batches.generator(0, next(numbers)))
        batches.batch(*(to_device(each, batches.device) for each in draws))

    one()
    return counted(one, 5)


def step(kernels: str = "fused", size: int = 512, **settings: Any) -> dict[str, Any]:
    """Count what a batch with its step takes; name the line that waits, if any."""
    trainer = make(size, model=ViTConfig(kernels=kernels), **settings).trainer
    draws = [next(trainer.train_loader.draws(epoch)) for epoch in range(8)]
    for each in draws[:4]:
        advance(trainer, each)
    result = counted(lambda: advance(trainer, draws[5]), 5)
    result["graph"] = trainer.graphed_step.graph is not None
    torch.cuda.set_sync_debug_mode("error")
    try:
        advance(trainer, draws[6])
        result["synchronizations"] = "none"
    except RuntimeError as error:
        result["synchronizations"] = " <- ".join(places(error)[::-1])
    return result


def compiled(steps: int = 6, **settings: Any) -> dict[str, Any]:
    """Compile, and count each of the first steps: recording, then replaying a graph."""
    parts = make(batch_size=64, compile=True, **settings)
    trainer = parts.trainer
    draws = next(trainer.train_loader.draws(0))
    result: dict[str, Any] = {"compiled": trainer.compile()}
    for number in range(steps):
        result[f"step {number}"] = counted(lambda: advance(trainer, draws))
    return result


PRECISIONS = ("bf16", "fp16", "fp32")
TABLES = ("none", "learned", "learned_2d", "relative", "sinusoidal", "sincos_2d")
OLDER = {"pre_norm": False, "norm_affine": False, "activation": "gelu_tanh", "head": "token_mlp"}
DROPOUTS = {"dropout": 0.1, "branch_dropout": 0.1, "drop_path": 0.1}
ROTARY = {"positions": "rotary_2d", "qk_norm": True}
RECIPE = {"positions": "sincos_2d", "head": "gap", "init": "mimetic"}
MAE, NEXT_PATCH = ReconstructConfig(decoder_depth=1), AutoregressConfig(decoder_depth=1)
STEPS = {
    "without a graph": {"cuda_graph": False},
    "of two processes": {"processes": OneOfTwo(0, 2)},
    "of two processes strong": {"processes": OneOfTwo(0, 2), "augment": STRONG},
    "strong EMA": {"augment": STRONG, "ema_decay": 0.99},
    "skip": {"on_nonfinite": "skip", "max_skips": 1000},
    "reconstruct": {"task": ReconstructConfig(decoder_depth=2)},
    "autoregress": {"task": AutoregressConfig(decoder_depth=2)},
}
RUNS = {
    "dropouts": {"model": small(**DROPOUTS, **OLDER), "micro_batch": 12},
    "gap relative": {"model": small(positions="relative", head="gap")},
    "layers": {"model": small(positions="learned_2d", positions_at="layers", head="gap")},
    "rotary": {"model": small(**ROTARY)},
    "cnn": {"model": CnnConfig()},
    "resnet": {"model": ResNetConfig()},
    "reconstruct": {"task": MAE},
    "normalized": {"task": replace(MAE, normalize_target=True)},
    "autoregress": {"task": NEXT_PATCH},
    "given": {"task": replace(NEXT_PATCH, given_rows=4)},
    "muon": {"model": small(**RECIPE), "optim": MuonConfig()},
    "sgd": {
        "model": small(activation="swiglu", head="gap_norm"),
        "optim": SgdConfig(schedule="wsd"),
    },
}
DETERMINISTIC = {
    "learned": {"augment": STRONG | {"crop_scale": 0.5}},
    "relative": {"model": small(positions="relative")},
    "autoaugment": {"augment": {"policy": "autoaugment"}},
    **{name: RUNS[name] for name in ("cnn", "resnet", "reconstruct", "autoregress")},
}
COMPILED = {
    "fused": {},
    "strong": {"augment": STRONG},
    "muon": {"optim": MuonConfig()},
    "dropouts": {"model": small(dropout=0.1, drop_path=0.1), "micro_batch": 24},
    "autoregress": {"task": NEXT_PATCH},
    "resnet": {"model": ResNetConfig(widths=[8, 16], blocks=1)},
}


def scenarios() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, augment in AUGMENTATIONS.items():
        yield f"batch {name}", partial(batch, augment)
    for kernels, precision in product(("fused", "scratch"), PRECISIONS):
        yield f"step {kernels} {precision}", partial(step, kernels, precision=precision)
    for name, settings in STEPS.items():
        yield f"step {name}", partial(step, **settings)
    for table, kernels, precision in product(TABLES, ("fused", "scratch"), PRECISIONS):
        model = small(positions=table, kernels=kernels)
        more = {"precision": precision, "ema_decay": 0.9, "augment": STRONG}
        yield f"run {table} {kernels} {precision}", partial(run, model=model, **more)
    for (name, settings), precision in product(RUNS.items(), PRECISIONS):
        yield f"run {name} {precision}", partial(run, precision=precision, **settings)
    yield "run patch dropout", restarted
    yield "capture that waits", invalid
    for name, ones in {"graph": {}, "without one": {"cuda_graph": False}}.items():
        yield f"evaluation {name}", partial(evaluation, **ones)
    for name, settings in DETERMINISTIC.items():
        yield f"deterministic {name}", partial(deterministic, **settings)
    for name, settings in COMPILED.items():
        yield f"compiled {name}", partial(compiled, **settings)


def places(error: BaseException) -> list[str]:
    """The package's lines that an error came through, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [
        f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in frames if "vit_train" in f.filename
    ]


def in_child(work: Callable[[], object]) -> None:
    torch.set_num_threads(1)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        result = work()
        print("   ", result if isinstance(result, str) else json.dumps(result))
    except Exception as error:
        print(f"    FAILED {type(error).__name__}: {str(error).strip()[:600]}")
        print("        at", *places(error))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    wanted = tuple(sys.argv[1].split("|")) if len(sys.argv) > 1 else ("",)
    for name, work in scenarios():
        if not name.startswith(wanted):
            continue
        print(f"== {name}", flush=True)
        child = os.fork()
        if child == 0:
            in_child(work)
        if status := os.waitpid(child, 0)[1]:
            print("    CRASHED, status", status, flush=True)


if __name__ == "__main__":
    main()
