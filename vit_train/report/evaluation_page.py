"""report.html of an evaluation, for readers who know no more than the page."""

from statistics import mean
from typing import Any

import numpy as np

from vit_train.engine.metrics import Classification, Evaluation, is_uneven
from vit_train.report.calibration import calibration_error
from vit_train.report.evaluation import Findings, mean_accuracy
from vit_train.report.html import page, paragraph, picture, section, table, text
from vit_train.report.per_class import averages
from vit_train.text import counted

# Pairs of classes that are named as confused.
PAIRS = 5
# Fewer images say little.
FEW = 100
# Points of the accuracy's interval within which a verdict on calibration is possible.
WIDEST = 10


def report(found: Findings, run: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """Return the page; `run` is the summary of the run, `pictures` are PNG files by name."""
    result = found.result
    parts = [headline(found)]
    if isinstance(result, Classification):
        parts += [
            section("Which classes are confused", *confused(found, pictures)),
            section("Can its confidence be trusted?", *trust(found, pictures)),
        ]
    if found.robustness is not None:
        parts.append(section("What it makes of bad images", *robustness(found, pictures)))
    if found.focus is not None:
        looks = [picture(pictures[name], LOOKS[name]) for name in LOOKS if name in pictures]
        parts.append(section("Where it looks", paragraph(found.focus.in_words), *looks))
    elif "pictures" in pictures:
        caption = "Some of the images, what the model was given of them, and what it made of it"
        title = "What it makes of images"
        parts.append(section(title, picture(pictures["pictures"], caption)))
    parts += [
        section(title, picture(pictures[name], caption))
        for name, (title, caption) in SECTIONS.items()
        if name in pictures
    ]
    parts.append(section("How to get the same", *origin(found, run)))
    title = f"{found.facts['title']}, {found.facts['split']} images"
    return page(title, parts)


# Sections of one picture: its title and the picture's caption.
SECTIONS = {
    "positions": (
        "What it knows about positions",
        "How similar the embedding of each position is to those of all others",
    ),
    "mistakes": (
        "What it gets most wrong, and what it is least sure of",
        "Images with their label and their predicted class",
    ),
    "curves": ("How it learned", "Training and validation, over the images seen"),
}
LOOKS = {
    "maps": "Beside each image, what raised the score of the predicted class: bright patches",
    "pictures": "Beside each image, what the class token attends to in the last layer: the mean of "
    "the heads, and each head",
}


def headline(found: Findings) -> str:
    result, facts = found.result, found.facts
    lead = (
        f"What a trained model, {text(facts['checkpoint'])}, predicts for "
        f"{counted(result.count, 'image')} of {text(facts['title'])}, {text(facts['image_size'])} "
        f"by {text(facts['image_size'])} pixels."
    )
    return f'<p class="lead">{lead}</p><p class="big">{figure_of(result)}</p>{second(found)}'


def figure_of(result: Evaluation) -> str:
    if not isinstance(result, Classification):
        return f"{result.loss:.4f} <small>mean loss</small>"
    low, high = result.interval
    return (
        f"{100 * result.acc:.2f} % <small>correct, 95 % interval {100 * low:.2f} to "
        f"{100 * high:.2f}</small>"
    )


def second(found: Findings) -> str:
    result = found.result
    if not isinstance(result, Classification):
        return ""
    words = f"Always predicting the most frequent class would be right in {chance(result):.1f} %."
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
    return paragraph(words)


def chance(result: Classification) -> float:
    """Return the accuracy, in percent, of always predicting the most frequent class."""
    return 100 * max(result.per_class_count) / result.count


def confused(found: Findings, pictures: dict[str, bytes]) -> list[str]:
    """Return the most frequent confusions in words, the matrix, and each class's numbers."""
    assert isinstance(found.result, Classification)
    answers = found.result.answers
    wrong = answers.predicted != answers.labels
    both = np.stack((answers.labels[wrong], answers.predicted[wrong]))
    confusions, counts = np.unique(both, axis=1, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:PAIRS]
    support = found.result.per_class_count
    pairs = [
        f"<li>{text(found.classes[i])} mistaken for {text(found.classes[j])}: "
        f"{counted(count, 'image')}, {100 * count / support[i]:.1f} % of "
        f"{text(found.classes[i])}</li>"
        for i, j, count in zip(*confusions[:, most], counts[most], strict=True)
    ]
    rows = [
        (each.name, f"{each.precision:.3f}", f"{each.recall:.3f}", f"{each.f1:.3f}", each.support)
        for each in (*found.class_reports, *averages(found.class_reports))
    ]
    parts = [paragraph("Most often:") + f"<ul>{''.join(pairs)}</ul>" if pairs else ""]
    if "confusion" in pictures:
        parts.append(picture(pictures["confusion"], "Share of each true class by predicted class"))
    parts.append(table(("class", "precision", "recall", "F1", "images"), rows))
    parts.append(
        paragraph(
            "Precision: of the images predicted to be of a class, the share that are. Recall: of "
            "the images of a class, the share predicted to be. F1 is their harmonic mean."
        )
    )
    return parts


def trust(found: Findings, pictures: dict[str, bytes]) -> list[str]:
    """Return in words how confidence and accuracy agree, and the diagrams."""
    assert isinstance(found.result, Classification)
    answers = found.result.answers
    sure, right = 100 * answers.confidence.mean(), 100 * found.result.acc
    low, high = (100 * end for end in found.result.interval)
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
    if found.mended is not None:
        mended, loss, less = found.mended, answers.losses.mean(), found.mended.losses.mean()
        words += (
            f" Divided by {found.temperature:.2f}, the temperature with the least loss on "
            f"validation images, its logits give probabilities with a loss of {less:.4f} instead "
            f"of {loss:.4f}, and a calibration error of {100 * calibration_error(mended):.1f} "
            f"instead of {error:.1f} %."
        )
    captions = {
        "calibration": "Accuracy of the predictions with each confidence; on the dashed line the "
        "two are equal",
        "coverage": "Accuracy when the model may abstain on its least certain images",
    }
    shown = (picture(pictures[name], words) for name, words in captions.items() if name in pictures)
    return [paragraph(words), *shown]


def robustness(found: Findings, pictures: dict[str, bytes]) -> list[str]:
    assert found.robustness is not None and isinstance(found.result, Classification)
    worst = min(found.robustness, key=lambda name: mean(found.robustness[name]))  # type: ignore[index]
    words = (
        f"Of images corrupted in {len(found.robustness)} ways it is right in "
        f"{100 * mean_accuracy(found.robustness):.1f} % on average, of clean ones in "
        f"{100 * found.result.acc:.1f} %. It suffers most from {text(worst)}."
    )
    caption = "Accuracy by corruption and severity"
    return [paragraph(words), picture(pictures["robustness"], caption)]


def origin(found: Findings, run: dict[str, Any]) -> list[str]:
    """Return the command, what it was trained on, and what the figures do not say."""
    facts = found.facts
    config, machine, images = (part(run, name) for name in ("config", "machine", "images"))
    rows = {
        "trained with": run.get("command"),
        "commit": run.get("commit"),
        "training images": images.get("train"),
        "images seen": facts.get("images_seen"),
        "seed": config.get("seed"),
        "parameters": run.get("parameters"),
        "minutes": minutes(run.get("seconds")),
        "machine": machine.get("gpu") or machine.get("cpu"),
        "weights": f"{facts['weights']}, epoch {facts['epoch']}",
        "evaluated with": facts.get("command"),
        "evaluated": f"{facts['date']}, {facts.get('images_per_s', '?')} images a second",
    }
    known = [(name, value) for name, value in rows.items() if value not in (None, "")]
    limits = (
        "One run with one seed: another seed gives another figure. The interval covers the choice "
        "of test images, not that of the seed, nor images of another kind than these."
    )
    return [table((), known, numbers=False), paragraph(limits)]


def part(summary: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a summary that somebody else may have written."""
    found = summary.get(name)
    return found if isinstance(found, dict) else {}


def minutes(seconds: object) -> str | None:
    return f"{seconds / 60:.1f}" if isinstance(seconds, int | float) else None
