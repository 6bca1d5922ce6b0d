"""Text from outside is shown, and does nothing."""

import csv
import io
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from checkpoints import rewrite
from conftest import SMALL_MODEL, Run, SmallRun, posix
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit_train.base.reading import read_json
from vit_train.base.text import (
    counted,
    csv_text,
    file_name,
    markdown_cell,
    print_signs_in_any_encoding,
    printable,
)
from vit_train.runs.checkpoint import Checkpoint

# Colours, a bell, another line, text that runs backwards, mathematics, Markdown, no UTF-8.
NAMES = ["\x1b[31mred\x1b[2J\a", "a\nepoch 9 acc 99%", "\u202egpj", "$\\frac$", "|**b**|", "\udcff"]


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_what_is_shown_can_be_printed_and_ends_no_line(text: str) -> None:
    for shown in (printable(text), markdown_cell(text)):
        assert shown.isprintable()
        shown.encode()
    assert printable(text, keep="\n").count("\n") == text.count("\n")


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="ab|\\"))
def test_a_cell_stays_one(text: str) -> None:
    unescaped = markdown_cell(text).replace("\\\\", "").replace("\\|", "")
    assert "|" not in unescaped and "\\" not in unescaped


@pytest.mark.parametrize("text", ["猫" * 60, "a/b", "a" * 60 + "b", "caf\udce9", "x\n"])
def test_a_files_name_is_short_and_of_one_text(text: str) -> None:
    name = file_name(text)
    assert len(name.encode()) <= 47 and "/" not in name and name.isprintable()
    assert name != text and file_name(f"{text}c") != name


def test_no_name_is_a_formula_and_numbers_stay_numbers() -> None:
    names = ["=1+1", "+1+1", "-cat", "@SUM(A1)", "\t=1", "\r=1", "-1+1", "-"]
    (row,) = csv.reader(io.StringIO(csv_text([names]), newline=""))
    assert row == [f"'{name}" for name in names]
    kept = ["cat", "a=b", "", "-0.5", "+1e-05", "-3", 0.5, -2, "'=1"]
    (row,) = csv.reader(io.StringIO(csv_text([kept]), newline=""))
    assert row == [str(cell) for cell in kept]


def test_plain_text_stays_as_it_is() -> None:
    assert markdown_cell("__init__ ~~x~~ _y_") == r"\_\_init\_\_ \~\~x\~\~ \_y\_"
    for text in ("größe", "猫 🐈", "learned_2d", "[8, 16]", "1.5e-3", ""):
        assert printable(text) == text and markdown_cell(text) == text


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", "cat 3 ? 4 ?? ? ?\n"),
        ("latin-1", "cat 3 × 4 ?? ± ?\n"),
        ("utf-8", "cat 3 × 4 █… ± 猫\n"),
    ],
)
def test_a_terminal_of_any_encoding_shows_every_line(
    encoding: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stream)
    print_signs_in_any_encoding()
    print("cat 3 × 4 █… ± 猫", flush=True)
    assert stream.buffer.getvalue().decode(encoding) == expected


def test_names_of_classes_and_files_do_nothing_to_the_terminal(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in NAMES:
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(8):
                pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
        (folder / "\x1b[2Jbroken.png").write_bytes(b"no image")
    data = ["data=folder", "data.root=images", "data.image_size=32"]
    outcome = run("vit-train", *SMALL_MODEL, *data, "hydra.run.dir=run")
    assert outcome.status == 1 and "\\x1b[2Jbroken.png" in outcome.err
    assert printable(outcome.err, keep="\n") == outcome.err
    outcome = run("vit-train", *SMALL_MODEL, *data, "data.on_error=skip", "hydra.run.dir=again")
    assert outcome.status == 0, outcome.err
    assert "\\x1b[2Jbroken.png" in outcome.out
    table = run("vit-eval", "ckpt=again")
    assert table.status == 0, table.err
    for shown in (outcome, table):
        assert printable(shown.out, keep="\n") == shown.out and shown.err == ""
    assert sum(" of " in line and "%" in line for line in table.out.splitlines()) == len(NAMES)
    log = Path("again/train.log").read_text(encoding="utf-8")
    assert printable(log, keep="\n") == log


def test_a_checkpoints_words_do_nothing_to_the_terminal(run: Run, small_run: SmallRun) -> None:
    path = small_run("finished") / "checkpoints/best.safetensors"
    config = Checkpoint.load(path).config
    config["data"]["name"] = config["seed"] = "\x1b[2J"
    rewrite(path, config=config)
    outcome = run("vit-eval", "ckpt=run")
    assert outcome.status == 1 and printable(outcome.err, keep="\n") == outcome.err


@posix
def test_names_of_folders_do_nothing_to_the_terminal(run: Run, small_run: SmallRun) -> None:
    evil = "\x1b[2Jrun"
    small_run("finished", evil)
    for arguments in (
        ["vit-train", f"resume={evil}"],
        ["vit-results", evil],
        ["vit-results", evil, f"--{evil}"],
    ):
        outcome = run(*arguments)
        said = outcome.out + outcome.err
        assert "\\x1b[2Jrun" in said and printable(said, keep="\n") == said, said


def test_a_setting_cannot_end_the_code_that_tensorboard_shows(run: Run) -> None:
    small = ["data.train_images=100", "data.test_images=20", *SMALL_MODEL]
    fence = "data.root='a\n```\n<script>alert(1)</script>'"
    outcome = run("vit-train", *small, "train.max_minutes=1e-9", fence, "hydra.run.dir=run")
    assert outcome.status == 0, outcome.err
    events = EventAccumulator("run").Reload()
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "script" in text and all(line.startswith("    ") for line in text.splitlines() if line)


@posix
def test_a_path_that_is_not_utf8_costs_no_results(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["data.train_images=100", "data.test_images=20", *SMALL_MODEL, "train.epochs=1"]
    Path("d\udcff").mkdir()
    outcome = run("vit-train", *small, "data.root=d\udcff", "hydra.run.dir=run")
    assert outcome.status == 0, outcome.err
    assert read_json(Path("run/summary.json"))["status"] == "finished"


def test_a_summarys_words_do_nothing_to_the_table(run: Run, small_run: SmallRun) -> None:
    for number in range(2):
        small_run("finished", f"runs/{number}")
    path = Path("runs/0/summary.json")
    summary = read_json(path)
    summary["config"]["model"]["positions"] = "$\\frac$ | <b> \x1b[2J \u732b"
    path.write_text(json.dumps(summary), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = run("vit-results", "runs")
    assert outcome.status == 0, outcome.err
    assert printable(outcome.out, keep="\n") == outcome.out and r"\| \<b>" in outcome.out
    for broken in ({"test": None}, {"config": 3}, {"parameters": "many"}, {"seconds": {}}):
        path.write_text(json.dumps(summary | broken), encoding="utf-8")
        outcome = run("vit-results", "runs")
        assert outcome.status == 1 and "is not a summary written by vit-train" in outcome.err


def test_counts_are_in_the_singular_or_the_plural() -> None:
    assert counted(1, "class") == "1 class" and counted(0, "class") == "0 classes"
    assert counted(1, "test image") == "1 test image" and counted(2000, "step") == "2,000 steps"
