"""The folder of an evaluation: its numbers, every image's answer, and the figures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from torch import Tensor

from vit_train.base.text import csv_text, printable
from vit_train.base.writing import write_json, write_text
from vit_train.engine.metrics import Answers, Classification, Evaluation
from vit_train.explain.attribution import Focus
from vit_train.figures.charts import draw_robustness, save
from vit_train.figures.confidence import calibration_error, cooled
from vit_train.figures.measures import ClassReport, averages, class_reports, figures, result_dict

# Classes that are named for each image.
TOP = 5


@dataclass(frozen=True)
class Findings:
    """The results of an evaluation, with its images and facts about the model.

    The images are uint8 (N,C,S,S), each with a name.
    """

    result: Evaluation
    images: Tensor
    names: Sequence[object]
    classes: Sequence[str]
    facts: dict[str, Any]
    # What gives the model an advantage on these images, as a sentence; "" for nothing.
    caveat: str = ""
    # The temperature that calibrates the probabilities, fitted on other images.
    temperature: float | None = None
    # The result with test-time augmentation, if it was asked for.
    flipped: Classification | None = None
    # The accuracy by corruption and severity, if it was asked for.
    robustness: dict[str, list[float]] | None = None
    # The position of the maps; None for models without attention.
    focus: Focus | None = None

    @cached_property
    def class_reports(self) -> list[ClassReport]:
        assert isinstance(self.result, Classification)
        return class_reports(self.result.answers, self.classes)

    @cached_property
    def calibrated(self) -> Answers | None:
        """Return the answers with calibrated probabilities, if a temperature is known."""
        if self.temperature is None or not isinstance(self.result, Classification):
            return None
        return cooled(self.result.answers, self.temperature)


def write_evaluation(folder: Path, found: Findings) -> list[str]:
    """Write everything that needs no model into the folder, and return the files' names."""
    write_json(folder / "results.json", found.facts | numbers(found))
    written = ["results.json"]
    result = found.result
    if not isinstance(result, Classification):
        return written
    rows = predictions(result.answers, found.names, found.classes)
    write_text(folder / "predictions.csv", csv_text(rows))
    pictures = dict(figures(result, found.images, found.classes, found.names))
    if found.robustness is not None:
        pictures["robustness"] = draw_robustness(found.robustness, result.acc)
    for name, figure in pictures.items():
        save(figure, folder / f"{name}.png")
    return [*written, "predictions.csv", *(f"{name}.png" for name in pictures)]


def predictions(
    answers: Answers, names: Iterable[object], classes: Sequence[str]
) -> Iterator[list[object]]:
    """Yield the rows of predictions.csv: a header, then a row for each image.

    Its columns are the image, its true and its predicted class, the probabilities of both, and the
    other most probable classes with theirs.
    """
    named = [printable(name) for name in classes]
    top = answers.top(min(TOP, answers.classes))
    probabilities = np.exp(answers.log_probabilities)
    header = ["image", "true", "predicted", "correct", "probability", "true_probability"]
    for place in range(2, top.shape[1] + 1):
        header += [f"predicted_{place}", f"probability_{place}"]
    yield list(header)
    for name, label, right, best, row in zip(
        names, answers.labels, answers.correct, top, probabilities, strict=True
    ):
        first, *others = best
        cells: list[object] = [printable(str(name)), named[label], named[first], int(right)]
        cells += [f"{row[first]:.6f}", f"{row[label]:.6f}"]
        for other in others:
            cells += [named[other], f"{row[other]:.6f}"]
        yield cells


def numbers(found: Findings) -> dict[str, Any]:
    """Return the numbers of an evaluation, for JSON."""
    result = found.result
    if not isinstance(result, Classification):
        return {"result": result_dict(result)}
    content: dict[str, Any] = {
        "result": result_dict(result),
        "per_class": [asdict(each) for each in found.class_reports],
        "averages": [asdict(each) for each in averages(found.class_reports)],
    }
    if found.calibrated is not None:
        content["calibration"] = {
            "ece": calibration_error(result.answers),
            "temperature": found.temperature,
            "ece_with_temperature": calibration_error(found.calibrated),
            "loss_with_temperature": float(found.calibrated.losses.mean()),
            "fitted_on": "val",
        }
    if found.robustness is not None:
        content["robustness"] = {
            "mean_acc": mean_accuracy(found.robustness),
            "acc_by_severity": found.robustness,
        }
    if found.focus is not None:
        content["focus"] = asdict(found.focus)
    if found.flipped is not None:
        content["tta_flip"] = result_dict(found.flipped)
    return content


def mean_accuracy(robustness: dict[str, list[float]]) -> float:
    """Return the mean over all corruptions and severities."""
    return mean(map(mean, robustness.values()))
