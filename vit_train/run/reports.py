"""The reports that grow during a run: metrics.csv, and TensorBoard's curves and pictures."""

import csv
import io
import re
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils.tensorboard.summary import hparams, scalar, text

from vit_train.base.log import logger
from vit_train.base.reading import flatten
from vit_train.base.text import csv_text, printable, reason, shortened
from vit_train.base.writing import replacing, write_from, write_text
from vit_train.data.batches import Batch
from vit_train.data.dataset import ImageSet
from vit_train.data.splits import sample
from vit_train.figures.charts import Figure, ignore_missing_glyphs
from vit_train.figures.images import (
    draw_gallery,
    draw_maps,
    draw_mistakes,
    gallery_size,
    image_grid,
    label_lines,
)
from vit_train.figures.measures import FIGURES, all_values
from vit_train.loop.metrics import Classification, Evaluation
from vit_train.loop.trainer import Callback, Trainer, TrainLog
from vit_train.model.build import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.run.saver import TimeShare
from vit_train.run.start import Run
from vit_train.trained.folder import SUMMARY


def reports(folder: Path) -> list[Path]:
    """Return the reports that grow during a run: metrics.csv and TensorBoard's event files."""
    return [*folder.glob("events.out.tfevents.*"), *folder.glob("metrics.csv")]


def truncate_reports(folder: Path, written: dict[str, int]) -> None:
    """Cut each report to its length in bytes, `written[name]`; delete reports not in `written`."""
    for name, length in written.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size < length:
            logger.warning(f"{path} is missing or too short: the lost part cannot be restored")
    for path in reports(folder):
        if path.name in written:
            write_from(path, min(written[path.name], path.stat().st_size), b"")
        else:
            path.unlink()


class MetricsCsv(Callback):
    """Adds a row with each epoch's training and validation measures to metrics.csv.

    `open` reads the rows of an existing file. New rows stay in memory until `flush`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = ""
        self.written = ""

    def open(self) -> None:
        """Read the existing rows; raise ValueError if they are damaged."""
        if self.path.exists():
            self.text = self.written = read_table(self.path)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        row: dict[str, float] = {
            "epoch": log.epoch,
            "step": log.step,
            "images_seen": log.images_seen,
            "lr": log.lr,
            **{f"train_{name}": value for name, value in log.values.items()},
            **{f"val_{name}": value for name, value in (all_values(val) if val else {}).items()},
            "images_per_s": round(log.images_per_s, 1),
            "seconds": round(trainer.seconds, 1),
        }
        if not self.text:
            self.text = csv_text([row])
        # A table begun by another version keeps its columns.
        columns = next(csv.reader(io.StringIO(self.text)))
        self.text += csv_text([[row.get(name, "nan") for name in columns]])

    @property
    def length(self) -> int:
        """Return the size in bytes that the file will have after `flush`."""
        return len(self.text.encode())

    def flush(self) -> None:
        """Write the new rows; after an OSError, the next call tries again."""
        if self.text != self.written:
            write_text(self.path, self.text)
            self.written = self.text


def read_table(path: Path) -> str:
    """Return the text of a metrics.csv; raise ValueError if it is damaged."""
    from vit_train.evaluate.summaries import read_curve  # rarely needed

    read_curve(path.with_name(SUMMARY))
    return path.read_bytes().decode()  # with its line ends


def norms_by_layer(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, float]:
    """Return the Euclidean norm of each layer's trained weights, by TensorBoard tag.

    A layer is one submodule of the model, such as "head", or one element of a list, such as
    "blocks.3". All norms are copied from the device at once.
    """
    layers: dict[str, list[Tensor]] = defaultdict(list)
    for name, parameter in named:
        if parameter.requires_grad:
            layer = re.sub(r"^([^.]+(\.\d+)?).*", r"\1", name)
            layers[f"weight norm/{layer}"].append(parameter)
    norms = [get_total_norm(each) for each in layers.values()]
    return dict(zip(layers, torch.stack(norms).tolist(), strict=True))


class TensorBoard(Callback):
    """Adds curves, figures and settings to a new event file.

    TensorBoard sorts groups of curves by name and opens the first two. So each measure of both
    training and validation is a group, `acc/train` beside `acc/val`, and the weights' norms come
    last.

    Events stay in memory until `flush`, which creates the file but not its folder.
    """

    def __init__(self, folder: Path) -> None:
        # Sorting by name sorts by time.
        self.path = folder / f"events.out.tfevents.{time.time():017.6f}"
        self.written = 0
        self.unwritten = bytearray()
        # The points since the last checkpoint: values by tag, by step.
        self.points: defaultdict[int, dict[str, float]] = defaultdict(dict)
        self.add(Event(file_version="brain.Event:2"))

    @property
    def length(self) -> int:
        """Return the size in bytes that the file will have after `flush`."""
        return self.written + len(self.unwritten)

    def add(self, event: Event) -> None:
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self.unwritten += record.getvalue()

    def flush(self) -> None:
        """Write the new events; after an OSError, the next call tries again."""
        if self.unwritten:
            write_from(self.path, self.written, self.unwritten)
            self.written = self.length
            self.unwritten = bytearray()

    def begin(self, config: str) -> None:
        """Add the run's settings, given as YAML, to TensorBoard's texts."""
        # A code block by indentation, because a setting's value could end a fenced block.
        code = textwrap.indent(printable(config, keep="\n"), " " * 4)
        self.add(Event(summary=text("config", code)))

    def figure(self, tag: str, figure: Figure, step: int = 0) -> bytes:
        """Add a figure, and return it as PNG."""
        png = io.BytesIO()
        with ignore_missing_glyphs():
            figure.savefig(png, format="png")
        width, height = figure.canvas.get_width_height()
        image = Summary.Image(width=width, height=height, encoded_image_string=png.getvalue())
        self.add(Event(summary=Summary(value=[Summary.Value(tag=tag, image=image)]), step=step))
        return png.getvalue()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        points = {
            **{f"{name}/train": value for name, value in log.values.items()},
            "train/lr": log.lr,
            "train/images_per_s": log.images_per_s,
            "train/images_seen": log.images_seen,
            "train/gradient_norm": float(trainer.gradient_norm),
            **norms_by_layer(trainer.model.named_parameters()),
        }
        for tag, value in points.items():
            self.scalar(tag, value, log.step)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if val is not None:
            for name, value in all_values(val).items():
                tag = f"{name}/val" if name in log.values else f"val/{name}"
                self.scalar(tag, value, log.step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        self.points[step][tag] = value
        self.add(Event(summary=scalar(tag, value), step=step))

    def close(
        self, config: dict[str, Any], metrics: dict[str, float], chosen: Collection[str]
    ) -> None:
        """Add the settings and the final metrics, by tag, to TensorBoard's hyperparameter table.

        TensorBoard takes metrics from curves, so each metric is also added as a curve of one point.
        By default, the table shows only hyperparameters that are marked as differing between runs.
        The hyperparameters whose keys are in `chosen` get this mark.
        """
        # A path need not be UTF-8, but TensorBoard's texts must be.
        settings = {
            key: printable(value) if isinstance(value, str) else value
            for key, value in flatten(config)
        }
        experiment, *session = hparams(settings, metrics)
        plugin = experiment.value[0].metadata.plugin_data
        content = HParamsPluginData.FromString(plugin.content)
        for info in content.experiment.hparam_infos:
            info.differs = info.name.removesuffix(".name") in chosen
        plugin.content = content.SerializeToString()
        for summary in (experiment, *session):
            self.add(Event(summary=summary))
        for name, value in metrics.items():
            self.scalar(name, value, 0)


# The largest share of the time for pictures.
PICTURES_SHARE = 0.005
# Number of images from the first batch to show.
AUGMENTED = 18
# Number of images to show with their relevance maps, in one column, because TensorBoard's cards are
# narrow.
SHOWN = 4


class Pictures(Callback):
    """Adds figures of the results to TensorBoard after the first, the last and some other epochs.

    The other epochs are chosen so that drawing takes at most PICTURES_SHARE of the time. The file
    `path` holds the latest gallery: images beside the task's pictures of them, such as
    reconstructions.
    """

    def __init__(self, run: Run, board: TensorBoard, path: Path) -> None:
        self.run = run
        self.board = board
        self.path = path
        self.drawing = TimeShare(PICTURES_SHARE)
        self.unwritten: bytes | None = None
        self.batch: Batch | None = None
        if count := gallery_size(run.task, run.model):
            shown = sample(run.data.splits.val or run.data.splits.train, count)
            self.batch = next(iter(run.unaugmented(shown)))

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if self.drawing.is_due or trainer.finished:
            model = trainer.eval_model
            was_training = model.training
            with self.drawing.spent():
                self.show(model.eval(), val, log.step)
            model.train(was_training)

    def show(self, model: nn.Module, val: Evaluation | None, step: int) -> None:
        run = self.run
        images = run.data.splits.val
        if self.batch is not None and len(self.batch[0]):  # this process may have no image
            self.unwritten = self.board.figure(
                "val/pictures", draw_gallery(run.task, model, self.batch, run.data.normalize), step
            )
        if images is None or not isinstance(val, Classification):
            return
        classes = run.data.facts.classes
        self.board.figure("val/confusion", FIGURES["confusion"](val.predictions, classes), step)
        self.board.figure("val/mistakes", draw_mistakes(val.predictions, images, classes), step)
        if isinstance(model, VisionTransformer) and (most := images_at_once(model)):
            figure = draw_relevance(run, model, sample(images, min(SHOWN, most)))
            self.board.figure("val/relevance", figure, step)

    def flush(self) -> None:
        """Write the latest gallery; after an OSError, the next call tries again."""
        if self.unwritten is not None:
            with replacing(self.path) as file:
                file.write(self.unwritten)
            self.unwritten = None


def draw_first_images(run: Run) -> Figure:
    """Draw the first images of the first epoch as augmented for training, with their labels."""
    pixels, targets = (each[:AUGMENTED] for each in next(run.image_batches.epoch(0)))
    return image_grid(
        run.data.normalize.undo(pixels),
        [label_lines(target, run.data.facts.classes) for target in targets],
    )


def draw_relevance(run: Run, model: VisionTransformer, shown: ImageSet) -> Figure:
    """Draw images beside maps of how much each patch raised the logit of the predicted class."""
    classes = run.data.facts.classes
    batch = run.data.normalize(shown.images.to(run.precision.device))
    from vit_train.explain.attribution import prediction_maps

    maps, predicted = prediction_maps(model, batch)
    lines = [
        [f"true: {shortened(classes[label])}", f"predicted: {shortened(classes[answer])}"]
        for label, answer in zip(shown.labels.tolist(), predicted.tolist(), strict=True)
    ]
    return draw_maps(
        shown.images,
        maps,
        lines,
        "how much each patch raised the predicted class's logit",
        columns=1,
    )


# The functions of a tracker that log numbers at a step, and that end the run.
Tracker = tuple[Callable[..., object], Callable[[bool], object]]


def open_wandb(module: Any, folder: Path, record: str, settings: dict[str, Any]) -> Tracker:
    """Open Weights & Biases, or Trackio: the same functions, but it finds a run by its name."""
    has_ids = module.__name__ == "wandb"
    run = module.init(
        project=folder.absolute().parent.name,
        name=folder.name if has_ids else f"{folder.name}-{record[:8]}",
        config=settings,
        resume="allow",
        **({"id": record} if has_ids else {}),
    )
    return run.log, lambda failed: run.finish(int(failed)) if has_ids else run.finish()


def open_mlflow(module: Any, folder: Path, record: str, settings: dict[str, Any]) -> Tracker:
    """Open MLflow, which gives runs its own ids, and finds an earlier run by a tag."""
    module.set_experiment(folder.absolute().parent.name)
    query = f"tags.vit_train = '{record}'"
    found = module.search_runs(filter_string=query, output_format="list")
    module.start_run(
        run_id=found[0].info.run_id if found else None,
        run_name=folder.name,
        tags={"vit_train": record},
    )
    if not found:  # MLflow allows no changes, such as of train.max_minutes
        module.log_params({key: str(value)[:500] for key, value in flatten(settings)})
    return module.log_metrics, lambda failed: module.end_run("FAILED" if failed else "FINISHED")


def open_tracker(name: str, folder: Path, record: str, settings: dict[str, Any]) -> Tracker:
    """Open the named tracker; raise ValueError if its package is missing or cannot start.

    When a run is resumed, the tracker continues the same `record`, by this id.
    """
    opened = open_mlflow if name == "mlflow" else open_wandb
    try:
        return opened(import_module(name), folder, record, settings)
    except ModuleNotFoundError as error:
        raise ValueError(f"trackers=[{name}] needs a package: pip install {error.name}") from error
    except Exception as error:  # of any kind, such as for a missing login
        raise ValueError(f"trackers=[{name}] cannot start: {reason(error)}") from error


class Trackers:
    """The trackers of a run, by name; if a tracker fails, training continues without it."""

    def __init__(self, opened: dict[str, Tracker]) -> None:
        self.opened = opened

    def log(self, values: dict[str, float], step: int) -> None:
        self.with_each(lambda log, close: log(values, step))

    def close(self, failed: bool = False) -> None:
        self.with_each(lambda log, close: close(failed))

    def with_each(self, act: Callable[..., object]) -> None:
        for name, tracker in list(self.opened.items()):
            try:
                act(*tracker)
            except Exception as error:  # of the network, or of the package
                logger.warning(f"trackers: no longer sending to {name}: {reason(error)}")
                del self.opened[name]
