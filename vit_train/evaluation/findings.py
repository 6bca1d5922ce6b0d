"""The numbers of an evaluation, every image's prediction, and the figures."""

from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import mean
from typing import Any

import numpy as np

from vit_train.base.text import printable
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet, sample
from vit_train.engine.metrics import Answers, Classification, Evaluation
from vit_train.explain.explainer import Explainer, true_classes
from vit_train.figures.charts import Curve, Figure, curves, draw_robustness
from vit_train.figures.confidence import cooled
from vit_train.figures.maps import MOST_PLACES, draw_gallery, draw_positions, gallery_size
from vit_train.figures.measures import all_values, class_reports, figures, result_dict
from vit_train.results.summaries import validated_on
from vit_train.runs.trained import Trained, encoder_of

# Classes that are named for each image.
TOP = 5
# Images whose maps are drawn.
SHOWN = 12


def numbers(
    result: Evaluation, classes: Sequence[str], temperature: float | None
) -> dict[str, Any]:
    """Return the numbers of a result; `temperature` is the one that calibrates it, if known."""
    content: dict[str, Any] = {"result": result_dict(result)}
    if isinstance(result, Classification):
        by_class, averages = class_reports(result.answers, classes)
        content["per_class"] = [each._asdict() for each in by_class]
        content["averages"] = [each._asdict() for each in averages]
        if temperature is not None:
            calibrated = Classification.of(cooled(result.answers, temperature))
            content["calibration"] = {
                "ece": content["result"]["ece"],
                "temperature": temperature,
                "ece_with_temperature": all_values(calibrated)["ece"],
                "loss_with_temperature": calibrated.loss,
                "fitted_on": "val",
            }
    return content


def robustness_numbers(accuracies: dict[str, list[float]]) -> dict[str, Any]:
    """Return the accuracies by corruption and severity, and their mean."""
    return {"mean_acc": mean(map(mean, accuracies.values())), "acc_by_severity": accuracies}


def predictions(
    answers: Answers, names: Sequence[object], classes: Sequence[str]
) -> Iterator[list[object]]:
    """Yield the rows of predictions.csv: a header, then a row for each image.

    Its columns are the image, its true and its predicted class, the probabilities of both, and the
    other most probable classes with theirs.
    """
    named = [printable(name) for name in classes]
    top = answers.top(min(TOP, answers.classes))
    others = range(2, top.shape[1] + 1)
    header = ["image", "true", "predicted", "correct", "probability", "true_probability"]
    yield [*header, *chain(*((f"predicted_{place}", f"probability_{place}") for place in others))]
    for name, label, best, chances in zip(
        names, answers.labels, top, np.exp(answers.log_probabilities), strict=True
    ):
        first, *next_ones = best
        row = [printable(str(name)), named[label], named[first], int(first == label)]
        row += [f"{chances[first]:.6f}", f"{chances[label]:.6f}"]
        yield [*row, *chain(*((named[other], f"{chances[other]:.6f}") for other in next_ones))]


def pictures(
    trained: Trained,
    explainer: Explainer | None,
    images: ImageSet,
    result: Evaluation,
    content: dict[str, Any],
    run: dict[str, Any],
    curve: Curve,
) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of an evaluation, by name; `run` and `curve` are its run's, or empty."""
    model, meta = trained
    yield from figures(result, images.images, meta.classes, images.all_names.tolist())
    if "robustness" in content:
        accuracies = content["robustness"]["acc_by_severity"]
        yield "robustness", draw_robustness(accuracies, content["result"]["acc"])
    if meta.task.columns and (count := gallery_size(meta.task, model)):
        batches = EvalBatches(images, trained.normalize, count, trained.device)
        batch = next(iter(meta.task.eval_loader(batches)))
        yield "pictures", draw_gallery(meta.task, model, batch, trained.normalize)
    if explainer is not None:
        shown = sample(images, SHOWN)
        yield "maps", explainer.draw_maps(shown.images, true_classes(shown, meta.classes))
    encoder = encoder_of(model)
    if encoder is not None and len(encoder.pos_embed) and encoder.grid**2 <= MOST_PLACES:
        yield "positions", draw_positions(encoder)
    if curve:
        measures = ("loss", "acc") if isinstance(result, Classification) else ("loss",)
        yield "curves", curves([("this run", [curve])], measures, validated_on([run]))
