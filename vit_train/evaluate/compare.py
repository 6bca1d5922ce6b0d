"""`vit-eval ckpt=[A,B]`: several checkpoints on the same images, compared pair by pair."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, combinations
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch

from vit_train.base.log import logger
from vit_train.base.reading import as_word
from vit_train.base.text import counted, printable, render
from vit_train.base.writing import write_json, write_text
from vit_train.config.tools import EvalConfig
from vit_train.data.dataset import ImageSet
from vit_train.evaluate.evaluate import Evaluated, default_folder, evaluate_loaded
from vit_train.evaluate.summaries import Json, settings_of
from vit_train.figures.charts import Figure, save
from vit_train.figures.images import captioned, draw_sheet, highest
from vit_train.figures.measures import result_dict
from vit_train.loop.metrics import Classification, Paired, Predictions
from vit_train.loop.tagging import Tagging, percentiles
from vit_train.trained.images import EvalImages, advantage, evaluated_images
from vit_train.trained.load import load_on
from vit_train.trained.model import Meta, Trained


def compare_checkpoints(config: EvalConfig) -> None:
    """Evaluate each checkpoint, and write a comparison of each pair into a folder.

    The default of `config.out` is a folder beside the first checkpoint's results. The results of
    each checkpoint go to the folder's subfolders A, B and so on. Models whose classes differ are
    compared on the last model's images of the classes that all models know. Raise ValueError if a
    model predicts neither classes nor tags, if no class is common, or if the models' images differ.
    """
    models = [
        load_on(each, config.device, config.weights, config.data.image_size) for each in config.ckpt
    ]
    metas = [trained.meta for trained in models]
    common = common_classes(metas, config)
    folder = Path(config.out or default_folder(config, *metas))
    models = with_shared_seen(models)
    owner = models[-1].meta
    found = evaluated_images(config.data, config.split, owner) if common else None
    if found and not set(found[0].images.label_names(owner.classes)) & set(common):
        raise ValueError(
            f"none of the {counted(len(found[0].images), 'test image')} that no model was trained "
            "on is of a class that all models know: add test images of these classes"
        )
    runs = [
        evaluate_loaded(
            trained,
            replace(config, out=str(folder / letter)),
            found and (of_known_classes(found[0], owner, trained.meta), found[1]),
        )
        for letter, trained in zip(ascii_uppercase, models, strict=False)
    ]
    if common:
        classes = list(dict.fromkeys(chain(common, *(meta.classes for meta in metas))))
        runs = [on_common_classes(run, classes, len(common)) for run in runs]
    require_same_images(runs)
    names = [f"{ascii_uppercase[place]} ({each})" for place, each in enumerate(config.ckpt)]
    write_comparison(folder, dict(zip(names, runs, strict=True)), common)


def write_comparison(folder: Path, runs: Mapping[str, Evaluated], common: Sequence[str]) -> None:
    """Write results.json, report.html and, for classes, a picture of each pair of models.

    `common` are the classes that all models know, or empty if their classes are the same.
    """
    first, *_ = runs.values()
    has_tags = isinstance(first.result, Tagging)
    pairs = compare({name: run.result for name, run in runs.items()})
    verdicts = [verdict(pair) for pair in pairs]
    logger.info("\n".join(verdicts))
    models = [{"name": name, **run.content} for name, run in runs.items()]
    write_json(
        folder / "results.json", {"models": models, "pairs": pairs, "common_classes": common}
    )
    pictures = {}
    for one, two in () if has_tags else combinations(runs, 2):
        found = {name: runs[name].result.predictions for name in (one, two)}
        if (found[one].correct == found[two].correct).all():
            continue
        figure = draw_differences(found, first.images, first.meta.classes)
        pictures[f"{one} and {two}"] = save(figure, folder / f"{one[0]}-{two[0]}.png")
    kind, share = ("per_tag", "average_precision") if has_tags else ("per_class", "recall")
    by_class = class_rows_of([each[kind] for each in models], share)
    page = render(
        "evaluate",
        "comparison.html",
        models=models,
        common=[name for name in common if name in dict(by_class)],
        verdicts=verdicts,
        settings=different_settings([run.meta for run in runs.values()]),
        by_class=by_class,
        share=share,
        pictures=pictures,
    )
    write_text(folder / "report.html", page)
    logger.info(
        f"written to {folder}/: report.html, results.json, pictures; A, B …: each model's files"
    )


def class_rows_of(models: Sequence[Sequence[Json]], share: str) -> list[tuple[str, list[Json]]]:
    """Return, for each class that has images, its name and each model's result.

    The result of a model that does not know the class is {}. For two models, the classes that
    only one knows come first, then those whose measure `share` differs most.
    """
    by_name = [{row["name"]: row for row in rows if row["support"]} for rows in models]
    rows = [
        (name, [each.get(name, {}) for each in by_name]) for name in dict.fromkeys(chain(*by_name))
    ]
    if len(models) == 2:
        rows.sort(key=lambda row: -abs(row[1][0][share] - row[1][1][share]) if all(row[1]) else -2)
    return rows


def with_shared_seen(models: Sequence[Trained]) -> list[Trained]:
    """Mark the images that any of the models has seen as seen by all of them.

    These images are then left out of the comparison. If the models' image sizes differ, or if it is
    not known which images any of them has seen, return the models unchanged.
    """
    shapes = {trained.meta.image_shape for trained in models}
    known = [each.meta.seen for each in models if each.meta.seen is not None]
    if len(shapes) > 1 or not known:
        return list(models)
    seen = torch.cat(known)
    return [
        trained._replace(meta=replace(trained.meta, seen=seen, seen_before=seen))
        for trained in models
    ]


def compare(results: Mapping[str, Any]) -> list[Json]:
    """Return the statistics of each pair of models, given each model's results by name."""
    pairs: list[Json] = [
        {"first": first, "second": second} | paired(one, other)
        for (first, one), (second, other) in combinations(results.items(), 2)
    ]
    tested = [pair for pair in pairs if "mcnemar_p" in pair]
    adjusted_ps = adjusted([pair["mcnemar_p"] for pair in tested])
    for pair, p in zip(tested, adjusted_ps, strict=True):
        pair["mcnemar_p_adjusted"] = p
    return pairs


def paired(one: Any, other: Any) -> Json:
    """Return the difference of two models' results (second − first), with its 95 % interval.

    For tags, it is the difference in mAP, with the interval of the differences in bootstrap samples
    of the images.
    """
    if isinstance(one, Tagging):
        sampled = other.predictions.sampled_maps - one.predictions.sampled_maps
        interval = list(percentiles(sampled))
        return {"images": one.count, "difference": other.map - one.map, "interval_95": interval}
    found = Paired.of(one.predictions.correct, other.predictions.correct)
    return {
        **asdict(found),
        "difference": found.difference,
        "interval_95": list(found.interval),
        "mcnemar_p": found.p_value,
    }


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return the p-values, adjusted for the number of tests (Holm 1979)."""
    order = np.argsort(p_values)
    steps = np.sort(p_values) * np.arange(len(p_values), 0, -1)
    return list(np.maximum.accumulate(steps.clip(max=1))[np.argsort(order)].tolist())


# The verdict on a difference, without and with significance.
VERDICTS = "which may be due to chance", "a significant difference"


def verdict(pair: Json) -> str:
    """Describe in words how two models differ, and whether the difference is significant."""
    low, high = (100 * end for end in pair["interval_95"])
    points = (
        f"From {pair['first']} to {pair['second']}, "
        f"{'accuracy' if 'mcnemar_p' in pair else 'mAP'} changes by "
        f"{100 * pair['difference']:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}"
    )
    if "mcnemar_p" not in pair:  # tags
        return f"{points}, by bootstrap over the images), {VERDICTS[low > 0 or high < 0]}."
    p = pair["mcnemar_p"]
    p_adjusted = pair["mcnemar_p_adjusted"]
    more = "" if p_adjusted == p else f", {in_figures(p_adjusted)} adjusted for all pairs"
    return (
        f"{points}), {VERDICTS[p_adjusted < 0.05]}. Only {pair['first']} is right on "
        f"{counted(pair['only_first'], 'image')}, only {pair['second']} on "
        f"{pair['only_second']:,} (McNemar's exact test: {in_figures(p)}{more})."
    )


def in_figures(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def draw_differences(
    found: dict[str, Predictions], images: ImageSet, classes: Sequence[str]
) -> Figure:
    """Draw the images that only one of two models classifies correctly, in a section per model.

    The images with the other model's highest losses come first. Below each image are both
    predictions, marked by the first letters of the models' names, and the name of the image's file,
    if it has one.
    """
    answers = {
        name[0]: (each.predicted, np.exp(each.log_probabilities)) for name, each in found.items()
    }
    sections = {}
    for (name, own), other in zip(found.items(), reversed(found.values()), strict=True):
        chosen = highest(other.losses, own.correct & ~other.correct)
        title = f"Only {printable(name)} is right"
        sections[title] = captioned(images, answers, classes, chosen)
    return draw_sheet(sections)


def common_classes(metas: Sequence[Meta], config: EvalConfig) -> list[str]:
    """Return the classes that all models know, or [] if all know the same classes or tags.

    Raise ValueError unless the models are comparable: they must predict classes or tags and, if
    these differ, have a class in common, read images alike and be tested on test images.
    """
    if not all(meta.task.needs_labels for meta in metas):
        raise ValueError("ckpt=[A,B] compares only models that predict classes or tags")
    last = metas[-1]
    if all((m.classes, m.task.one_class) == (last.classes, last.task.one_class) for m in metas):
        return []
    known = set.intersection(*(set(meta.classes) for meta in metas))
    if not known or not all(meta.task.one_class for meta in metas):
        raise ValueError(
            "cannot compare these models: their classes differ and none is common, or their tags "
            "differ"
        )
    readings = {
        (m.image_shape, str(getattr(m.config.data, "image_size", "")), m.fit, m.white_level)
        for m in metas
    }
    if config.split != "test" or config.probe or len(readings) > 1:
        raise ValueError(
            "models of different classes are compared only on test images (split=test), without "
            "probe=true, and only if they read images alike (data.image_size, data.fit)"
        )
    return [name for name in last.classes if name in known]


def of_known_classes(found: EvalImages, owner: Meta, meta: Meta) -> EvalImages:
    """Return the `owner`'s test images of the classes that the model `meta` knows, as its labels.

    Only the owner keeps the validation images, because the other model may have trained on them.
    """
    if meta is owner:
        return found
    label_of = {name: label for label, name in enumerate(meta.classes)}
    labels = torch.tensor(
        [label_of.get(name, -1) for name in found.images.label_names(owner.classes)]
    )
    gain = advantage("test", meta)
    owners = advantage("test", owner)
    return EvalImages(
        replace(found.images, labels=labels).subset(labels >= 0),
        caveat=" ".join(filter(None, (found.caveat.replace(owners, "").strip(), gain))),
        biased=bool(gain) or (found.biased and not owners),
    )


def on_common_classes(run: Evaluated, classes: list[str], common: int) -> Evaluated:
    """Return a run with its result for the images of the first `common` of all models' `classes`.

    The model still chooses among all of its own classes.
    """
    own = np.array([classes.index(name) for name in run.meta.classes])
    labels = own[run.result.predictions.labels]
    kept = labels < common
    logits = np.full((int(kept.sum()), len(classes)), -np.inf)
    logits[:, own] = run.result.predictions.logits[kept]
    result = Classification.of(Predictions(labels[kept], logits))
    values = result_dict(result)
    for key in ("per_class_correct", "per_class_count"):  # in the order of content["classes"]
        values[key] = [values[key][place] for place in own]
    return replace(
        run,
        meta=replace(run.meta, classes=classes),
        images=replace(run.images, labels=torch.from_numpy(labels)).subset(torch.from_numpy(kept)),
        result=result,
        content=run.content | {"result": values},
    )


def require_same_images(runs: Sequence[Evaluated]) -> None:
    """Raise ValueError if the models were evaluated on different images.

    Images of different sizes count as the same if their names, their labels and the settings data=
    and data.root= are the same.
    """
    first = runs[0]
    one = first.images
    for run in runs[1:]:
        other = run.images
        alike = (
            torch.equal(one.images[:], other.images[:])
            if one.images.shape == other.images.shape
            else first.content["root"] == run.content["root"]
        )
        if not (
            alike
            and first.content["data"] == run.content["data"]
            and np.array_equal(one.all_names, other.all_names)
            and torch.equal(one.labels, other.labels)
        ):
            raise ValueError(
                f"{first.meta.path} and {run.meta.path} were evaluated on different images: "
                "each run has its own validation and training images, so use split=test, or name "
                "the same images with data.name= and data.root="
            )


def different_settings(metas: Sequence[Meta]) -> list[list[str]]:
    """Return a row for each training setting in which the runs differ: its key and the values."""
    flat = [settings_of({"config": asdict(meta.config)}) for meta in metas]
    rows = [
        [key, *(as_word(each.get(key, "")) for each in flat)] for key in dict.fromkeys(chain(*flat))
    ]
    return [row for row in rows if len(set(row[1:])) > 1]
