"""Output on the terminal: a progress bar, and one line per epoch."""

import logging
import sys
from types import TracebackType

from torch import nn
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.engine.trainer import Trainer
from vit_train.text import printable

logger = logging.getLogger(__name__)


class Terminal(Callback):
    """One line per epoch and, if stderr is a terminal, a tqdm bar over the epoch's steps."""

    def __init__(self, steps_per_epoch: int, epochs: int, begun: int = 0) -> None:
        self.epochs, self.begun = epochs, begun
        self.bar = tqdm(
            total=steps_per_epoch,
            disable=not sys.stderr.isatty(),
            unit="step",
            dynamic_ncols=True,
            leave=False,
        )
        self.redirect = logging_redirect_tqdm()

    def __enter__(self) -> "Terminal":
        self.bar.set_description(f"epoch {min(self.begun + 1, self.epochs)}/{self.epochs}")
        self.redirect.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.close()
        self.redirect.__exit__(kind, error, traceback)

    def on_step(self, trainer: Trainer) -> None:
        self.bar.update()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        self.bar.set_postfix_str(
            f"{in_words(log.values)}, lr {log.lr:.1e}, {log.images_per_s:.0f} img/s"
        )

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        validation = f"  │ val {in_words(val.values)}" if val else ""
        logger.info(
            f"epoch {log.epoch:3d}/{self.epochs}  │ train {in_words(log.values)}"
            f"{validation}  │ lr {log.lr:.1e}  {log.images_per_s:.0f} images/s"
        )
        self.bar.reset()
        self.bar.set_description(f"epoch {min(log.epoch + 1, self.epochs)}/{self.epochs}")


def in_words(values: dict[str, float]) -> str:
    """Format the loss, and the accuracy if there is one."""
    accuracy = f" acc {values['acc']:6.2%}" if "acc" in values else ""
    return f"loss {values['loss']:.3f}{accuracy}"


def result_line(result: Evaluation) -> str:
    if not isinstance(result, Classification):
        return f"loss {result.loss:.4f} on {result.count:,} images"
    low, high = result.interval
    return (
        f"top-1 {result.acc:.2%} (95 % interval {low:.2%} to {high:.2%})  "
        f"top-5 {result.top5:.2%}  loss {result.loss:.4f}  on {result.count:,} images"
    )


def class_table(result: Classification, classes: list[str]) -> str:
    """Format one line per class: name, accuracy, a bar, and the number of correct images of all."""
    names = [printable(name, keep="") for name in classes]
    width = max(map(len, names))
    lines = []
    for name, correct, count in zip(
        names, result.per_class_correct, result.per_class_count, strict=True
    ):
        share = correct / count if count else 0.0
        bar = "█" * round(20 * share)
        lines.append(f"  {name:<{width}}  {share:7.2%}  {bar:<20}  {correct:5d} of {count}")
    return "\n".join(lines)


def parameter_breakdown(model: nn.Module) -> str:
    """Count parameters, in total and by part: "1,290 parameters = 1,280 body + 10 head"."""

    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    parts = [f"{each.numel():,} {name}" for name, each in model.named_parameters(recurse=False)]
    for name, child in model.named_children():
        sizes = {count(each) for each in child.children()}
        if isinstance(child, nn.ModuleList) and len(child) > 1 and len(sizes) == 1:
            parts.append(f"{len(child)} × {sizes.pop():,} {name}")
        elif count(child):
            parts.append(f"{count(child):,} {name}")
    return f"{count(model):,} parameters = {' + '.join(parts)}"
