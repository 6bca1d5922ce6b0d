"""`vit-eval ckpt=[A,B]`: several checkpoints on the same images, compared pair by pair."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase

import torch

from vit_train.engine.metrics import Answers, Classification, Paired
from vit_train.evaluation.evaluate import Evaluated, display_name, evaluate_loaded, load_for
from vit_train.evaluation.findings import Findings
from vit_train.evaluation.pages import comparison_page
from vit_train.evaluation.paired import Pair, adjusted, differences, draw_differences
from vit_train.figures.charts import save
from vit_train.figures.measures import result_dict
from vit_train.files.text import csv_text, file_name
from vit_train.files.writing import require_own_folder, write_json, write_text
from vit_train.results.summaries import settings_of
from vit_train.runs.paths import CHECKPOINTS
from vit_train.runs.settings import EvalConfig
from vit_train.runs.trained import Meta

logger = logging.getLogger(__name__)


def compare_checkpoints(config: EvalConfig) -> None:
    """Evaluate each checkpoint, and write how their answers differ into a folder of the first.

    Raise ValueError for tasks that do not classify, and if the images are not the same.
    """
    models = [load_for(config, each) for each in config.ckpt]
    require_comparable([trained.meta for trained in models])
    runs = [
        evaluate_loaded(trained, replace(config, out=config.out and f"{config.out}/{letter}"))
        for letter, trained in zip(ascii_uppercase, models, strict=False)
    ]
    require_same_images([run.found for run in runs])
    places = distinct([display_name(run.meta.path) for run in runs])
    folder = Path(config.out) if config.out else comparison_folder(runs, places)
    require_own_folder(folder)
    folder.mkdir(exist_ok=True)
    names = [f"{letter} ({place})" for letter, place in zip(ascii_uppercase, places, strict=False)]
    answers = [answers_of(run.found) for run in runs]
    places_of_pairs = list(combinations(range(len(runs)), 2))
    compared = [Paired.of(answers[i], answers[j]) for i, j in places_of_pairs]
    p_values = adjusted([paired.p_value for paired in compared])
    pairs, pictures, first = [], {}, runs[0].found
    for (i, j), paired, p in zip(places_of_pairs, compared, p_values, strict=True):
        pairs.append(Pair(names[i], names[j], paired, p))
        logger.info(pairs[-1].in_words)
        file = folder / f"{ascii_uppercase[i]}-{ascii_uppercase[j]}.png"
        both = (answers[i], answers[j]), (names[i], names[j])
        save(draw_differences(*both, first.images, first.classes), file)
        pictures[f"{names[i]} and {names[j]}"] = file.read_bytes()
    caveats = zip(names, (run.found.caveat for run in runs), strict=True)
    warnings = [f"{name}: {caveat}" for name, caveat in caveats if caveat]
    for line in warnings:
        logger.warning(line)
    write(folder, names, runs, pairs, pictures, warnings)


def write(
    folder: Path,
    names: Sequence[str],
    runs: Sequence[Evaluated],
    pairs: Sequence[Pair],
    pictures: dict[str, bytes],
    warnings: Sequence[str],
) -> None:
    """Write the numbers, the images on which not all say the same, and the page."""
    first = runs[0].found
    content = {
        "models": [
            {"name": name, **run.found.facts, "result": result_dict(run.found.result)}
            for name, run in zip(names, runs, strict=True)
        ],
        "pairs": [pair.as_dict() for pair in pairs],
    }
    write_json(folder / "results.json", content)
    letters = ascii_uppercase[: len(runs)]
    answers = [answers_of(run.found) for run in runs]
    table = differences(answers, letters, first.names, first.classes)
    write_text(folder / "differences.csv", csv_text(table))
    page = comparison_page(
        names, [run.found for run in runs], pairs, different_settings(runs), pictures, warnings
    )
    write_text(folder / "report.html", page)
    logger.info(f"written to {folder}/: results.json, differences.csv, report.html, pictures")


def answers_of(found: Findings) -> Answers:
    assert isinstance(found.result, Classification)
    return found.result.answers


def require_comparable(metas: Sequence[Meta]) -> None:
    """Raise ValueError, before anything is evaluated, if these models cannot be compared."""
    if not all(meta.task.needs_labels for meta in metas):
        raise ValueError("ckpt=[A,B] compares classifiers")
    paths = [meta.path.resolve() for meta in metas]
    for meta, path in zip(metas, paths, strict=True):
        if paths.count(path) > 1:
            raise ValueError(f"ckpt= names {meta.path} more than once")
    for meta in metas[1:]:
        if meta.classes != metas[0].classes:
            raise ValueError(f"{metas[0].path} and {meta.path} know different classes")


def require_same_images(found: Sequence[Findings]) -> None:
    first, *others = found
    labels = answers_of(first).labels.tolist()
    for other in others:
        same = (
            other.facts["data"] == first.facts["data"]
            and list(other.classes) == list(first.classes)
            and list(other.names) == list(first.names)
            and answers_of(other).labels.tolist() == labels
            and same_pixels(first, other)
        )
        if not same:
            raise ValueError(
                f"{first.facts['checkpoint']} and {other.facts['checkpoint']} were evaluated on "
                "different images: name the same ones, for example by data.name= and data.root="
            )


def same_pixels(first: Findings, other: Findings) -> bool:
    """Return whether these are the same images or, at different sizes, from the same place."""
    if first.images.shape == other.images.shape:
        return bool(torch.equal(first.images, other.images))
    return bool(first.facts["root"] == other.facts["root"])


def distinct(checkpoints: Sequence[str]) -> list[str]:
    """Return the checkpoints without the parts of their paths that all of them have."""
    parts = [
        [part for part in Path(each).with_suffix("").parts if part != CHECKPOINTS]
        for each in checkpoints
    ]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({each[end] for each in parts}) == 1:
            for each in parts:
                each.pop(end)
    return ["/".join(each) for each in parts]


def comparison_folder(runs: Sequence[Evaluated], places: Sequence[str]) -> Path:
    """Return a folder beside the first evaluation's, with a name of its own for these runs."""
    first = runs[0]
    paths = b"\n".join(bytes(run.meta.path.resolve()) for run in runs)
    mark = hashlib.sha256(paths).hexdigest()[:6]
    against = file_name("-".join(places[1:]).replace("/", "-"))
    return first.folder.with_name(f"{first.folder.name}-vs-{against}-{mark}")


def different_settings(runs: Sequence[Evaluated]) -> list[tuple[str, ...]]:
    """Return the settings of training that are not the same in all runs: key, value of each."""
    flat = [settings_of({"config": asdict(run.meta.config)}) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [(key, *(str(each.get(key, "")) for each in flat)) for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]
