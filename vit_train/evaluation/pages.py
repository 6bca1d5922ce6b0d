"""report.html for one model or several; the page must be readable without other files.

The text is in the templates; the numbers are those of results.json.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_train.base.text import counted, render
from vit_train.engine.metrics import Classification, Evaluation, is_uneven

# The number of confused pairs of classes to name.
PAIRS = 5


def evaluation_page(
    content: dict[str, Any], result: Evaluation, run: dict[str, Any], pictures: Mapping[str, bytes]
) -> str:
    """Return the page for one model.

    `content` is the content of its results.json, `run` the summary of its run, and `pictures` holds
    PNG files by name.
    """
    more: dict[str, Any] = {}
    if isinstance(result, Classification):
        more["confusions"] = confusions(result, content["classes"])
        more["confidence"] = result.predictions.confidence.mean()
        more["uneven"] = is_uneven(result.per_class_count)
    if "robustness" in content:
        accuracies = content["robustness"]["acc_by_severity"]
        more["worst"] = min(accuracies, key=lambda name: sum(accuracies[name]))
    return render(
        "evaluation",
        "evaluation.html",
        title=f"{content['title']}, {content['split']} images",
        content=content,
        result=content["result"],
        origin=origin(content, run),
        pictures=pictures,
        **more,
    )


def confusions(result: Classification, classes: Sequence[str]) -> list[str]:
    """Describe the most frequent confusions in words."""
    predictions, support = result.predictions, result.per_class_count
    wrong = predictions.predicted != predictions.labels
    both = np.stack((predictions.labels[wrong], predictions.predicted[wrong]))
    pairs, counts = np.unique(both, axis=1, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:PAIRS]
    return [
        f"{classes[i]} mistaken for {classes[j]}: {counted(count, 'image')}, "
        f"{100 * count / support[i]:.1f} % of {classes[i]}"
        for i, j, count in zip(*pairs[:, most], counts[most], strict=True)
    ]


def origin(content: dict[str, Any], run: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the provenance of the results: names and values."""
    # The summary may have been written by somebody else.
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
        "evaluated": content["date"],
    }
    return [(name, value) for name, value in rows.items() if value not in (None, "")]


def comparison_page(
    models: Sequence[dict[str, Any]],
    verdicts: Sequence[str],
    settings: Sequence[Sequence[str]],
    pictures: Mapping[str, bytes],
) -> str:
    """Return the page for several models, each with a name and the content of its results.json.

    `verdicts` compare them in words; `settings` lists settings that differ, with each model's
    value.
    """
    return render(
        "evaluation",
        "comparison.html",
        title=f"{models[0]['title']}, {models[0]['split']} images: a comparison",
        models=models,
        verdicts=verdicts,
        settings=settings,
        pictures=pictures,
    )
