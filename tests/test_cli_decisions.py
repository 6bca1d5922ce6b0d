"""Decisions on single photos (data.decisions), through the command line."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL_MODEL, Run, csv_rows, write_images

from vit_train.base.reading import read_json
from vit_train.config.data import FolderConfig
from vit_train.data.dataset import Dataset, ImageSet
from vit_train.data.splits import Splits, make_splits

DATA = ["data=folder", "data.root=photos", "data.image_size=16"]
LEARN = ["vit-train", *DATA, *SMALL_MODEL, "train.epochs=1", "train.batch_size=8"]
DECIDED = "data.decisions=decisions.csv"


def decide(*rows: str, file: str = "decisions.csv") -> None:
    Path(file).write_text("\n".join(["path,what,label,why", *rows]), encoding="utf-8")


def listed(folder: str) -> dict[str, tuple[str, str]]:
    """The label and split of each image of a run."""
    rows = csv_rows(f"{folder}/images.csv")
    return {row["path"]: (row["label"], row["split"]) for row in rows}


def answers_in(folder: str) -> dict[str, str]:
    """The images of an evaluation, each with its label."""
    return {row["image"]: row["true"] for row in csv_rows(f"{folder}/predictions.csv")}


@pytest.fixture
def plain(run: Run) -> dict[str, tuple[str, str]]:
    """Train the run plain/ on photos/, and return the label and split of each image."""
    names = [f"{name}/{number}.png" for name in ("cat", "dog", "owl") for number in range(12)]
    write_images("photos", names)
    run.succeeds(*LEARN, "hydra.run.dir=plain")
    return listed("plain")


def first(images: dict[str, tuple[str, str]], split: str, label: str = "cat") -> Iterator[str]:
    return (name for name, place in images.items() if place == (label, split))


def test_no_other_photo_changes_its_split_and_a_run_remembers_its_decisions(
    run: Run, plain: dict[str, tuple[str, str]]
) -> None:
    out = {split: next(first(plain, split)) for split in ("train", "val", "test")}
    train, test = next(first(plain, "train", "dog")), next(first(plain, "test", "dog"))
    kept = next(first(plain, "train", "owl"))
    decide(
        *(f"{name},leave out,,blurred" for name in out.values()),
        *(f"{name},relabel,owl,wrong" for name in (train, test)),
        f"{kept},keep,,",
    )
    run.says("3 images left out, 2 relabeled, 1 kept", *LEARN, DECIDED, "hydra.run.dir=run")
    expected = plain | {name: ("cat", f"left out of {split}") for split, name in out.items()}
    expected |= {train: ("owl", "train"), test: ("owl", "test")}
    assert listed("run") == expected
    summary = read_json(Path("run/summary.json"))
    assert summary["images"]["left_out"] == 3
    assert len(csv_rows("run/applied_decisions.csv")) == 6
    # The run's own copy counts from now on.
    decide("cat/1.png,leave out,,")
    answers = {name: label for name, (label, split) in expected.items() if split == "test"}
    run.succeeds("vit-eval", "ckpt=run", "out=own")
    assert answers_in("own") == answers
    assert "left out by data.decisions" in Path("own/report.html").read_text(encoding="utf-8")
    for place in ("moved", "others"):
        shutil.copytree("photos", place)
    run.says("the run's own images", "vit-eval", "ckpt=run", "data.root=moved", "out=moved/eval")
    assert answers_in("moved/eval") == answers
    assert "blurred" in Path("moved/eval/workbench.html").read_text(encoding="utf-8")
    # In other folders, no photo that was left out of training is tested on.
    write_images("others", ["cat/new.png"])
    run.says("left out", "vit-eval", "ckpt=run", "data.root=others", "out=other")
    assert not {out["train"], out["val"]} & answers_in("other").keys()
    assert "cat/new.png" in answers_in("other")
    # Both models on the same images.
    decide(*(f"{name},relabel,owl," for name in (train, test)), f"{out['test']},leave out,,")
    run.succeeds("vit-eval", "ckpt=[plain,run]", DECIDED, "out=both")
    assert answers_in("both/A") == answers_in("both/B") == answers
    # Undone, each photo returns to its split.
    copy = Path("run/applied_decisions.csv")
    words = f"run left 3 images out and relabeled 2: to do so again, set data.decisions={copy}"
    run.says(words, *LEARN, "data.split_as=run", "hydra.run.dir=undone")
    assert listed("undone") == plain
    again = [*LEARN, "data.split_as=run", f"data.decisions={copy}", "hydra.run.dir=again"]
    assert "to do so again" not in run.succeeds(*again).said
    assert listed("again") == expected


def test_decisions_apply_to_the_same_folder_by_name_and_to_a_whole_subset(run: Run) -> None:
    numbers = {"train": range(12), "test": range(12, 18)}
    names = [f"{part}/{c}/{n}.png" for part in numbers for c in "ab" for n in numbers[part]]
    write_images("photos", names)
    decide("test/a/12.png,leave out,,")
    run.succeeds(*LEARN, DECIDED, "data.test_subset=12", "hydra.run.dir=run")
    for number, given in enumerate(([], ["data.root=photos"], ["data.root=photos/../photos"])):
        run.succeeds("vit-eval", "ckpt=run", f"out=own{number}", *given)
        assert len(answers_in(f"own{number}")) == 11


def test_decisions_for_another_folder_or_in_another_format_are_refused(run: Run) -> None:
    write_images("photos", [f"{name}/{number}.png" for name in "ab" for number in range(12)])
    decide("photos/a/1.png,leave out,,")
    run.fails("such as photos/a/1.png, is in data.root=photos", *LEARN, DECIDED)
    run.fails("a file name that ends in .csv", *LEARN, "data.decisions=decisions.json")
    run.fails("nowhere.csv: there is no such file (browsers", *LEARN, "data.decisions=nowhere.csv")
    # Two files, one after the other.
    decide('a/1.png,leave out,,\n\ufeff"path","what","label","why"', "a/2.png,relabel,b,")
    run.says("1 image left out, 1 relabeled", *LEARN, DECIDED, "train.max_minutes=1e-9")


def test_a_copy_that_is_kept_for_testing_is_tested_on(
    run: Run, plain: dict[str, tuple[str, str]]
) -> None:
    """Although its pixels are those of a photo that was left out of training."""
    left, kept = next(first(plain, "train")), next(first(plain, "test"))
    shutil.copy(Path("photos", left), Path("photos", kept))
    shutil.copytree("photos", "others")
    write_images("others", ["cat/new.png"])
    assert "copies of 1 test image" in run.succeeds(*LEARN, "hydra.run.dir=copied").said
    decide(f"{left},leave out,,copy")
    assert "copies of" not in run.succeeds(*LEARN, DECIDED, "hydra.run.dir=run").said
    run.succeeds("vit-eval", "ckpt=run", "out=own")
    run.succeeds("vit-eval", "ckpt=run", "data.root=others", "out=other")
    assert kept in answers_in("own") and {kept, "cat/new.png"} <= answers_in("other").keys()


def test_a_run_is_resumed_and_forked_with_the_decisions_that_it_began_with(run: Run) -> None:
    write_images("photos", [f"{name}/{number}.png" for name in "ab" for number in range(12)])
    decide("a/1.png,leave out,,", "a/2.png,relabel,b,")
    run.succeeds(*LEARN, DECIDED, "hydra.run.dir=run", "train.max_minutes=1e-9")
    before = listed("run")
    decide("a/3.png,leave out,,")
    run.succeeds("vit-train", "resume=run", "train.max_minutes=null")
    run.succeeds("vit-train", "fork=run/checkpoints/last.safetensors", "train.epochs=2")
    (forked,) = Path("outputs").rglob("applied_decisions.csv")
    assert before == listed("run") == listed(str(forked.parent))
    run.fails("cannot change data.decisions", "vit-train", "resume=run", *DATA[:2], DECIDED)
    run.succeeds("vit-train", "config=run", "hydra.run.dir=anew", "train.max_minutes=1e-9")
    assert listed("anew")["a/3.png"][1].startswith("left out of ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("image,choice\na,b", "must name the columns, path,what,label,why, but is image, choice"),
        ("path,what\nred/1.png,drop", "line 2: the column what must hold keep, relabel or leave"),
        ("path,what\nred/1.png", "not nothing"),
        (
            "path;what\nred/1.png;keep\nred/1.png;leave out",
            "line 3 contradicts decisions.csv, line 2",
        ),
        ("path,what,label\nred/1.png,relabel,ret", "line 2: the label ret is not a class of these"),
        ("path,what\nred/1.png,relabel", "line 2: the label (empty) is not a class"),
        ("path,what\n" + "red/0.png,leave out\n" * 2, ""),
        ("path,what\nred/0.png,keep\nred/99.png,leave out", "names images that do not exist"),
        ("\ufeffpath,what,label\r\n\r\nred/0.png, relabel, blue\r\n", "1 relabeled"),
        ("", "but is empty"),
        (
            "path,what,why\nred/0.png,leave out,Gr\xfcn",
            "data.decisions=decisions.csv is not in UTF-8",
        ),
    ],
)
def test_a_file_that_cannot_be_applied_is_refused_with_the_line(
    run: Run, content: str, words: str
) -> None:
    names = (f"{name}/{number}.png" for name in ("red", "blue") for number in range(4))
    write_images("photos", names)
    encoding = "latin-1" if "\xfc" in content else "utf-8"
    Path("decisions.csv").write_text(content, encoding=encoding, newline="")
    outcome = run("vit-data", *DATA, "data.val=none", DECIDED)
    applied = ("1 relabeled", "do not exist", "")
    assert outcome.status == (0 if words.endswith(applied[:2]) or not words else 1), outcome.err
    assert words in outcome.said and "Traceback" not in outcome.err


@pytest.mark.parametrize("source", ["folder", "table"])
def test_a_broken_or_missing_file_may_be_left_out(run: Run, source: str) -> None:
    names = write_images("photos", [f"{name}/{n}.png" for name in "ab" for n in range(12)])
    Path("photos/a/0.png").write_bytes(b"broken")
    Path("photos/notes.txt").write_text("skipped", encoding="utf-8")
    learn = [*LEARN, "train.max_minutes=1e-9"]
    left = ["a/0.png,leave out,,broken"]
    if source == "table":
        rows = [f"{name},{name[0]}" for name in names]
        Path("photos/all.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
        learn += ["data=table", "data.file=photos/all.csv"]
        Path("photos/b/0.png").unlink()
        left.append("b/0.png,leave out,,")
    run.fails("image files cannot be decoded", *learn)
    run.succeeds(*learn, "data.on_error=skip", "hydra.run.dir=skipping")
    decide(*left)
    assert "cannot be decoded" not in run.succeeds(*learn, DECIDED, "hydra.run.dir=run").said
    assert listed("run") == listed("skipping")
    if source == "folder":  # with three splits, a file is skipped once
        again = run.succeeds(*learn, DECIDED, "data.split_as=run", "hydra.run.dir=again")
        assert again.said.count("1 file skipped") == 1
        assert listed("again") == listed("run")
    decide("b/1.png,leave out,,")
    run.fails("image files cannot be decoded", *learn, DECIDED)


def test_a_class_or_split_that_loses_its_photos_is_named(run: Run) -> None:
    names = write_images(
        "photos",
        [f"{part}/{name}/{n}.png" for part in ("train", "test") for name in "ab" for n in range(4)],
    )
    train = [name for name in names if name.startswith("train/a")]
    decide(*(f"{name},leave out,," for name in train))
    words = "no training images of a, so the model cannot learn it: check"
    run.says(words, *LEARN, DECIDED, "data.val=none", "train.batch_size=4")
    decide(*(f"{name},leave out,," for name in names if name.startswith("test")))
    run.fails("data.decisions leaves out all test images", "vit-data", *DATA, DECIDED)


def test_tags_are_replaced_or_left_out(run: Run) -> None:
    names = write_images("photos", [f"{number}.png" for number in range(20)])
    rows = [f"{name},{'a|b' if number % 3 else 'a'}" for number, name in enumerate(names)]
    Path("photos/tags.csv").write_text("\n".join(["path,tags", *rows]), encoding="utf-8")
    decide("1.png,relabel,b,", "2.png,relabel,,", "3.png,leave out,,")
    table = ["data=table", "data.file=photos/tags.csv", "data.image_size=16", "task=tags", DECIDED]
    run.succeeds("vit-train", *table, *SMALL_MODEL, "train.max_minutes=1e-9", "hydra.run.dir=run")
    rows = {row["path"]: row for row in csv_rows("run/images.csv")}
    assert [rows[f"{number}.png"]["tags"] for number in range(5)] == ["a", "b", "", "a", "a|b"]
    assert rows["3.png"]["split"].startswith("left out of")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cv_folds": 3, "cv_fold": 1},
        {"val": "test", "test_subset": 10},
        {"val": "none", "train_subset": 30},
    ],
    ids=str,
)
@pytest.mark.parametrize("has_groups", [False, True])
def test_every_division_comes_before_the_decisions(
    settings: dict[str, object], has_groups: bool
) -> None:
    rng = np.random.default_rng(0)

    def images(first: int, count: int) -> ImageSet:
        numbers = np.arange(first, first + count)
        labels = torch.from_numpy(rng.integers(0, 3, count))
        decided = torch.from_numpy(rng.integers(-1, 3, count))
        groups = (numbers // 2).astype(str).astype(object) if has_groups else None
        pixels = torch.from_numpy(numbers).view(-1, 1, 1, 1).byte()
        return ImageSet(pixels, labels, names=numbers, groups=groups, decided=decided)

    train, test = images(0, 60), images(60, 30)
    config = FolderConfig(root="photos", **settings)  # type: ignore[arg-type]

    def divided(decided: bool) -> Splits:
        parts = [part if decided else undecided(part) for part in (train, test)]
        return make_splits(Dataset(*parts, classes=("a", "b", "c")), config)

    final = {
        number: label
        for part in (train, test)
        for number, label in zip(part.all_names.tolist(), part.decided.tolist(), strict=True)
    }  # type: ignore[union-attr]
    before, after = divided(False), divided(True)
    for name, part in after.parts.items():
        own = before.parts[name].all_names.tolist()
        kept = [number for number in own if final[number] >= 0]
        assert part.all_names.tolist() == kept == part.images.flatten().tolist()
        assert part.labels.tolist() == [final[number] for number in kept]
        left = after.left_out[name].all_names.tolist()
        assert left == [number for number in own if final[number] < 0]


def undecided(images: ImageSet) -> ImageSet:
    return ImageSet(**{**images.columns, "decided": None})
