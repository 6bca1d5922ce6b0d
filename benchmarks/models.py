"""The contenders, PACKAGE:WORD:WORD, and the work that is timed with them."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vit_train.config.model import ViTConfig, require_vit, unsupported
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.data.dataset import load_dataset
from vit_train.interop.layouts import PLAIN
from vit_train.loop.compile import GraphedStep, compiles
from vit_train.loop.device import (
    choose_algorithms,
    keep_freed_memory,
    pick_device,
    pick_precision,
)
from vit_train.loop.distributed import ALONE
from vit_train.loop.trainer import Callback, Trainer
from vit_train.model import products
from vit_train.run.reports import TensorBoard
from vit_train.run.start import resolve
from vit_train.run.terminal import Terminal
from vit_train.run.train import train_epochs

PRECISIONS = ("fp32", "bf16", "fp16", "tf32")
# What each package can be asked for besides a precision.
PEER = ("allocator", "compiled", "cudagraphs", "no_cudnn")
WORDS = {
    "vit_train": ("scratch", "compiled", "eager", "mkl"),
    "timm": (*PEER, "unfused"),
    "torchvision": PEER,
    "vit-pytorch": PEER,
}
HELP = """\
A contender is PACKAGE or PACKAGE:WORD:WORD. Packages: vit_train, timm, torchvision, vit-pytorch.
Words: fp32, bf16, fp16, tf32 (else --precision), compiled; for vit_train scratch, eager, mkl
(without oneDNN's products, see vit_train/model/products.py); for
the others allocator (our memory settings), unfused (timm), no_cudnn, cudagraphs (GPU)."""
LOOP_STEPS = {"cpu": 8, "cuda": 20}  # at least so many
# Settings that are the same in all libraries' models, with their values there.
SHARED = {
    **PLAIN,
    "qk_norm": (False,),
    "layer_scale": (None,),
    "registers": (0,),
    **dict.fromkeys(("dropout", "branch_dropout", "drop_path", "patch_dropout"), (0.0,)),
}


@dataclass(frozen=True)
class Contender:
    """A package and its variant; `precision` is never "auto"."""

    package: str
    precision: str
    words: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str, precision: str = "fp32") -> "Contender":
        """Return the contender that a text describes; raise ValueError for an unknown word."""
        package, *words = text.split(":")
        if package not in WORDS:
            raise ValueError(f"{text}: {package} must be one of: {', '.join(WORDS)}")
        for word in words:
            if word in PRECISIONS:
                precision = word
            elif word not in WORDS[package]:
                known = ", ".join((*PRECISIONS, *WORDS[package]))
                raise ValueError(f"{text}: {word} must be one of: {known}")
        return Contender(package, precision, tuple(w for w in words if w not in PRECISIONS))

    @property
    def is_ours(self) -> bool:
        return self.package == "vit_train"

    @property
    def name(self) -> str:
        return ":".join((self.package, self.precision, *self.words))


@dataclass
class Subject:
    """A model and its work by name, training first; a call processes one batch, or `batches`."""

    device: torch.device
    model: nn.Module
    first_step: Callable[[], object]
    work: Mapping[str, Callable[[], object]]
    batches: dict[str, int] = field(default_factory=dict)


class Stop(Callback):
    """Ends the loop after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, trainer: Trainer) -> None:
        if trainer.batch >= self.steps:
            trainer.stop()


def build(contender: Contender, config: TrainConfig, exit: ExitStack) -> Subject:
    """Build a contender for the batch size in `config`; raise ValueError if it cannot be."""
    torch.manual_seed(config.seed)
    return ours(contender, config, exit) if contender.is_ours else peer(contender, config)


def ours(contender: Contender, config: TrainConfig, exit: ExitStack) -> Subject:
    """Return the trainer's step, inference, and the whole loop with its data and reports."""
    keep_freed_memory()
    device = pick_device(config.device)
    if device.type != "cpu":
        choose_algorithms(config.deterministic)
    if "scratch" in contender.words:
        model = replace(require_vit(config.model, contender.name), kernels="scratch")
        config = replace(config, model=model)
    if "mkl" in contender.words:
        setattr(products, "uses_onednn", lambda: False)  # noqa: B010  mypy forbids to assign it
    for word in {"compiled", "eager"}.intersection(contender.words):
        config = replace(config, compile=word == "compiled")
    run = resolve(replace(config, precision=contender.precision), device, ALONE)
    per_epoch = min(LOOP_STEPS[device.type], len(run.train_loader))
    epochs = -(-LOOP_STEPS[device.type] // per_epoch)
    folder = exit.enter_context(tempfile.TemporaryDirectory())
    terminal = Terminal()
    reports = [TensorBoard(Path(folder)), terminal, Stop(per_epoch)]
    trainer = Trainer(run.model, run.task, run.train_loader, run.config, run.precision, reports)
    run.model.train()
    exit.enter_context(terminal.shown(trainer))
    images_, targets = (each.clone() for each in next(run.train_loader.epoch(0)))
    if len(images_) < config.train.batch_size:
        raise ValueError(f"there are only {len(images_)} training images")
    # Mixed targets (B,K) are not labels (B,), which evaluation needs; tags are (B,K) in both.
    labels = targets if config.task.name == "tags" else torch.zeros(len(images_), device=device)

    def take_step(scalars: torch.Tensor) -> None:
        """Take a step on the same images, as the other libraries do."""
        make_batch, trainer.make_batch = trainer.make_batch, lambda *draws: (images_, targets)
        trainer.take_step(scalars)
        trainer.make_batch = make_batch

    step = GraphedStep(take_step, device, trainer.graphed_step.replay)

    def train() -> None:
        step(trainer.step_scalars())

    def first_step() -> None:
        if compiles(config.compile, device) and not trainer.compile():
            raise ValueError("it cannot be compiled here")
        exit.enter_context(trainer.workers)
        train()

    def loop() -> None:
        for _ in range(epochs):
            trainer.epoch = trainer.batch = 0
            trainer.stop_reason = ""
            train_epochs(trainer, None)

    def infer() -> None:
        run.model.eval()
        list(trainer.workers.map(trainer.graphed_outputs, images_, labels))

    work = {"train": train, "loop": loop, "infer": infer}
    return Subject(device, run.model, first_step, work, {"loop": epochs * per_epoch})


def peer(contender: Contender, config: TrainConfig) -> Subject:
    """Return another library's model, trained as in every tutorial: forward, backward, step."""
    if "allocator" in contender.words:
        keep_freed_memory()
    device = pick_device(config.device)
    torch.backends.cuda.enable_cudnn_sdp("no_cudnn" not in contender.words)  # PyTorch's default
    vit = require_vit(config.model, contender.name)
    if found := unsupported(vit, SHARED):
        raise ValueError(f"the other libraries' models do not have {', '.join(found)}")
    data = load_dataset(config.data)
    model = make_peer(contender, vit, data.image_shape[1], len(data.classes))
    model.to(device).train()
    precision = pick_precision(contender.precision, device, model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if {"compiled", "cudagraphs"}.intersection(contender.words):
        graphs = "cudagraphs" in contender.words
        model.compile(dynamic=False, mode="reduce-overhead" if graphs else "default")
    images = torch.randn(config.train.batch_size, *data.image_shape, device=device)
    labels = torch.randint(len(data.classes), (len(images),), device=device)
    smoothing = config.task.label_smoothing if isinstance(config.task, ClassifyConfig) else 0.0

    def train() -> None:
        with precision.autocast():
            loss = F.cross_entropy(model(images), labels, label_smoothing=smoothing)
        loss.backward()
        if config.optim.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def infer() -> None:
        model.eval()
        with precision.autocast():
            model(images)

    return Subject(device, model, train, {"train": train, "infer": infer})


def make_peer(contender: Contender, config: ViTConfig, size: int, classes: int) -> nn.Module:
    """Build the same architecture; vit-pytorch's has 0.2 % fewer weights.

    It has no biases in qkv and a LayerNorm before and after the patches.
    """
    dim, depth, heads, hidden = config.embed_dim, config.depth, config.num_heads, config.hidden_dim
    shape: dict[str, Any] = {"patch_size": config.patch_size, "num_classes": classes}
    if contender.package == "timm":
        library: Any = import_module("timm.models.vision_transformer")
        model: nn.Module = library.VisionTransformer(
            img_size=size, embed_dim=dim, depth=depth, num_heads=heads, mlp_ratio=hidden / dim,
            **shape,
        )  # fmt: skip
        if "unfused" in contender.words:
            for block in model.get_submodule("blocks").children():
                block.get_submodule("attn").fused_attn = False  # type: ignore[assignment]
    elif contender.package == "torchvision":
        model = import_module("torchvision.models").VisionTransformer(
            image_size=size, num_layers=depth, num_heads=heads, hidden_dim=dim, mlp_dim=hidden,
            **shape,
        )  # fmt: skip
    else:
        model = import_module("vit_pytorch").ViT(
            image_size=size, dim=dim, depth=depth, heads=heads, dim_head=dim // heads,
            mlp_dim=hidden, **shape,
        )  # fmt: skip
    return model
