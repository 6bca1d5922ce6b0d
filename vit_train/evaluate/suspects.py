"""`vit-suspects`: find wrong labels with models that did not train on them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import torch

from vit_train.base.log import logger
from vit_train.base.text import counted, csv_text, printable
from vit_train.base.writing import write_text
from vit_train.config.data import DataConfig, FolderConfig
from vit_train.config.tools import SuspectsConfig
from vit_train.data.dataset import ImageSet, load_dataset
from vit_train.data.files import bulleted
from vit_train.data.splits import make_splits
from vit_train.evaluate.measuring import measure
from vit_train.evaluate.pages import write_workbench
from vit_train.evaluate.summaries import read_summaries
from vit_train.figures.charts import save
from vit_train.figures.images import captioned, draw_sheet, highest
from vit_train.loop.metrics import Floats, Integers, of_label
from vit_train.trained.folder import CHECKPOINTS, LAST
from vit_train.trained.images import applied, configured
from vit_train.trained.load import load_on
from vit_train.trained.model import Trained

# The number of images in the picture.
MOST_DRAWN = 48
# The share of suspects that were right in the test of docs/data.md.
ABOUT_SUSPECTS = (
    "Some of these labels are correct: in a test with CIFAR-10 and 5 % of the labels changed, 84 "
    "of 149 suspects had wrong labels, and 45 of the first 50"
)


def find_suspects(config: SuspectsConfig) -> None:
    """Rank the images whose labels may be wrong; write their table, picture and page."""
    folder = Path(config.out or Path(config.runs, "suspects"))
    finished = [Path(summary["file"]).parent for summary in read_summaries([Path(config.runs)])]
    # The last epoch's weights, because the labels in question chose the best epoch.
    runs = [load_on(run / CHECKPOINTS / LAST, config.device) for run in finished]
    # Decisions of today only hide photos of the page: the runs were trained without them.
    meta = runs[0].meta
    data = configured(replace(config.data, decisions=applied(meta)), meta)
    images, chances = out_of_fold(runs, data)
    own = [run.meta.config.data for run in runs]
    if lacking := {*range(own[0].cv_folds or 0)} - {data.cv_fold for data in own}:
        logger.warning(
            f"folds without a finished run, whose images are not checked: "
            f"{', '.join(map(str, sorted(lacking)))} of {own[0].cv_folds}"
        )
    labels = images.labels.numpy()
    order, suggested = rank(labels, chances)
    classes = [printable(name) for name in meta.classes]
    rows = [("image", "label", "suggested", "probability_label", "probability_suggested")]
    for index in order:
        pair = labels[index], suggested[index]
        shares = (f"{chances[index, each]:.6f}" for each in pair)
        name = printable(str(images.all_names[index]))
        rows.append((name, *(classes[each] for each in pair), *shares))
    answers = {"label": (labels, chances), "model": (suggested, chances)}
    shown = captioned(images, answers, classes, order[:MOST_DRAWN])
    title = "Labels to check, the most suspicious first"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "suspects.csv", csv_text(rows))
    save(draw_sheet({title: shown}), folder / "suspects.png")
    lines = [f"{name}: labeled {label}, perhaps {other}" for name, label, other, *_ in rows[1:]]
    found = f"{counted(len(lines), 'suspect')} among {counted(len(images), 'image')}"
    logger.info(
        f"{found}:{bulleted(lines)}\n{ABOUT_SUSPECTS}\n"
        f"written to {folder}/: suspects.csv, suspects.png"
    )
    if isinstance(data, FolderConfig):
        cases = [
            [(str(name), label, f"perhaps {other}: {float(chance):.0%}", other)]
            for name, (_, label, other, _, chance) in zip(
                images.all_names[order], rows[1:], strict=True
            )
        ]
        data = replace(data, decisions=config.data.decisions or data.decisions)
        write_workbench(
            folder / "workbench.html", {title: cases}, classes, data, f"{ABOUT_SUSPECTS}."
        )


def out_of_fold(runs: Sequence[Trained], config: DataConfig) -> tuple[ImageSet, Floats]:
    """Return all validation images of the runs, and their mean class probabilities (N,K).

    Each image is classified only by runs that did not train on it. A complete cross-validation
    covers all images except the test images. Raise ValueError if a run has no validation images or
    is no classifier, or if the images are not those of the run.
    """
    data = load_dataset(config)
    parts = []
    found = []
    for run in runs:
        meta = run.meta
        if not meta.task.one_class or meta.config.data.val != "split":
            raise ValueError(
                f"{meta.path} is not a classifier with validation images of its own: vit-suspects "
                "needs runs with data.cv_folds="
            )
        if meta.fingerprint != data.fingerprint:
            raise ValueError(
                f"the images are not those that {meta.path} was trained on: set data.root= to the "
                "folder of those images, or train new runs"
            )
        images = make_splits(data, meta.config.data).named("val")
        result = measure(run, images)
        logger.info(
            f"{meta.path}: {result.acc:.2%} of {counted(len(images), 'image')} classified as "
            "labeled"
        )
        parts.append(images)
        found.append(np.exp(result.predictions.log_probabilities))
    every = reduce(ImageSet.with_others, parts)
    _, first, place = np.unique(every.all_names, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), len(data.classes)))
    np.add.at(sums, place, np.concatenate(found))
    return every.subset(torch.from_numpy(first)), sums / np.bincount(place)[:, None]


def rank(labels: Integers, chances: Floats) -> tuple[list[int], Integers]:
    """Return the indices of suspects, the most suspicious first, and a better label per image (N,).

    `chances` (N,K) are out-of-fold probabilities. Confident learning (Northcutt, Jiang & Chuang
    2021): a class is confident for an image if its probability reaches the class's mean probability
    over the images labeled as this class. The most probable confident class is the better label. An
    image is a suspect if the better label is more probable than the image's own; suspects are
    sorted by the difference of the two probabilities.
    """
    own = of_label(chances, labels)
    classes = chances.shape[1]
    counts = np.bincount(labels, minlength=classes)
    means = np.bincount(labels, own, classes) / np.maximum(counts, 1)
    confident = np.where((chances >= means) & (counts > 0), chances, 0)
    margin = confident.max(axis=1) - own
    return highest(margin, margin > 0, len(margin)), confident.argmax(axis=1)
