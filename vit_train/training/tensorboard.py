"""TensorBoard: curves, pictures, the config, final metrics."""

import io
import os
import re
import socket
import textwrap
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils.tensorboard.summary import hparams, scalar, text

from vit_train.base.reading import flatten
from vit_train.base.text import printable, shortened
from vit_train.base.writing import write_from
from vit_train.data.dataset import ImageSet, sample, to_device
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.figures.charts import Figure, ignore_missing_glyphs
from vit_train.figures.maps import draw_maps
from vit_train.figures.measures import FIGURES, all_values
from vit_train.figures.sheet import draw_mistakes, image_grid, label_lines
from vit_train.model.build import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.training.setup import Setup


class EventFile:
    """A new file of events; they stay in memory until `flush` has written them.

    The file is made by the first `flush`; its folder is not.
    """

    def __init__(self, folder: Path) -> None:
        now = f"{time.time():017.6f}"  # by their names files are in the order of their beginning
        self.path = folder / f"events.out.tfevents.{now}.{socket.gethostname()}.{os.getpid()}"
        self.written, self.unwritten = 0, bytearray()
        self._add(Event(file_version="brain.Event:2"))

    @property
    def length(self) -> int:
        """Return the file's length in bytes once everything is written."""
        return self.written + len(self.unwritten)

    def add(self, summary: Summary, step: int = 0) -> None:
        self._add(Event(summary=summary, step=step))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self.unwritten += record.getvalue()

    def flush(self) -> None:
        """Write everything pending; after an OSError, which this raises, it stays pending."""
        if self.unwritten:
            write_from(self.path, self.written, self.unwritten)
            self.written, self.unwritten = self.length, bytearray()


def layer_norms(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, tuple[float, float]]:
    """Return the Euclidean norms of the weights and of the gradient of each layer.

    A layer is a part of the model or, if the part is a list of them, one block: "blocks.3". This
    waits for the device once.
    """
    layers: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    for name, parameter in named:
        if parameter.grad is not None:
            layer = re.match(r"[^.]+(\.\d+)?", name)
            assert layer is not None
            weights, gradients = layers.setdefault(layer[0], ([], []))
            weights.append(parameter)
            gradients.append(parameter.grad)
    norms = [get_total_norm(tensors) for pair in layers.values() for tensors in pair]
    values = iter(torch.stack(norms).tolist() if norms else [])
    return {layer: (next(values), next(values)) for layer in layers}


# TensorBoard sorts groups of curves by name and opens the first two. So each measure that training
# and validation share is a group, `acc/train` beside `acc/val`, and the norms come last.
GRADIENT, WEIGHT = "weight gradient norm", "weight norm"


class TensorBoard(Callback):
    """Adds what happens to an event file, which it does not write itself."""

    def __init__(self, folder: Path) -> None:
        self.file = EventFile(folder)

    def begin(self, config: str) -> None:
        """Write the settings."""
        # A code block by indentation, because a setting's value could end a fenced one.
        self.file.add(text("config", textwrap.indent(printable(config, keep="\n"), " " * 4)))

    def figure(self, tag: str, figure: Figure, step: int = 0) -> bytes:
        """Add a figure, and return it as PNG."""
        png = io.BytesIO()
        with ignore_missing_glyphs():
            figure.savefig(png, format="png")
        width, height = Image.open(png).size
        image = Summary.Image(width=width, height=height, encoded_image_string=png.getvalue())
        self.file.add(Summary(value=[Summary.Value(tag=tag, image=image)]), step)
        return png.getvalue()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        for name, value in log.values.items():
            self.scalar(f"{name}/train", value, log.step)
        counts = {"lr": log.lr, "images_per_s": log.images_per_s, "images_seen": log.images_seen}
        for name, value in counts.items():
            self.scalar(f"train/{name}", value, log.step)
        for layer, (weight, gradient) in layer_norms(trainer.model.named_parameters()).items():
            self.scalar(f"{WEIGHT}/{layer}", weight, log.step)
            self.scalar(f"{GRADIENT}/{layer}", gradient, log.step)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if log.step < trainer.loop.log_every:  # the beginning, or all of a very short run
            self.on_log(trainer, log)
        if val is not None:
            for name, value in all_values(val).items():
                tag = f"{name}/val" if name in log.values else f"val/{name}"
                self.scalar(tag, value, log.step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        self.file.add(scalar(tag, value), step)

    def close(
        self, config: dict[str, Any], metrics: dict[str, float], chosen: Collection[str] = ()
    ) -> None:
        """Add the hyperparameters with the final metrics, by tag.

        TensorBoard finds metrics only among the curves, where these are single dots. It shows
        first, and by default, the settings that it is told to differ between runs: those `chosen`.
        """
        # A path need not be UTF-8, which TensorBoard's texts must be.
        settings = {
            key: printable(value) if isinstance(value, str) else value
            for key, value in flatten(config)
        }
        experiment, *session = hparams(settings, metrics)
        plugin = experiment.value[0].metadata.plugin_data
        content = HParamsPluginData.FromString(plugin.content)
        for info in content.experiment.hparam_infos:
            info.differs = info.name in chosen
        plugin.content = content.SerializeToString()
        for summary in (experiment, *session):
            self.file.add(summary)
        for name, value in metrics.items():
            self.scalar(name, value, 0)


# Images of the first batch that are shown.
FIRST = 18
# Images that are shown with what their predictions come from, one below the other: a card of
# TensorBoard is as wide as one of them.
SHOWN = 4


def draw_first_images(setup: Setup) -> Figure:
    """Draw the first images of epoch 0, augmented, with their labels."""
    batches = setup.image_loader
    index = batches.order(batches.generator(0))[:FIRST]
    draws = batches.draw(index, batches.generator(0, 0))
    pixels, targets = batches.batch(*(to_device(each, setup.device) for each in draws))
    labels = [label_lines(target, setup.data.classes) for target in targets]
    return image_grid(setup.normalize.undo(pixels), labels)


def validation_figures(
    setup: Setup, model: nn.Module, result: Evaluation | None
) -> Iterator[tuple[str, Figure]]:
    """Yield the confusion matrix, the worst mistakes, and maps of where predictions come from."""
    images, classes = setup.splits.val, setup.data.classes
    if images is None or not isinstance(result, Classification):
        return
    yield "confusion", FIGURES["confusion"](result.answers, classes)
    names = images.all_names.tolist()
    yield "mistakes", draw_mistakes(result.answers, images.images, classes, names)
    if isinstance(model, VisionTransformer) and (most := images_at_once(model)):
        yield "relevance", draw_relevance(setup, model, sample(images, min(SHOWN, most)))


def draw_relevance(setup: Setup, model: VisionTransformer, shown: ImageSet) -> Figure:
    """Draw how much each patch of some images raised the predicted class."""
    classes = setup.data.classes
    batch = setup.normalize(shown.images.to(setup.device))
    from vit_train.explain.attribution import prediction_maps

    maps, _, predicted = prediction_maps(model, batch, model.config.has_class_token)
    lines = [
        [f"true: {shortened(classes[label])}", f"predicted: {shortened(classes[answer])}"]
        for label, answer in zip(shown.labels.tolist(), predicted.tolist(), strict=True)
    ]
    return draw_maps(shown.images, maps, lines, "what raised the class", columns=1)
