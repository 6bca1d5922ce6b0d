"""`vit-eval ckpt=[A,B]`: several checkpoints on the same images, compared pair by pair."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, combinations
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch

from vit_train.base.log import logger
from vit_train.base.text import counted, csv_text, printable, render
from vit_train.base.writing import output_folder, write_json, write_text
from vit_train.config.tools import EvalConfig
from vit_train.data.dataset import ImageSet
from vit_train.evaluate.evaluate import (
    Evaluated,
    default_folder,
    display_name,
    draw_curves,
    evaluate_loaded,
)
from vit_train.evaluate.summaries import (
    distinguishing_keys,
    settings_of,
    short_name,
    short_value,
)
from vit_train.figures.charts import Figure, save
from vit_train.figures.images import RIGHT, WRONG, Labeled, class_line, draw_sheet, highest
from vit_train.loop.metrics import Floats, Paired, Predictions
from vit_train.loop.tagging import Tagging, percentiles
from vit_train.trained.load import load_on
from vit_train.trained.model import Meta, Trained


def compare_checkpoints(config: EvalConfig) -> None:
    """Evaluate each checkpoint, and write a comparison of each pair into a folder.

    The default of `config.out` is a folder beside the first checkpoint's results. The results of
    each checkpoint go to the folder's subfolders A, B and so on. Raise ValueError if a model
    predicts neither classes nor tags, or if the models' classes or images differ.
    """
    models = [
        load_on(each, config.device, config.weights, config.data.image_size) for each in config.ckpt
    ]
    metas = [trained.meta for trained in models]
    require_comparable(metas)
    folder = output_folder(config.out, default_folder(config, *metas))
    runs = [
        evaluate_loaded(trained, replace(config, out=str(output_folder(None, folder / letter))))
        for letter, trained in zip(ascii_uppercase, with_shared_seen(models), strict=False)
    ]
    require_same_images(runs)
    settings, labels = different_settings(runs)
    marks = labels if settings else [display_name(meta.path) for meta in metas]
    names = [f"{letter} ({mark})" for letter, mark in zip(ascii_uppercase, marks, strict=False)]
    named = dict(zip(names, runs, strict=True))
    page = write_pairs(folder, named) | {"settings": settings}
    if all(run.run.get("curve") for run in runs):
        page["curves"] = save(draw_curves(named), folder / "curves.png")
    write_text(folder / "report.html", render("evaluate", "comparison.html", **page))
    more = ", differences.csv, pictures" if page["pictures"] else ""
    logger.info(f"written to {folder}/: report.html, results.json{more}")


def write_pairs(folder: Path, runs: dict[str, Evaluated]) -> dict[str, Any]:
    """Write results.json and, for classes, the differences; return the content of report.html."""
    first, *_ = runs.values()
    images, classes = first.images, first.meta.classes
    results = {name: run.result for name, run in runs.items()}
    pictures: dict[str, bytes] = {}
    if isinstance(first.result, Tagging):
        pairs = compared_tags(results)
        shares = [each.predictions.average_precisions for each in results.values()]
    else:
        found = {name: each.predictions for name, each in results.items()}
        pairs = compared(found)
        counts = np.array(first.result.per_class_count)
        total = np.where(counts, counts, np.nan)
        shares = [each.per_class_correct / total for each in results.values()]
        pictures = write_differences(folder, found, images, classes)
    verdicts = [in_words(pair) for pair in pairs]
    logger.info("\n".join(verdicts))
    models = [{"name": name, **run.content} for name, run in runs.items()]
    write_json(folder / "results.json", {"models": models, "pairs": pairs})
    verdicts += [f"{each['name']}: {each['caveat']}" for each in models if each["caveat"]]
    return {
        "title": f"{models[0]['title']}, {models[0]['split']} images: a comparison",
        "models": models,
        "verdicts": verdicts,
        "by_class": by_class(np.array(shares), classes),
        "pictures": pictures,
        "curves": None,
    }


def with_shared_seen(models: Sequence[Trained]) -> list[Trained]:
    """Return the models, with images that any of them has seen marked as seen by all of them.

    These images are left out of the comparison. If the models' image sizes differ, or if it is not
    known which images a model has seen, return the models unchanged.
    """
    shapes = {trained.meta.image_shape for trained in models}
    known = [each.meta.seen for each in models if each.meta.seen is not None]
    if len(shapes) > 1 or len(known) < len(models):
        return list(models)
    seen = torch.cat(known)
    return [
        trained._replace(meta=replace(trained.meta, seen=seen, seen_before=seen))
        for trained in models
    ]


def by_class(shares: Floats, classes: Sequence[str]) -> list[list[str]]:
    """Return a row for each class or tag: its name, and each model's share in percent.

    `shares` (models,K) holds accuracies or average precisions, and NaN for a class without images,
    which gets no row. For two models, each row also has the first model's share minus the second's.
    The rows are then sorted by the absolute difference, largest first.
    """
    signs, numbers = [".2f"] * len(shares) + ["+.2f"], np.flatnonzero(~np.isnan(shares[0])).tolist()
    if len(shares) == 2:
        shares = np.vstack((shares, shares[0] - shares[1]))
        numbers.sort(key=lambda number: -abs(shares[2, number]))
    return [
        [printable(classes[number]), *map(format, 100 * shares[:, number], signs)]
        for number in numbers
    ]


def compared(found: dict[str, Predictions]) -> list[dict[str, Any]]:
    """Return the statistics of each pair of models, given each model's predictions by name."""
    names = list(combinations(found, 2))
    paired = [Paired.of(found[first], found[second]) for first, second in names]
    p_values = adjusted([each.p_value for each in paired])
    return [
        {
            "first": first,
            "second": second,
            **asdict(each),
            "difference": each.difference,
            "interval_95": list(each.interval),
            "mcnemar_p": each.p_value,
            "mcnemar_p_adjusted": p,
        }
        for (first, second), each, p in zip(names, paired, p_values, strict=True)
    ]


def compared_tags(found: dict[str, Tagging]) -> list[dict[str, Any]]:
    """Return the difference in mAP of each pair of models, given each model's results by name.

    Its 95 % interval is that of the differences in bootstrap samples of the images (paired).
    """
    return [
        {
            "first": first,
            "second": second,
            "images": one.count,
            "difference": one.map - other.map,
            "interval_95": list(
                percentiles(one.predictions.sampled_maps - other.predictions.sampled_maps)
            ),
        }
        for (first, one), (second, other) in combinations(found.items(), 2)
    ]


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return the p-values, adjusted for the number of tests (Holm 1979)."""
    order = np.argsort(p_values)
    steps = np.sort(p_values) * np.arange(len(p_values), 0, -1)
    return list(map(float, np.maximum.accumulate(steps.clip(max=1))[np.argsort(order)]))


# For a difference that is not significant, and for one that is.
VERDICTS = "The difference may be due to chance.", "The difference is significant."


def in_words(pair: dict[str, Any]) -> str:
    """Describe in words how two models differ, and whether the difference is significant."""
    low, high = (100 * end for end in pair["interval_95"])
    points = f"{100 * pair['difference']:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}"
    if "mcnemar_p" not in pair:  # tags
        return (
            f"The mAP of {pair['first']} minus that of {pair['second']} is {points}, by bootstrap "
            f"over {counted(pair['images'], 'image')}). {VERDICTS[low > 0 or high < 0]}"
        )
    p, p_adjusted = pair["mcnemar_p"], pair["mcnemar_p_adjusted"]
    chance = in_figures(p)
    if p_adjusted != p:
        chance += f", {in_figures(p_adjusted)} adjusted for all pairs"
    return (
        f"Only {pair['first']} is right on {counted(pair['only_first'], 'image')}, only "
        f"{pair['second']} on {pair['only_second']:,}: a difference of {points}; "
        f"McNemar's exact test: {chance}). {VERDICTS[p_adjusted < 0.05]}"
    )


def in_figures(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def write_differences(
    folder: Path, found: dict[str, Predictions], images: ImageSet, classes: Sequence[str]
) -> dict[str, bytes]:
    """Write differences.csv, and a picture of each pair of models; return the pictures."""
    pictures = {}
    for one, two in combinations(found, 2):
        pair = {one: found[one], two: found[two]}
        figure = draw_differences(pair, images.images, classes)
        pictures[f"{one} and {two}"] = save(figure, folder / f"{one[0]}-{two[0]}.png")
    letters, names = [name[0] for name in found], images.all_names.tolist()
    table = differences(list(found.values()), letters, names, classes)
    write_text(folder / "differences.csv", csv_text(table))
    return pictures


def draw_differences(
    found: dict[str, Predictions], images: torch.Tensor, classes: Sequence[str]
) -> Figure:
    """Draw the uint8 images (N,3,H,W) that only one of two models classifies correctly.

    Each model has a section of the images that only it classifies correctly, sorted by the other
    model's loss, highest first. Below each image are both predictions, marked by the first letters
    of the models' names.
    """

    def labeled(index: int) -> Labeled:
        lines = (
            class_line(
                name[0],
                classes[each.predicted[index]],
                each.confidence[index],
                RIGHT if each.correct[index] else WRONG,
            )
            for name, each in found.items()
        )
        return images[index], list(lines)

    both = zip(found.items(), reversed(found.values()), strict=True)
    return draw_sheet(
        {
            f"Only {printable(name)} is right": [
                labeled(index) for index in highest(other.losses, own.correct & ~other.correct)
            ]
            for (name, own), other in both
        }
    )


def differences(
    found: Sequence[Predictions],
    letters: Sequence[str],
    names: Sequence[object],
    classes: Sequence[str],
) -> Iterator[list[str]]:
    """Yield the rows of differences.csv: a header, then each image with different predictions."""
    named = [printable(name) for name in classes]
    columns = ((f"predicted_{letter}", f"probability_{letter}") for letter in letters)
    yield ["image", "true", *chain(*columns)]
    predicted = np.stack([predictions.predicted for predictions in found])  # (models, N)
    for index in np.flatnonzero((predicted != predicted[0]).any(axis=0)).tolist():
        cells = ((named[each.predicted[index]], f"{each.confidence[index]:.6f}") for each in found)
        yield [printable(str(names[index])), named[found[0].labels[index]], *chain(*cells)]


def require_comparable(metas: Sequence[Meta]) -> None:
    """Raise ValueError unless all models predict the same classes, or all the same tags."""
    if not all(meta.task.needs_labels for meta in metas):
        raise ValueError("ckpt=[A,B] compares only models that predict classes or tags")
    first = metas[0]
    for meta in metas[1:]:
        if (meta.classes, meta.task.one_class) != (first.classes, first.task.one_class):
            raise ValueError(f"cannot compare {first.path} and {meta.path}: their classes differ")


def require_same_images(runs: Sequence[Evaluated]) -> None:
    """Raise ValueError if the models were evaluated on different images.

    Images of different sizes count as the same if their names, their labels and the settings data=
    and data.root= are the same.
    """
    first, *others = runs
    one = first.images
    for run in others:
        other = run.images
        keys = ("data",) if one.images.shape == other.images.shape else ("data", "root")
        if not (
            all(first.content[key] == run.content[key] for key in keys)
            and one.all_names.tolist() == other.all_names.tolist()
            and torch.equal(one.labels, other.labels)
            and (len(keys) > 1 or torch.equal(one.images[:], other.images[:]))
        ):
            raise ValueError(
                f"{first.meta.path} and {run.meta.path} were evaluated on different images: "
                "choose the same images for all, for example with data.name= and data.root="
            )


def different_settings(runs: Sequence[Evaluated]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the training settings in which the runs differ, and a short label for each run.

    Each setting has a row: its key and each run's value. A label has only as many settings as
    distinguish the runs.
    """
    flat = [settings_of({"config": asdict(run.meta.config)}) for run in runs]
    keys = dict.fromkeys(chain(*flat))
    rows = [(key, *(str(each.get(key, "")) for each in flat)) for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    shown = distinguishing_keys(flat, [key for key, *_ in rows])
    return rows, [
        ", ".join(f"{short_name(key)}={short_value(each.get(key, ''))}" for key in shown)
        for each in flat
    ]
