"""report.html, and two classifiers compared on the same images."""

import io
import math
import re
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from scipy.stats import binomtest
from torchvision.transforms.functional import hflip

from vit_train.base.text import render
from vit_train.data.dataset import ImageSet
from vit_train.evaluate.compare import (
    adjusted,
    compare,
    draw_differences,
    require_same_images,
    verdict,
)
from vit_train.evaluate.evaluate import Evaluated
from vit_train.evaluate.measuring import (
    abstention,
    answered,
    averaged,
    calibration,
    measure,
    tag_measures,
)
from vit_train.evaluate.pages import evaluation_page, image_as_webp
from vit_train.evaluate.predict import tag_rows
from vit_train.figures.measures import class_reports, result_dict
from vit_train.loop.device import Precision
from vit_train.loop.metrics import Classification, Evaluation, Paired, Predictions, Z
from vit_train.loop.tagging import Tagging, TagPredictions
from vit_train.trained.load import load

NAMES = ["<b>cat</b>", "dog & co", '"><script>alert(1)</script>']
FACTS = {
    "checkpoint": "run/<x>.pt", "title": "pets", "split": "test", "image_size": 8, "weights": "raw",
    "epoch": 3, "images_seen": 90, "date": "2026-01-31", "selected_on": "val",
    "classes": NAMES, "caveat": "", "biased": False, "calibration_saved": True,
    "command": "vit-eval", "root": "photos", "white_level": None,
}  # fmt: skip
FOCUS = {
    "images": 256, "deleted": 0.1, "changed": 0.3,
    "changed_at_random": 0.08, "p_value": 0.01,
}  # fmt: skip
PNG = "data:image/png;base64,cG5n"  # b"png"


class Page(HTMLParser):
    """Collects tags and text; every tag that is opened must be closed."""

    VOID = ("meta", "img", "br", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)
        self.close()
        self.words = " ".join(self.words.split())
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def result_of(labels: np.ndarray, predicted: np.ndarray, sure: float = 3.0) -> Classification:
    return Classification.of(Predictions(labels, sure * np.eye(labels.max() + 1)[predicted]))


PREDICTED = np.array([0] * 6 + [1] * 4 + [1] * 10 + [2] * 9 + [0])
RESULT = result_of(np.arange(30) // 10, PREDICTED)


def html_of(
    result: Evaluation = RESULT,
    temperature: float | None = None,
    run: dict[str, Any] | None = None,
    pictures: dict[str, bytes] | None = None,
    **more: object,
) -> str:
    content = FACTS | {"result": result_dict(result)}
    if isinstance(result, Classification):
        predictions = result.predictions
        classes = [*NAMES, *map(str, range(3, predictions.classes))][: predictions.classes]
        content["classes"] = classes
        content["per_class"], content["averages"] = class_reports(predictions, classes)
        if temperature is not None:
            content["calibration"] = calibration(predictions, temperature)
    content |= more
    # Of one gray each, from black on.
    pixels = torch.arange(result.count).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).byte()
    names = np.array([f"<i>{number}</i>.png" for number in range(result.count)], dtype=object)
    images = ImageSet(pixels, torch.zeros(result.count), names=names)
    return evaluation_page(content, result, images, run or {}, pictures or {})


def words_of(*what: Any, **more: Any) -> str:
    return Page(html_of(*what, **more)).words


def test_no_text_is_markup_and_nothing_is_loaded() -> None:
    run = {
        "command": "vit-train <i>x</i>",
        "commit": "<svg onload=1>",
        "machine": {"cpu": "A&B\x1b[1m"},
    }
    pictures = {"coverage": b"png", "maps": b"png"}
    one = html_of(run=run, pictures=pictures, focus=FOCUS)
    (pair,) = compare(dict.fromkeys(NAMES[:2], RESULT))
    models = [FACTS | {"name": name} | {"result": result_dict(RESULT)} for name in NAMES[:2]]
    settings, pictures = [("seed", "0", NAMES[2])], dict.fromkeys(NAMES[1:], b"png")
    both = render(
        "evaluate",
        "comparison.html",
        models=models,
        verdicts=[verdict(pair), "<i>seen</i>"],
        settings=settings,
        common=NAMES[2:],
        by_class=[
            (NAMES[2], [{"recall": share, "support": 8} for share in (0.5, 0.25)]),
            (NAMES[0], [{}, {"recall": 0.75, "support": 4}]),
        ],
        share="recall",
        pictures=pictures,
    )
    for page in map(Page, (one, both)):
        tags = [tag for tag, _ in page.tags]
        assert not {"script", "b", "svg", "i", "link", "iframe"} & set(tags)
        for _, attributes in page.tags:
            assert not any(name.startswith("on") for name in attributes)
            for name in ("src", "href"):
                assert str(attributes.get(name, PNG)).startswith("data:image/")
        assert [attributes.get("src") for _, attributes in page.tags].count(PNG) == 2
        assert all(name in page.words for name in NAMES)
    for words in ("vit-train <i>x</i>", "<svg onload=1>", "A&B\\x1b[1m"):
        assert words in Page(one).words
    assert all(
        words in Page(both).words
        for words in (
            "<i>seen</i>",
            "850.0025.00-25.00",
            f"{NAMES[1]} also knows {NAMES[0]}, and recognizes 3 of",
        )
    )


def test_the_page_describes_the_results_in_words() -> None:
    words = words_of(temperature=2.0, tta_flip=result_dict(RESULT))
    for said in (
        *(
            "The model is right on 25 of 30 images",
            "83.33 %",
            "most frequent class every time would be right on 33.3 %",
        ),
        "It is weakest on <b>cat</b>: 6 of 10 images right.",
        "<b>cat</b> mistaken for dog & co: 4 images, 40.0 % of <b>cat</b>",
        "Can its confidence be trusted? These images are too few to tell.",
        "on average (with so few images, much of this figure may be chance).",
        "Temperature scaling (T = 2, fitted on validation images)",
        "for the mirror image gives 83.33 %",
        "71.4 %",  # the precision of dog & co, 10 of 14
    ):
        assert said in words
    order = (
        "Most wrong",
        "Right, but least sure: .+<b>cat</b> 91 %, second dog & co 5 %",
        "Details",
        "Training accuracy may lie below validation",
        "table of positions",
    )
    pictures = dict.fromkeys(("positions", "curves"), b"png")
    assert re.search(".*".join(order), words_of(pictures=pictures))
    # Of three classes with ten images each.
    assert "five most probable" not in words and "If every class counts equally" not in words
    assert float(change(words)[1]) < float(change(words)[2])


def test_the_page_shows_the_thresholds_of_abstention() -> None:
    found = RESULT.predictions.calibrated(2.0)
    rows = abstention(found, found, "test")
    missed, low = rows[-1], {"target": 0.5, "threshold": 0.25, "val": answered(found, 0.25)}
    page = words_of(
        temperature=2.0,
        abstention=[low | {"test": answered(found, 0.99)}, missed],
        foreign={"images": 7, "folder": "<x>", "auroc": 0.75, "predicted": {"0.5": 0.1}},
    )
    assert "50.0 % 25.00 % 0.0 % 100.0 % 83.33 % 68.10 % 99.5 % no guarantee “No" in page
    assert "Partly: it is usually less confident about the 7 images in <x> than" in page
    assert "still get one of its classes: 10.0 % with abstain=0.5." in page


@pytest.mark.parametrize("classes", [3, 20, 21])
def test_a_cell_of_the_matrix_opens_its_surest_images(classes: int) -> None:
    """So do the most confused pairs; of many classes, which have no such matrix, only these."""
    rng, numbers = np.random.default_rng(0), np.arange(240)
    labels, predicted = numbers % classes, (numbers + rng.integers(0, 10, 240)) % classes
    logits = rng.uniform(5, 6, (240, 1)) * np.eye(classes)[predicted]
    html = html_of(Classification.of(Predictions(labels, logits)), pictures={"confusion": b"png"})
    opened = re.findall(r'<section popover id="cell-(\d+)-(\d+)"(.*?)</section>', html, re.S)
    buttons = [tag["popovertarget"] for name, tag in Page(html).tags if name == "button"]
    assert {f"cell-{row}-{column}" for row, column, _ in opened} == set(buttons)
    counts = Counter(zip(labels, predicted, strict=True))
    assert len(opened) == (5 if classes > 20 else len(counts))
    if classes > 20:
        mistakes = sorted(count for (row, column), count in counts.items() if row != column)
        found = sorted(counts[int(row), int(column)] for row, column, _ in opened)
        assert found == mistakes[-5:]
    assert (PNG in html) == (classes > 20)
    for row, column, section in opened:
        own = np.flatnonzero((labels == int(row)) & (predicted == int(column)))
        surest = own[np.argsort(-logits[own].max(axis=1))][: min(12, 400 // len(opened))]
        names = re.findall(r'alt="image &lt;i&gt;(\d+)&lt;/i&gt;.png"', section)
        assert names == list(map(str, surest))
        for name, webp in zip(names, re.findall(r"webp;base64,([^\"]+)", section), strict=True):
            assert abs(np.asarray(Image.open(io.BytesIO(b64decode(webp)))) - float(name)).max() <= 3


def test_each_tag_opens_the_images_on_which_it_is_surest_and_wrong() -> None:
    rng, thresholds = np.random.default_rng(0), np.array([0.4, 0.5, 1.0])
    found = TagPredictions(rng.random((60, 3)) < 0.5, rng.normal(size=(60, 3)))
    html = html_of(Tagging.of(found), classes=NAMES, **tag_measures(found, NAMES, thresholds))
    opened = re.findall(r'<section popover id="cell-(\w+)-(\d)"(.*?)</section>', html, re.S)
    buttons = [tag["popovertarget"] for name, tag in Page(html).tags if name == "button"]
    assert {f"cell-{kind}-{tag}" for kind, tag, _ in opened} == set(buttons) and len(opened) == 5
    for kind, number, section in opened:
        tag = int(number)
        truth, chances = found.truth[:, tag], found.probabilities[:, tag]
        sign, given = (1, chances >= thresholds[tag]) if kind == "wrong" else (-1, truth)
        own = np.flatnonzero((truth != (chances >= thresholds[tag])) & given)
        surest = own[np.argsort(-sign * chances[own])][:12]
        names = re.findall(r'alt="image &lt;i&gt;(\d+)&lt;/i&gt;.png"', section)
        assert names == list(map(str, surest))
        assert f"{100 * chances[surest[0]]:.1f}&nbsp;%" in section
        word = "given but not true" if kind == "wrong" else "true but not given"
        assert f"{word}: {len(own)} image" in section


def test_a_row_has_an_images_true_tags_and_those_that_reach_their_thresholds() -> None:
    found = TagPredictions(np.array([[True, False, True]]), np.array([[3.0, 2.0, -3.0]]))
    per_tag = [{"name": name, "threshold": 0.5} for name in ("a", "b", "c")]
    _, row = tag_rows(found, ["x.png"], per_tag)
    assert row == ["x.png", "a|c", "a|b", "0.952574", "0.880797", "0.047426"]


@pytest.mark.parametrize("right, sure, verdict", [(0.5, 5.0, "less"), (0.9, 0.5, "more")])
def test_with_many_images_the_page_names_the_side_on_which_confidence_errs(
    right: float, sure: float, verdict: str
) -> None:
    labels = np.arange(400) % 2
    predicted = np.where(np.arange(400) < 400 * right, labels, 1 - labels)
    words = words_of(result_of(labels, predicted, sure), 20.0)
    assert f"Not without calibration: predictions are correct {verdict} often than their" in words
    assert ("It is too sure: its" in words) == (verdict == "less")
    assert ("calibration does not help." in words) == (verdict == "more")
    assert "much of this figure may be chance" not in words
    before, now = map(float, change(words).groups())
    assert (now < before) == (sure > right)  # a temperature of 20 makes it less sure


def change(words: str) -> re.Match[str]:
    found = re.search(r"changes the loss from ([\d.]+) to ([\d.]+), and the", words)
    assert found
    return found


@pytest.mark.parametrize(
    "counts, words",
    [
        ([[97, 3], [3, 97]], "You can mostly trust this model on images like these. The model is"),
        ([[160, 40], [40, 160]], "with care: it is better than a guess, but makes mistakes."),
        ([[8, 2], [2, 8]], "Better than a guess, but these images are too few"),
        ([[20, 0], [0, 20]], "Better than a guess, but these images are too few"),
        ([[6, 4], [5, 5]], "on these few images, it is not clearly better than a guess"),
        ([[380, 0], [20, 0]], "on these images, it is not clearly better than a guess"),
        ([[60, 140], [140, 60]], "Do not trust this model: a guess would be right more"),
        ([[99, 1, 0], [0, 99, 1], [9, 0, 0]], "with care"),
        ([[99, 1, 0], [0, 99, 1], [9, 0, 0]], f"none of the images of {NAMES[2]}."),
        ([[99, 1, 0], [0, 99, 1], [0, 0, 9]], f"fewer than 10 images of {NAMES[2]} are too few"),
        ([[99, 1, 0], [0, 99, 1], [0, 0, 0]], f"There is no image of {NAMES[2]} here, so"),
        ([[99, 1, 0]] + 2 * [[0, 0, 0]], f"There is no image of {NAMES[1]} or {NAMES[2]} here"),
        ([[97, 3], [0, 0]], f"Only images of {NAMES[0]} are here, so this page cannot tell"),
    ],
)
def test_the_page_begins_with_whether_to_trust_the_model(
    counts: list[list[int]], words: str
) -> None:
    cells = [cell for cell, count in np.ndenumerate(counts) for _ in range(count)]
    labels, predicted = np.array(cells).T
    result = Classification.of(Predictions(labels, 3.0 * np.eye(len(counts))[predicted]))
    page = words_of(result)
    assert words in page and page.index("rust") < page.index("Details")
    assert ("Guessing the most" in page) == (np.count_nonzero(np.sum(counts, axis=1)) > 1)
    assert "it would be right on" in page
    caveat = "The model was trained on these images."
    page = words_of(result, caveat=caveat, biased=True)
    assert (
        f"This page cannot tell whether to trust the model. {caveat} The model is right on" in page
    )
    assert "it would be right on" not in page and page.count(caveat) == 1
    assert "mostly trust" not in page


def test_the_page_tells_how_far_to_trust_tags() -> None:
    truth = np.random.default_rng(0).random((300, 3)) < [0.5, 0.2, 0]
    for noise, words in ((0.1, "You can mostly trust"), (9.0, "Do not trust this model yet: on")):
        logits = truth - 0.5 + noise * np.random.default_rng(1).normal(size=truth.shape)
        found = TagPredictions(truth, logits)
        measures = tag_measures(found, NAMES, np.full(3, 0.5))
        page = words_of(Tagging.of(found), classes=NAMES, **measures)
        hits = (truth & (logits >= 0)).sum()
        wrong = (~truth & (logits >= 0)).sum()
        assert (
            words in page
            and f"The model finds {hits} of the {truth.sum()} tags of 300 images" in page
        )
        assert f"images, and gives {wrong} wrong tags." in page
        assert f"No image here has {NAMES[2]}, so nothing is known about this tag." in page


def test_tags_of_few_images_are_not_trusted() -> None:
    truth = np.arange(60)[:, None] < [30, 2, 0]
    found = TagPredictions(truth, truth - 0.5)
    measures = tag_measures(found, NAMES, np.full(3, 0.5))
    page = words_of(Tagging.of(found), classes=NAMES, **measures)
    assert f"fewer than 10 images of {NAMES[1]} are too few to tell whether to trust" in page
    assert "of 60 images, and gives 0 wrong tags." in page


def test_photos_are_shown_from_their_files(tmp_path: Path) -> None:
    """Upright and in their own shape; without its file, an image is shown as the model sees it."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (1280, 640), "red").save(tmp_path / "0.jpg", exif=exif)
    Path(tmp_path, "broken.jpg").write_bytes(b"\xff\xd8\xff")
    Image.fromarray(np.full((8, 8), 900, np.uint16)).save(tmp_path / "dark.png")
    names = np.array(["0.jpg", "broken.jpg", "gone.jpg", "dark.png"], dtype=object)
    images = ImageSet(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4), names=names)
    facts = FACTS | {"root": str(tmp_path), "white_level": 65535}
    shown = [Image.open(io.BytesIO(image_as_webp(images, index, facts))) for index in range(4)]
    assert [image.size for image in shown] == [(128, 256), (8, 8), (8, 8), (8, 8)]
    assert [image.getpixel((4, 4))[0] > 200 for image in shown] == [True, False, False, False]


def test_uneven_classes_are_also_counted_alike() -> None:
    words = words_of(result_of(np.arange(40) // 30, np.zeros(40, dtype=int)))
    assert "75.00 %" in words
    assert "If every class counts equally, the accuracy is 50.00 %" in words


@pytest.mark.parametrize(
    "images, changed, p_value, verdict",
    [
        (256, 0.33, 1e-9, "So the maps show parts that the predictions depend on."),
        (256, 0.1, 0.4, "may be due to chance, so these images cannot tell"),
        (256, 0.01, 1e-9, "So the maps do not show the parts that the predictions depend on."),
        (12, 0.9, 1e-3, "These are too few images to tell whether"),
    ],
)
def test_the_page_judges_whether_the_maps_mean_anything(
    images: int, changed: float, p_value: float, verdict: str
) -> None:
    words = words_of(focus=FOCUS | {"images": images, "changed": changed, "p_value": p_value})
    said = f"changes {100 * changed:.0f} % of the predictions for {images} images; removing random"
    assert said in words and verdict in words


def test_a_model_that_predicts_pixels_has_a_loss_alone() -> None:
    words = words_of(Evaluation(5, 0.25), pictures={"pictures": b"png"})
    assert "0.2500" in words and "confused" not in words
    assert "This model predicts pixels, not classes, so no accuracy" in words


@pytest.mark.parametrize("summary", [{"machine": 3, "config": None}, {"seconds": "long"}, {}])
def test_a_strangers_summary_may_be_anything(summary: dict[str, Any]) -> None:
    assert "Reproduce this" in words_of(run=summary)


CLASSES = ("cat", "a, b", "<b>$x$</b>")


def answers(seed: int, count: int = 60) -> Predictions:
    """Predictions of one of several models to the same images."""
    labels = np.random.default_rng(7).integers(0, 3, count)
    logits = np.random.default_rng(seed).normal(size=(count, 3)) + np.eye(3)[labels]
    return Predictions(labels, logits)


@pytest.mark.parametrize(
    "a, b", [(0, 0), (1, 0), (5, 5), (3, 12), (40, 61), (1200, 1310), (0, 900)]
)
def test_the_p_value_is_that_of_the_exact_binomial_test(a: int, b: int) -> None:
    expected = binomtest(a, a + b).pvalue if a + b else 1.0
    assert Paired(10_000, a, b).p_value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("a, b", [(12, 5), (0, 0), (0, 7), (30, 60)])
def test_the_interval_is_walds_with_two_images_more(a: int, b: int) -> None:
    """One that only the first gets right, and one that only the second does."""
    gains = np.array([-1] * (a + 1) + [1] * (b + 1) + [0] * (100 - a - b))
    half = Z * gains.std() / math.sqrt(len(gains))
    assert Paired(100, a, b).interval == pytest.approx((gains.mean() - half, gains.mean() + half))


def test_the_sheet_begins_with_the_most_wrong_of_those_that_one_alone_knows() -> None:
    first, second = answers(0), answers(1)
    only_first = np.flatnonzero(first.correct & ~second.correct)
    pixels = torch.arange(60, dtype=torch.uint8).view(60, 1, 1, 1).expand(-1, 3, 8, 8)
    images = ImageSet(pixels, torch.from_numpy(first.labels))
    for names in (("A (run)", "B ($x$)"), ("B (x)", "C (y)")):
        found = dict(zip(names, (first, second), strict=True))
        (axes,) = draw_differences(found, images, CLASSES).axes
        shown = [int(image.get_array().max()) for image in axes.images]
        worst = only_first[np.argsort(-second.losses[only_first])]
        assert shown[: min(12, len(worst))] == worst[:12].tolist()
        texts = [text.get_text().replace(r"\$", "$") for text in axes.texts]
        assert texts[0] == f"Only {names[0]} is right" and f"Only {names[1]} is right" in texts
        assert [text[:3] for text in texts[1:3]] == [f"{name[0]}: " for name in names]


@pytest.mark.parametrize("a, b, chance", [(5, 9, "due to chance"), (5, 30, "significant")])
def test_a_verdict_names_chance_or_significance(a: int, b: int, chance: str) -> None:
    found = {}
    for name, wrong in (("A (x)", slice(a, a + b)), ("B (y)", slice(a))):
        logits = np.eye(2)[[0] * 1000]
        logits[wrong] = [0, 1]
        found[name] = Classification.of(Predictions(np.zeros(1000, dtype=int), logits))
    (pair,) = compare(found)
    assert (pair["only_first"], pair["only_second"]) == (a, b)
    assert pair["difference"] == pytest.approx((b - a) / 1000)
    words = verdict(pair)
    assert chance in words and "adjusted" not in words
    assert f"From A (x) to B (y), accuracy changes by {(b - a) / 10:+.2f} points" in words
    of_many = verdict(pair | {"mcnemar_p_adjusted": 0.5})
    assert "may be due to chance. Only A (x)" in of_many
    assert "p = 0.5 adjusted for all pairs)." in of_many


def evaluated(name: str, images: ImageSet, data: str = "cifar10") -> Evaluated:
    content = {"data": data, "root": "data"}
    return Evaluated(SimpleNamespace(path=name), images, None, content, {})


def test_only_results_on_the_same_images_are_compared() -> None:
    plain = ImageSet(torch.zeros(4, 3, 8, 8), torch.zeros(4))
    first = evaluated("run0", plain)
    for same in (plain, replace(plain, images=torch.zeros(4, 3, 16, 16))):  # of another size
        require_same_images([first, evaluated("run1", same)])
    for other in (
        evaluated("run1", replace(plain, names=np.array([0, 1, 2, 4]))),
        evaluated("run1", plain, data="folder"),
        evaluated("run1", replace(plain, images=torch.ones(4, 3, 8, 8))),
        evaluated("run1", replace(plain, labels=torch.ones(4))),
    ):
        with pytest.raises(ValueError, match="run0 and run1 were evaluated on different images"):
            require_same_images([first, other])


def test_p_values_of_several_pairs_are_adjusted_for_their_number() -> None:
    counts = [(5, 30), (9, 20), (14, 15), (3, 18)]
    plain = [Paired(1000, *each).p_value for each in counts]
    ordered = sorted(plain)
    steps = [min(1, (4 - rank) * p) for rank, p in enumerate(ordered)]
    expected = [max(steps[: ordered.index(own) + 1]) for own in plain]
    assert adjusted(plain) == pytest.approx(expected)
    assert [p < 0.05 for p in adjusted(plain)] == [True, False, False, True]


def test_tta_flip_mirrors_left_to_right_and_averages_probabilities() -> None:
    trained, fp32 = load("builtin:cifar10"), Precision("fp32", torch.device("cpu"))
    pixels = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8)
    plain, mirrored = (ImageSet(each, torch.arange(6)) for each in (pixels, hflip(pixels)))
    results = [measure(trained, each, fp32).predictions for each in (plain, mirrored)]
    flipped = measure(trained, plain, fp32, batch_size=4, mirrored=True).predictions
    np.testing.assert_allclose(flipped.logits, results[1].logits, rtol=1e-4, atol=1e-5)
    found = np.exp(averaged(*results).predictions.log_probabilities)
    mean = sum(np.exp(each.log_probabilities) for each in results) / 2
    np.testing.assert_allclose(found, mean)
