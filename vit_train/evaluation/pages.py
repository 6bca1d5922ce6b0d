"""report.html of one model and of several, for readers who know no more than the page.

Here are its figures and sentences; the templates beside this file hold the rest.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vit_train.base.text import counted, printable
from vit_train.engine.metrics import Classification, is_uneven
from vit_train.evaluation.findings import Findings, mean_accuracy
from vit_train.figures.confidence import calibration_error
from vit_train.figures.measures import averages

TEMPLATES = Path(__file__).with_name("templates")
# Pairs of classes that are named as confused.
PAIRS = 5
# Fewer images say little.
FEW = 100
# Points of the accuracy's interval within which a verdict on calibration is possible.
WIDEST = 10


def render(template: str, **content: object) -> str:
    """Return a page in which no text of `content` is markup or a control character."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow, and for pages alone

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["base64"] = lambda png: b64encode(png).decode()
    return environment.get_template(template).render(content)


def evaluation_page(found: Findings, run: dict[str, Any], pictures: Mapping[str, bytes]) -> str:
    """Return the page of one model; `run` is its run's summary, `pictures` are PNG by name."""
    result, facts = found.result, found.facts
    score, score_means, classified = f"{result.loss:.4f}", "mean loss", None
    if isinstance(result, Classification):
        low, high = (100 * end for end in result.interval)
        reports = [*found.class_reports, *averages(found.class_reports)]
        score = f"{100 * result.acc:.2f} %"
        score_means = f"correct, 95 % interval {low:.2f} to {high:.2f}"
        classified = {
            "in_context": in_context(found, result),
            "confusions": confusions(result, found.classes),
            "by_class": [
                (
                    each.name,
                    *map("{:.3f}".format, (each.precision, each.recall, each.f1)),
                    each.support,
                )
                for each in reports
            ],
            "trust": trust(found, result),
            "robustness": found.robustness and robustness(found.robustness, result),
        }
    return render(
        "evaluation.html",
        title=f"{facts['title']}, {facts['split']} images",
        lead=f"What a trained model, {facts['checkpoint']}, predicts for "
        f"{counted(result.count, 'image')} of {facts['title']}, {facts['image_size']} by "
        f"{facts['image_size']} pixels.",
        score=score,
        score_means=score_means,
        classified=classified,
        focus=found.focus,
        origin=origin(facts, run),
        pictures=pictures,
    )


def in_context(found: Findings, result: Classification) -> str:
    """Return a sentence for each figure to compare the accuracy with."""
    chance = 100 * max(result.per_class_count) / result.count
    words = f"Always predicting the most frequent class would be right in {chance:.1f} %."
    if result.count < FEW:
        words += " With so few images all numbers here are rough."
    if is_uneven(result.per_class_count):
        balanced = 100 * result.balanced_acc
        words += f" With every class counted alike, the model is right in {balanced:.2f} %."
    if len(found.classes) > 5:
        top5 = 100 * result.top5
        words += f" The true class is among the five most probable ones in {top5:.2f} %."
    if found.caveat:
        words += f" {found.caveat}"
    if found.flipped is not None:
        acc = 100 * found.flipped.acc
        words += f" Averaged with each image's mirror image it is right in {acc:.2f} %."
    return words


def confusions(result: Classification, classes: Sequence[str]) -> list[str]:
    """Return the most frequent confusions in words."""
    answers, support = result.answers, result.per_class_count
    wrong = answers.predicted != answers.labels
    both = np.stack((answers.labels[wrong], answers.predicted[wrong]))
    pairs, counts = np.unique(both, axis=1, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:PAIRS]
    return [
        f"{classes[i]} mistaken for {classes[j]}: {counted(count, 'image')}, "
        f"{100 * count / support[i]:.1f} % of {classes[i]}"
        for i, j, count in zip(*pairs[:, most], counts[most], strict=True)
    ]


def trust(found: Findings, result: Classification) -> str:
    """Return the agreement of confidence and accuracy, in words."""
    answers = result.answers
    sure, right = 100 * answers.confidence.mean(), 100 * result.acc
    low, high = (100 * end for end in result.interval)
    error = 100 * calibration_error(answers)
    if error < 3 and high - low < WIDEST:
        verdict = "Yes: it is right about as often as its probabilities say."
    elif low <= sure <= high:
        verdict = "On average, as far as these images tell; for each confidence see the diagram."
    else:
        more = "less" if sure > right else "more"
        verdict = f"Not as they are: it is right {more} often than its probabilities say."
    words = (
        f"{verdict} On average it gives its predictions a probability of {sure:.1f} %, and "
        f"{right:.1f} % of them are right; the expected calibration error is {error:.1f} %."
    )
    if found.calibrated is not None:
        words += (
            f" Temperature scaling (T = {found.temperature:.2f}, fitted on validation images) "
            f"changes the loss from {answers.losses.mean():.4f} to "
            f"{found.calibrated.losses.mean():.4f}, and the calibration error from {error:.1f} to "
            f"{100 * calibration_error(found.calibrated):.1f} %."
        )
    return words


def robustness(accuracies: dict[str, list[float]], result: Classification) -> str:
    worst = min(accuracies, key=lambda name: mean(accuracies[name]))
    return (
        f"Of images corrupted in {len(accuracies)} ways it is right in "
        f"{100 * mean_accuracy(accuracies):.1f} % on average, of clean ones in "
        f"{100 * result.acc:.1f} %. It suffers most from {worst}."
    )


def origin(facts: dict[str, Any], run: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the provenance of the figures: names and values."""
    # The summary may be somebody else's.
    parts = (run.get(name) for name in ("config", "machine", "images"))
    config, machine, images = (each if isinstance(each, dict) else {} for each in parts)
    seconds = run.get("seconds")
    rows = {
        "trained with": run.get("command"),
        "commit": run.get("commit"),
        "training images": images.get("train"),
        "images seen": facts.get("images_seen"),
        "seed": config.get("seed"),
        "parameters": run.get("parameters"),
        "minutes": f"{seconds / 60:.1f}" if isinstance(seconds, int | float) else None,
        "machine": machine.get("gpu") or machine.get("cpu"),
        "weights": f"{facts['weights']}, epoch {facts['epoch']}",
        "evaluated with": facts.get("command"),
        "evaluated": f"{facts['date']}, {facts.get('images_per_s', '?')} images a second",
    }
    return [(name, value) for name, value in rows.items() if value not in (None, "")]


def comparison_page(
    names: Sequence[str],
    found: Sequence[Findings],
    verdicts: Sequence[str],
    settings: Sequence[Sequence[str]],
    pictures: Mapping[str, bytes],
) -> str:
    """Return the page of several models.

    `verdicts` compare them in words; `settings` are those that differ, with each model's value.
    """
    first = found[0]
    return render(
        "comparison.html",
        title=f"{first.facts['title']}, {first.facts['split']} images: a comparison",
        lead=f"{len(found)} models on the same {counted(first.result.count, 'image')}.",
        names=names,
        models=[row(name, each) for name, each in zip(names, found, strict=True)],
        verdicts=verdicts,
        settings=settings,
        pictures=pictures,
    )


def row(name: str, found: Findings) -> tuple[str, ...]:
    result = found.result
    assert isinstance(result, Classification)
    low, high = result.interval
    return (
        name,
        f"{100 * result.acc:.2f}",
        f"{100 * low:.2f} to {100 * high:.2f}",
        f"{result.loss:.4f}",
        f"{found.facts['images_seen']:,}",
    )
