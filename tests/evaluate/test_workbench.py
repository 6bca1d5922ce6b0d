"""The page of photos to decide on: what is on it, and what a browser makes of keys and clicks."""

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, dumped
from conftest import SMALL_MODEL, Run, csv_rows, write_images
from PIL import ExifTags, Image
from test_evaluation import Page

from vit_train.config.data import FolderConfig
from vit_train.data.decisions import read_decisions
from vit_train.evaluate import pages
from vit_train.evaluate.pages import cell, photo_webp, write_workbench

NAMES = ["cat/1.png", 'cat/a,"b".png', "=dog/1;+2.png", "dog/<b>&'é.png", "dog/5.png"]
CLASSES = ["cat", "dog", "</script><b>", "=cow"]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page with a pair of copies, and three single photos."""
    monkeypatch.chdir(tmp_path)
    write_images("photos", NAMES)
    photos = [(name, name[:3], f"copy of {name}", "=cow") for name in NAMES]
    sections = {"copies & co": [photos[:2]], "suspects": [[each] for each in photos[2:]]}
    path = tmp_path / "page.html"
    write_workbench(path, sections, CLASSES, FolderConfig(root="photos"), "<i>Look</i>")
    return path


def test_no_name_is_markup_and_nothing_is_loaded(page: Path) -> None:
    parts = Page(page.read_text(encoding="utf-8"))
    tags = [tag for tag, _ in parts.tags]
    assert tags.count("script") == 1 and "i" not in tags and tags.count("b") == 2 * len(NAMES)
    paths = [attributes["data-path"] for _, attributes in parts.tags if "data-path" in attributes]
    assert paths == [cell(name) for name in NAMES]
    for _, attributes in parts.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert str(attributes.get(name, "data:image/")).startswith("data:image/")
    assert "<i>Look</i>" in parts.words and "http" not in page.read_text(encoding="utf-8")


def test_photos_keep_their_proportions_and_are_turned_as_they_are_seen(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    noise = np.random.default_rng(0).integers(0, 256, (500, 2000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.jpg", exif=turned)
    Image.fromarray(noise[:20, :10]).save(tmp_path / "b.png")
    sizes = {}
    for name in ("a.jpg", "b.png"):
        shown = tmp_path / "shown.webp"
        shown.write_bytes(photo_webp(tmp_path / name, pages.PHOTO_SIDE))
        with Image.open(shown) as image:
            sizes[name] = image.size
    assert sizes == {"a.jpg": (96, 384), "b.png": (10, 20)}


def test_a_page_has_the_first_photos_that_are_not_yet_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "MOST_CASES", 3)
    write_images(tmp_path, [f"{number}.png" for number in range(9)])
    photos = [(f"{number}.png", "a", "why", "") for number in range(9)]
    file = tmp_path / "decisions.csv"
    config = FolderConfig(root=str(tmp_path), decisions=str(file))
    sections = {"pairs": [photos[:2], photos[2:4]], "single": [[each] for each in photos[4:]]}
    path = tmp_path / "page.html"

    def shown(*decided: int) -> tuple[list[str], str]:
        rows = "\n".join(["path,what", *(f"{number}.png,keep" for number in decided)])
        file.write_text(rows, encoding="utf-8")
        write_workbench(path, sections, ["a", "b"], config, "")
        parts = Page(path.read_text(encoding="utf-8"))
        found = [str(each["data-path"]) for _, each in parts.tags if "data-path" in each]
        return [name.removesuffix(".png") for name in found], parts.words

    names, words = shown()
    assert names == ["0", "1", "2", "3", "4", "5", "6"]
    assert "Pairs (2)" in words and "Single (5) These are the first 3." in words
    assert "Decided earlier" not in words
    names, words = shown(0, 2, 3, 4)  # half of the first pair is decided
    assert names == ["0", "1", "5", "6", "7"] and "Pairs (1)" in words
    assert "Decided earlier and not shown: 3" in words
    assert "2.png: keep ; now why 3.png: keep ; now why" in " ".join(words.split())
    names, words = shown(*range(4), 6, 8)
    assert names == ["4", "5", "7"]
    assert not any(said in words for said in ("Pairs", "first 3", "Nothing is left"))
    caplog.set_level("INFO", "vit_train")
    caplog.clear()
    assert "Nothing is left to decide" in shown(*range(9))[1]
    assert "nothing is left to decide on" in caplog.text and "open it" not in caplog.text


HELPERS = """
let saved;
URL.createObjectURL = (blob) => { saved = blob; return ""; };
HTMLAnchorElement.prototype.click = () => {};
const press = (name) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const focused = () => document.activeElement.dataset?.path ?? document.activeElement.id;
const text = async () =>
  new TextDecoder("utf-8", { ignoreBOM: true }).decode(await saved.arrayBuffer());
const words = () => document.getElementById("count").textContent;
const steps = JSON.parse(sessionStorage.steps ?? "[]");
const note = (each) => {
  steps.push(each);
  sessionStorage.steps = JSON.stringify(steps);
};
const buttons = () => [...document.querySelectorAll(".photo button")];
const finish = async () => {
  note(await text());
  const pre = document.body.appendChild(document.createElement("pre"));
  pre.id = "checked";
  pre.textContent = sessionStorage.steps;
};
"""
KEYS_AND_CLICKS = """
if (!steps.length) {
  press("k"); // nothing is in focus, so this only goes to the first photo
  note([focused(), words()]);
  for (const name of ["k", "l", "r", "k", "u", "arrowright", "arrowleft"]) {
    press(name);
    note([focused(), words()]);
  }
  press("c");
  note([document.activeElement.tagName, document.activeElement.options.length]);
  document.activeElement.value = "<\\/script><b>";
  document.activeElement.dispatchEvent(new Event("change", { bubbles: true }));
  press("enter");
  note([focused(), words()]);
  buttons().at(-1).click(); // leave out
  note([focused(), words()]);
  press("u");
  location.reload();
} else {
  note([focused(), words(), document.querySelectorAll("[aria-pressed=true]").length]);
  buttons().at(-1).click();
  press("s");
  note([words(), document.getElementById("said").textContent]);
  finish();
}
"""


def driven(page: Path, script: str) -> list[Any]:
    """What the script notes in a copy of the page, in Chromium."""
    copy = page.with_name("driven.html")
    script = f"<script>{HELPERS}{script}</script></body>"
    text = page.read_text(encoding="utf-8").replace("</body>", script)
    copy.write_text(text, encoding="utf-8")
    (found,) = re.findall(r'id="checked">(.*?)</pre>', dumped(copy.as_uri(), page.parent), re.S)
    return json.loads(html.unescape(found))  # type: ignore[no-any-return]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_keys_and_clicks_decide_and_a_reload_loses_nothing(page: Path) -> None:
    cells = [cell(name) for name in NAMES]
    found = driven(page, KEYS_AND_CLICKS)
    first, kept, left, relabeled, again, undone, right, back, opened, entered, *rest = found
    assert first == [cells[0], "0 of 5 photos decided"]
    assert kept == [cells[1], "1 of 5 photos decided"]
    assert left == [cells[2], "2 of 5 photos decided"]
    assert relabeled == [cells[3], "3 of 5 photos decided"]
    assert again == [cells[4], "4 of 5 photos decided"]
    assert undone == [cells[3], "3 of 5 photos decided"]
    assert (right[0], back[0]) == (cells[4], cells[3])
    assert opened == ["SELECT", 1 + len(CLASSES)]
    assert entered == [cells[4], "4 of 5 photos decided"]
    clicked, reloaded, (words, said), text = rest
    assert clicked == [cells[4], "5 of 5 photos decided"]  # a click leaves the focus where it is
    assert reloaded == ["", "4 of 5 photos decided", 3]  # none of the buttons is that of the list
    assert (
        words == "5 of 5 photos decided" and "with 5 decisions" in said and "use the newest" in said
    )
    Path("decisions.csv").write_text(text, encoding="utf-8", newline="")
    rows = read_decisions("decisions.csv")
    assert [(rows[each]["what"], rows[each]["label"]) for each in cells] == [
        ("keep", ""),
        ("leave out", ""),
        ("relabel", "'=cow"),
        ("relabel", "</script><b>"),
        ("leave out", ""),
    ]
    assert rows[cells[1]]["why"] == f"copy of {NAMES[1]}" and text.startswith("\ufeff")


OTHER_KEYS = """
note(words());
press("k");
note(focused());
press("l");
buttons()[0].click(); // keep
press("s");
note(words());
finish();
"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_saved_file_also_has_the_earlier_decisions(page: Path) -> None:
    rows = ["path,what,label,why", "dog/5.png,relabel,cat,seen", "cat/1.png,keep,,", "x.png,keep,,"]
    Path("earlier.csv").write_text("\n".join(rows), encoding="utf-8")
    config = FolderConfig(root="photos", decisions="earlier.csv")
    pair = [(name, "cat", "copy", "") for name in ("dog/5.png", NAMES[1])]
    write_workbench(page, {"pair": [pair]}, CLASSES, config, "")
    before, to_do, after, text = driven(page, OTHER_KEYS)
    assert (before, to_do, after) == (
        *("1 of 2 photos decided", cell(NAMES[1]), "2 of 2 photos decided"),
    )
    Path("decisions.csv").write_text(text, encoding="utf-8", newline="")
    found = read_decisions("decisions.csv")
    assert {path: (each["what"], each["label"], each["why"]) for path, each in found.items()} == {
        "dog/5.png": ("relabel", "cat", "seen"),  # kept as it is now
        "cat/1.png": ("keep", "", ""),
        "x.png": ("keep", "", ""),
        cell(NAMES[1]): ("leave out", "", "copy"),
    }


# Decide on all photos by their names: copies are left out, wrong labels changed.
BY_NAME = """
press("k");
for (let n = 0; focused() !== "save" && n < 1000; n++) {
  press(focused().includes("copy") ? "l" : focused().includes("wrong") ? "r" : "k");
}
press("s");
finish();
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_planted_faults_are_found_decided_on_and_gone(run: Run) -> None:
    """Copies by vit-data, then wrong labels by vit-suspects, each by its page; no file changes."""
    for name, color, wrong in (("blue", (20, 20, 180), "red"), ("red", (180, 20, 20), "blue")):
        write_images(f"photos/{name}", [f"{number}.png" for number in range(40)], color)
        write_images(f"photos/{wrong}", ["wrong.png", "also wrong.png"], color)
        for number in range(2):
            shutil.copy(f"photos/{name}/{number}.png", f"photos/{name}/copy {number}.png")
    before = {path: path.read_bytes() for path in Path("photos").rglob("*.png")}
    data = ["data=folder", "data.root=photos", "data.image_size=16", "data.test_fraction=0.01"]
    quick = [*SMALL_MODEL, "augment=none", "train.batch_size=8", "model.depth=1"]
    run.says("8 photos to decide on", "vit-data", *data)

    def decided(page: str) -> str:
        (text,) = driven(Path(page).absolute(), BY_NAME)
        Path("decisions.csv").write_text(text, encoding="utf-8", newline="")
        return "data.decisions=decisions.csv"

    learn = ["vit-train", *quick, *data, decided("data_report_workbench.html")]
    run.succeeds(*learn, "-m", "data.cv_folds=2", "data.cv_fold=0,1", "hydra.sweep.dir=folds")
    run.succeeds("vit-suspects", "runs=folds")
    assert "84 of 149 suspects" in Path("folds/suspects/workbench.html").read_text(encoding="utf-8")
    decided("folds/suspects/workbench.html")
    run.says("4 images left out, 4 relabeled", *learn, "hydra.run.dir=run")
    rows = csv_rows("run/images.csv")
    assert {row["path"] for row in rows} == {
        path.relative_to("photos").as_posix() for path in before
    }
    for row in rows:
        assert row["split"].startswith("left out of") == ("copy" in row["path"])
        assert row["path"].startswith(row["label"]) != ("wrong" in row["path"])
    assert before == {path: path.read_bytes() for path in Path("photos").rglob("*.png")}
