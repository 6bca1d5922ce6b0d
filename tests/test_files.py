"""Files are read or refused, and written whole; text from outside is shown, and does nothing."""

import csv
import errno
import io
import os
from pathlib import Path

import pytest
from checkpoints import rewrite
from conftest import SMALL, SMALL_MODEL, Outcome, Run, SmallRun, posix, write_images
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit_train.base.reading import (
    Refused,
    near_path,
    read_json,
    require_config,
)
from vit_train.base.text import (
    csv_text,
    file_name,
    markdown_cell,
    printable,
    replace_unencodable_characters,
)
from vit_train.base.writing import (
    new_folder,
    remove_partial,
    replacing,
    write_from,
    write_json,
    write_text,
)
from vit_train.trained.checkpoint import Checkpoint


@posix
def test_the_most_similar_path_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "outputs/cifar10-tiny").mkdir(parents=True)
    near = f", did you mean {tmp_path}/outputs/cifar10-tiny?"
    assert near_path(tmp_path / "outputs/cifar10-tny") == near
    for missing in ("photos", "output/cifar10-tiny", "outputs/stl10"):
        assert near_path(tmp_path / missing) == ""


@posix
def test_a_link_is_replaced_and_a_pipe_is_not(tmp_path: Path) -> None:
    victim, link, pipe = (tmp_path / name for name in ("victim", "link", "pipe"))
    victim.write_text("precious", encoding="utf-8")
    os.mkfifo(pipe)
    for target in (victim, pipe):
        link.symlink_to(target)
        write_text(link, "ours")
        assert link.read_text(encoding="utf-8") == "ours" and not link.is_symlink()
        link.unlink()
    with pytest.raises(Refused, match=r"pipe is .*not a regular file"):
        write_text(pipe, "ours")
    assert victim.read_text(encoding="utf-8") == "precious" and pipe.is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_end_of_a_file_is_replaced(tmp_path: Path) -> None:
    for start, content, text in ((0, b"row\n", "row\n"), (4, b"more", "row\nmore"), (2, b"", "ro")):
        write_from(tmp_path / "log", start, content)
        assert (tmp_path / "log").read_text(encoding="utf-8") == text
    with pytest.raises(FileNotFoundError):
        write_from(tmp_path / "gone", 4, b"more")


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half")
        raise KeyError
    assert os.listdir(tmp_path) == ["file"]
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text(encoding="utf-8") == "old"
        (unfinished,) = tmp_path.glob("*.partial")
        remove_partial(tmp_path)  # while it is being written
    assert path.read_text(encoding="utf-8") == "new" and not unfinished.exists()
    unfinished.write_text("of a process that was killed", encoding="utf-8")
    remove_partial(tmp_path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": ' * 50_000,
        "9" * 5000,
        "[1,",
        "{'a': 1}",
    ],
)
def test_damaged_json_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=r"summary\.json"):
        read_json(path)
    path.write_text('{"a": [1, 2.5, null]}', encoding="utf-8")
    assert read_json(path) == {"a": [1, 2.5, None]}


def test_settings_with_interpolations_are_refused() -> None:
    require_config({"data": {"root": "a$b{c}", "urls": ["x"]}}, "it")
    for stored in ({"a": "${seed}"}, {"a": ["x${oc.env:HOME}"]}, {"${seed}": 1}):
        with pytest.raises(Refused, match="an interpolation"):
            require_config(stored, "it")
    with pytest.raises(Refused, match="no settings"):
        require_config(["a"], "it")


def test_an_error_names_the_requested_file(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "file"
    for write in (replacing, new_folder):
        with pytest.raises(OSError, match="No such file") as caught, write(path):
            pass
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_error_of_the_disk_names_the_file(tmp_path: Path, number: int) -> None:
    """Writing names none."""
    with pytest.raises(OSError, match=os.strerror(number)) as caught, replacing(tmp_path / "file"):
        raise OSError(number, os.strerror(number))
    assert caught.value.filename == str(tmp_path / "file") and not list(tmp_path.iterdir())


# Colours, a bell, another line, text that runs backwards, mathematics, Markdown, no UTF-8.
NAMES = ["\x1b[31mred\x1b[2J\a", "a\nepoch 9 acc 99%", "\u202egpj", "$\\frac$", "|**b**|", "\udcff"]


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_shown_text_is_printable_and_ends_no_line(text: str) -> None:
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
    # Where semicolons separate cells, a cell may begin within a name.
    assert csv_text([["x;=1", "-" + "1" * 10**6 + "x"]]).startswith("x;'=1,'-1")


def test_plain_text_stays_as_it_is() -> None:
    assert markdown_cell("__init__ ~~x~~ _y_") == r"\_\_init\_\_ \~\~x\~\~ \_y\_"
    for text in ("größe", "猫 🐈", "learned_2d", "[8, 16]", "1.5e-3", ""):
        assert printable(text) == text and markdown_cell(text) == text


@pytest.mark.parametrize(
    "encoding, line",
    [
        ("ascii", "cat 3 ? 4 ?? ? ?\n"),
        ("latin-1", "cat 3 × 4 ?? ± ?\n"),
        ("utf-8", "cat 3 × 4 █… ± 猫\n"),
    ],
)
def test_a_terminal_of_any_encoding_shows_every_line(
    encoding: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stream)
    replace_unencodable_characters()
    print("cat 3 × 4 █… ± 猫", flush=True)
    assert stream.buffer.getvalue().decode(encoding) == line


def harmless(outcome: Outcome) -> str:
    """All that was printed, in which no control character is."""
    said = outcome.out + outcome.err
    assert printable(said, keep="\n") == said
    return said


def test_names_of_classes_and_files_do_nothing_to_the_terminal(run: Run) -> None:
    for split in ("train", "test"):
        names = [f"{name}/{number}.png" for name in NAMES for number in range(8)]
        write_images(Path("images", split), names)
    Path("images", "test", NAMES[0], "\x1b[2Jbroken.png").write_bytes(b"no image")
    data = ["data=folder", "data.root=images", "data.image_size=32", "hydra.run.dir=run"]
    train = ["vit-train", *SMALL_MODEL, *data]
    harmless(run.fails("\\x1b[2Jbroken.png", *train))
    assert "\\x1b[2Jbroken.png" in harmless(run.succeeds(*train, "data.on_error=skip"))
    table = harmless(run.succeeds("vit-eval", "ckpt=run")).splitlines()
    assert sum(" of " in line and "%" in line for line in table) == len(NAMES)
    log = Path("run/train.log").read_text(encoding="utf-8")
    assert printable(log, keep="\n") == log


def test_a_checkpoints_words_do_nothing_to_the_terminal(run: Run, small_run: SmallRun) -> None:
    path = small_run("finished") / "checkpoints/best.safetensors"
    config = Checkpoint.load(path).config
    config["data"]["name"] = config["seed"] = "\x1b[2J"
    rewrite(path, config=config)
    harmless(run.fails("vit-eval: ", "vit-eval", "ckpt=run"))


@posix
def test_names_of_folders_do_nothing_to_the_terminal(run: Run, small_run: SmallRun) -> None:
    evil = "\x1b[2Jrun"
    small_run("finished", evil)
    for arguments in (["vit-train", f"resume={evil}"], ["vit-results", evil]):
        assert "\\x1b[2Jrun" in harmless(run(*arguments))
    assert "\\x1b[2Jrun" in harmless(run("vit-results", evil, f"--{evil}"))


def test_a_setting_cannot_end_the_code_that_tensorboard_shows(run: Run) -> None:
    fence = "data.root='a\n```\n<script>alert(1)</script>'"
    run.succeeds("vit-train", *SMALL, "train.max_minutes=1e-9", fence, "hydra.run.dir=run")
    events = EventAccumulator("run").Reload()
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "script" in text and all(line.startswith("    ") for line in text.splitlines() if line)


@posix
def test_a_path_that_is_not_utf8_costs_no_results(run: Run) -> None:
    Path("d\udcff").mkdir()
    small = [*SMALL, "train.epochs=1", "data.root=d\udcff"]
    run.succeeds("vit-train", *small, "hydra.run.dir=run")
    assert read_json(Path("run/summary.json"))["status"] == "finished"


def test_a_summarys_words_do_nothing_to_the_table(run: Run, small_run: SmallRun) -> None:
    for number in range(2):
        small_run("finished", f"runs/{number}")
    path = Path("runs/0/summary.json")
    summary = read_json(path)
    summary["config"]["model"]["positions"] = "$\\frac$ | <b> \x1b[2J \u732b"
    write_json(path, summary)
    harmless(run.succeeds("vit-results", "runs"))
    assert r"\| \<b>" in Path("runs/results.md").read_text(encoding="utf-8")
    for broken in ({"test": None}, {"config": 3}, {"parameters": "many"}, {"seconds": {}}):
        write_json(path, summary | broken)
        run.fails("was not written by vit-train", "vit-results", "runs")
