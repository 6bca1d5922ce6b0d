"""The plots of `vit-results`."""

from collections.abc import Hashable, Sequence
from typing import Any

from vit_train.figures.charts import Figure, Row, Series, curves, dots, lines, scatters
from vit_train.results.summaries import Group, short_name, validated_on
from vit_train.results.table import Measure, common_measure, interval


def plots(groups: Sequence[Group]) -> dict[str, Figure]:
    """Return the plots by file name.

    results.png shows the final results. images.png shows the results by number of training images,
    if there are at least three different numbers. curves.png shows the training curves, if every
    run has a metrics.csv. settings.png shows validation results by
    each searched setting.
    """
    measure, runs = common_measure(groups), [run for group in groups for run in group.runs]
    rows = [
        Row(each.label(), measure.points(each), interval(each), measure.text(measure.final(each)))
        for each in groups
    ]
    figures = {"results.png": dots(rows, measure.title)}
    sizes = by_training_images(groups, measure)
    if any(len(places) > 2 for _, places in sizes):
        figures["images.png"] = lines(sizes, measure.title)
    if all(run["curve"] for run in runs):
        histories = [(group.label(), [run["curve"] for run in group.runs]) for group in groups]
        figures["curves.png"] = curves(
            histories, tuple(dict.fromkeys(("loss", measure.name))), validated_on(runs)
        )
    panels = {
        short_name(key): points
        for key in searched(groups)
        if (points := searched_points(groups, key, measure))
    }
    if panels:
        figures["settings.png"] = scatters(panels, f"validation {measure.short}")
    return figures


def searched(groups: Sequence[Group]) -> list[str]:
    """Return the settings that have at least five different values, all of them floats."""
    values: dict[str, set[Any]] = {}
    for group in groups:
        for key, value in group.settings.items():
            values.setdefault(key, set()).add(value if isinstance(value, Hashable) else None)
    return [
        key
        for key, found in values.items()
        if len(found) >= 5 and all(isinstance(value, float) for value in found)
    ]


def searched_points(
    groups: Sequence[Group], key: str, measure: Measure
) -> list[tuple[float, float]]:
    """Return a searched setting's value and the validation result of each run that has both."""
    return [
        (group.settings[key], measure.scale * value)
        for group in groups
        if key in group.settings
        for value in group.values("best_val", measure.name)
    ]


def by_training_images(groups: Sequence[Group], measure: Measure) -> list[Series]:
    """Return series of results by number of training images.

    Groups that differ only in data.train_subset form one series.
    """
    series: dict[str, dict[int, list[float]]] = {}
    for group in groups:
        places = series.setdefault(group.label("data.train_subset"), {})
        for images in group.values("images", "train")[:1]:  # the same for all runs in a group
            places.setdefault(int(images), []).extend(measure.points(group))
    return [(label, sorted(places.items())) for label, places in series.items()]
