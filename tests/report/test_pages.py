"""report.html: one file, whose text is text and whose words are what was found."""

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from vit_train.engine.metrics import Classification, Evaluation, Predictions
from vit_train.evaluation.comparison import compared, in_words
from vit_train.evaluation.measuring import numbers
from vit_train.evaluation.pages import comparison_page, evaluation_page
from vit_train.figures.measures import result_dict

NAMES = ["<b>cat</b>", "dog & co", '"><script>alert(1)</script>']
FACTS = {
    "checkpoint": "run/<x>.pt", "title": "pets", "split": "test", "image_size": 8, "weights": "raw",
    "epoch": 3, "images_seen": 90, "date": "2026-01-31", "selected_on": "val", "images_per_s": 9.5,
    "classes": NAMES, "caveat": "", "command": "vit-eval",
}  # fmt: skip
FOCUS = {
    "images": 256, "patches_of_half": 0.36, "middle": 0.3, "deleted": 0.1, "changed": 0.3,
    "changed_at_random": 0.08, "p_value": 0.01,
}  # fmt: skip
PNG = "data:image/png;base64,cG5n"  # b"png"
LABELS = np.arange(30) // 10
PREDICTED = np.array([0] * 6 + [1] * 4 + [1] * 10 + [2] * 9 + [0])


def result_of(labels: np.ndarray, predicted: np.ndarray, sure: float = 3.0) -> Classification:
    return Classification.of(Predictions(labels, sure * np.eye(labels.max() + 1)[predicted]))


RESULT = result_of(LABELS, PREDICTED)


class Page(HTMLParser):
    """Collects tags and text; every tag that is opened must be closed."""

    VOID = ("meta", "img", "br")

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


def html_of(
    result: Classification = RESULT,
    temperature: float | None = None,
    run: dict[str, Any] | None = None,
    pictures: dict[str, bytes] | None = None,
    **more: object,
) -> str:
    classes = NAMES[: result.answers.classes]
    content = FACTS | {"classes": classes} | numbers(result, classes, temperature) | more
    return evaluation_page(content, result, run or {}, pictures or {})


def words_of(*what: Any, **more: Any) -> str:
    return Page(html_of(*what, **more)).words


def test_on_a_narrow_page_neither_numbers_nor_names_break() -> None:
    html = html_of()
    kinds = [attributes["class"] for tag, attributes in Page(html).tags if tag == "table"]
    assert kinds == ["numbers", "texts"]
    for cells in (r".numbers td + td, .numbers th + th", ".texts td:first-child"):
        assert re.search(rf"\n{re.escape(cells)} {{[^}}]*overflow-wrap: normal;", html)


def test_no_text_is_markup_and_nothing_is_loaded() -> None:
    run = {
        "command": "vit-train <i>x</i>",
        "commit": "<svg onload=1>",
        "machine": {"cpu": "A&B\x1b[1m"},
    }
    pictures = {"confusion": b"png", "maps": b"png"}
    one = html_of(run=run, pictures=pictures, focus=FOCUS)
    (pair,) = compared(dict.fromkeys(NAMES[:2], RESULT.answers))
    models = [FACTS | {"name": name} | numbers(RESULT, NAMES, None) for name in NAMES[:2]]
    settings, pictures = [("seed", "0", NAMES[2])], dict.fromkeys(NAMES[1:], b"png")
    both = comparison_page(models, [in_words(pair), "<i>seen</i>"], settings, pictures)
    for page in map(Page, (one, both)):
        tags = [tag for tag, _ in page.tags]
        assert not {"script", "b", "svg", "i", "link", "iframe"} & set(tags)
        for _, attributes in page.tags:
            assert not any(name.startswith("on") for name in attributes)
            for name in ("src", "href"):
                assert attributes.get(name, PNG) == PNG
        assert tags.count("img") == 2
        assert all(name in page.words for name in NAMES)
    for words in ("vit-train <i>x</i>", "<svg onload=1>", "A&B\\x1b[1m"):
        assert words in Page(one).words
    assert "<i>seen</i>" in Page(both).words


def test_it_says_in_words_what_was_found() -> None:
    words = words_of(temperature=2.0, tta_flip=result_dict(RESULT))
    assert "83.33 %" in words and "most frequent class would be right in 33.3 %" in words
    assert "five most probable" not in words  # of three classes
    assert "<b>cat</b> mistaken for dog & co: 4 images, 40.0 % of <b>cat</b>" in words
    assert "On average, as far as these images tell" in words  # 90.9 of 66.4 to 92.7 %
    assert "Temperature scaling (T = 2.00, fitted on validation images)" in words
    assert float(change(words)[1]) < float(change(words)[2])
    assert "every class counted alike" not in words  # ten images each
    assert "mirror image it is right in 83.33 %" in words
    assert "0.714" in words  # the precision of dog & co, 10 of 14


@pytest.mark.parametrize("right, sure, verdict", [(0.5, 5.0, "less"), (0.9, 0.5, "more")])
def test_with_many_images_it_says_on_which_side_confidence_errs(
    right: float, sure: float, verdict: str
) -> None:
    labels = np.arange(400) % 2
    predicted = np.where(np.arange(400) < 400 * right, labels, 1 - labels)
    words = words_of(result_of(labels, predicted, sure), 20.0)
    assert f"Not as they are: it is right {verdict} often than its probabilities say." in words
    before, now = map(float, change(words).groups())
    assert (now < before) == (sure > right)  # a temperature of 20 makes it less sure


def change(words: str) -> re.Match[str]:
    found = re.search(r"changes the loss from ([\d.]+) to ([\d.]+), and the", words)
    assert found
    return found


def test_uneven_classes_are_also_counted_alike() -> None:
    words = words_of(result_of(np.arange(40) // 30, np.zeros(40, dtype=int)))
    assert "75.00 %" in words
    assert "With every class counted alike, the model is right in 50.00 %." in words


@pytest.mark.parametrize(
    "images, changed, p_value, verdict",
    [
        (256, 0.33, 1e-9, "So the maps show what the predictions depend on."),
        (256, 0.1, 0.4, "That may be chance: these images do not tell"),
        (256, 0.01, 1e-9, "So the maps hardly show what the predictions depend on."),
        (12, 0.9, 1e-3, "So few images do not tell whether"),
    ],
)
def test_it_says_where_the_model_looks_and_whether_that_means_anything(
    images: int, changed: float, p_value: float, verdict: str
) -> None:
    focus = FOCUS | {"images": images, "changed": changed, "p_value": p_value}
    words, share = words_of(focus=focus), f"{100 * changed:.0f} %"
    assert f"changes {share} of the predictions; removing random patches, 8 %" in words
    assert verdict in words


def test_a_model_that_predicts_pixels_has_a_loss_alone() -> None:
    pixels = Evaluation(5, 0.25)
    content = FACTS | numbers(pixels, [], None)
    words = Page(evaluation_page(content, pixels, {}, {"pictures": b"png"})).words
    assert "0.2500" in words and "confused" not in words


@pytest.mark.parametrize("summary", [{"machine": 3, "config": None}, {"seconds": "long"}, {}])
def test_a_strangers_summary_may_be_anything(summary: dict[str, Any]) -> None:
    assert "Reproduce this" in words_of(run=summary)
