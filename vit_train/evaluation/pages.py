"""report.html of one model and of several, for readers who know no more than the page.

Here are its figures and sentences; the templates beside this file hold the rest. Their numbers are
those of results.json.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vit_train.base.text import counted, printable
from vit_train.engine.metrics import Classification, Evaluation, is_uneven

TEMPLATES = Path(__file__).with_name("templates")
# Pairs of classes that are named as confused.
PAIRS = 5
# Fewer images say little, and nothing about maps.
FEW, FEW_MAPS = 100, 30
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


def evaluation_page(
    content: dict[str, Any], result: Evaluation, run: dict[str, Any], pictures: Mapping[str, bytes]
) -> str:
    """Return the page of one model.

    `content` is that of its results.json, `run` its run's summary, `pictures` are PNG by name.
    """
    score, score_means, classified = f"{result.loss:.4f}", "mean loss", None
    if isinstance(result, Classification):
        low, high = (100 * end for end in result.interval)
        score = f"{100 * result.acc:.2f} %"
        score_means = f"correct, 95 % interval {low:.2f} to {high:.2f}"
        classified = {
            "in_context": in_context(content, result),
            "confusions": confusions(result, content["classes"]),
            "by_class": [
                (each["name"], *scores_of(each), each["support"])
                for each in (*content["per_class"], *content["averages"])
            ],
            "trust": trust(content, result),
            "robustness": "robustness" in content and robustness(content["robustness"], result),
        }
    return render(
        "evaluation.html",
        title=f"{content['title']}, {content['split']} images",
        lead=f"What a trained model, {content['checkpoint']}, predicts for "
        f"{counted(result.count, 'image')} of {content['title']}, {content['image_size']} by "
        f"{content['image_size']} pixels.",
        score=score,
        score_means=score_means,
        classified=classified,
        focus="focus" in content and focus(content["focus"]),
        origin=origin(content, run),
        pictures=pictures,
    )


def scores_of(report: dict[str, Any]) -> list[str]:
    return [f"{report[name]:.3f}" for name in ("precision", "recall", "f1")]


def in_context(content: dict[str, Any], result: Classification) -> str:
    """Return a sentence for each figure to compare the accuracy with."""
    counts = result.per_class_count
    sentences = [
        "Always predicting the most frequent class would be right in "
        f"{100 * max(counts) / result.count:.1f} %.",
        result.count < FEW and "With so few images all numbers here are rough.",
        is_uneven(counts)
        and "With every class counted alike, the model is right in "
        f"{100 * result.balanced_acc:.2f} %.",
        len(counts) > 5
        and f"The true class is among the five most probable ones in {100 * result.top5:.2f} %.",
        content["caveat"],
        "tta_flip" in content
        and "Averaged with each image's mirror image it is right in "
        f"{100 * content['tta_flip']['acc']:.2f} %.",
    ]
    return " ".join(filter(None, sentences))


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


def trust(content: dict[str, Any], result: Classification) -> str:
    """Return the agreement of confidence and accuracy, in words."""
    sure, right = 100 * result.answers.confidence.mean(), 100 * result.acc
    low, high = (100 * end for end in result.interval)
    error = 100 * content["result"]["ece"]
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
    if "calibration" in content:
        scaled = content["calibration"]
        words += (
            f" Temperature scaling (T = {scaled['temperature']:.2f}, fitted on validation images) "
            f"changes the loss from {result.loss:.4f} to {scaled['loss_with_temperature']:.4f}, "
            f"and the calibration error from {error:.1f} to "
            f"{100 * scaled['ece_with_temperature']:.1f} %."
        )
    return words


def robustness(found: dict[str, Any], result: Classification) -> str:
    """Return the mean accuracy on corrupted images and the worst corruption, in words."""
    accuracies = found["acc_by_severity"]
    worst = min(accuracies, key=lambda name: mean(accuracies[name]))
    return (
        f"Of images corrupted in {len(accuracies)} ways it is right in "
        f"{100 * found['mean_acc']:.1f} % on average, of clean ones in "
        f"{100 * result.acc:.1f} %. It suffers most from {worst}."
    )


def focus(found: dict[str, Any]) -> str:
    """Return where the maps lie, and whether the predictions need those patches, in words."""
    shown, images = "the maps show what the predictions depend on.", found["images"]
    if images < FEW_MAPS:
        verdict = f"So few images do not tell whether {shown}"
    elif found["p_value"] >= 0.05:
        verdict = f"That may be chance: these images do not tell whether {shown}"
    elif found["changed"] > found["changed_at_random"]:
        verdict = f"So {shown}"
    else:
        verdict = "So the maps hardly show what the predictions depend on."
    half, middle, deleted, changed, at_random = (
        f"{100 * found[name]:.0f} %"
        for name in ("patches_of_half", "middle", "deleted", "changed", "changed_at_random")
    )
    return (
        f"In {counted(images, 'image')}, {half} of the patches hold half of the relevance; the "
        f"central quarter of the image holds {middle} of it. Removing the {deleted} most relevant "
        f"patches changes {changed} of the predictions; removing random patches, {at_random}. "
        f"{verdict}"
    )


def origin(content: dict[str, Any], run: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the provenance of the figures: names and values."""
    # The summary may be somebody else's.
    parts = (run.get(name) for name in ("config", "machine", "images"))
    config, machine, images = (each if isinstance(each, dict) else {} for each in parts)
    seconds = run.get("seconds")
    rows = {
        "trained with": run.get("command"),
        "commit": run.get("commit"),
        "training images": images.get("train"),
        "images seen": content["images_seen"],
        "seed": config.get("seed"),
        "parameters": run.get("parameters"),
        "minutes": f"{seconds / 60:.1f}" if isinstance(seconds, int | float) else None,
        "machine": machine.get("gpu") or machine.get("cpu"),
        "weights": f"{content['weights']}, epoch {content['epoch']}",
        "evaluated with": content["command"],
        "evaluated": f"{content['date']}, {content['images_per_s']} images a second",
    }
    return [(name, value) for name, value in rows.items() if value not in (None, "")]


def comparison_page(
    models: Sequence[dict[str, Any]],
    verdicts: Sequence[str],
    settings: Sequence[Sequence[str]],
    pictures: Mapping[str, bytes],
) -> str:
    """Return the page of several models, each with a name and the content of its results.json.

    `verdicts` compare them in words; `settings` are those that differ, with each model's value.
    """
    first, rows = models[0], []
    for model in models:
        result = model["result"]
        low, high = (f"{100 * end:.2f}" for end in result["acc_interval_95"])
        accuracy, loss = f"{100 * result['acc']:.2f}", f"{result['loss']:.4f}"
        rows.append(
            (model["name"], accuracy, f"{low} to {high}", loss, f"{model['images_seen']:,}")
        )
    return render(
        "comparison.html",
        title=f"{first['title']}, {first['split']} images: a comparison",
        lead=f"{len(models)} models on the same {counted(first['result']['count'], 'image')}.",
        names=[model["name"] for model in models],
        models=rows,
        verdicts=verdicts,
        settings=settings,
        pictures=pictures,
    )
