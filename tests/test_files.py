"""Reads are bounded; nothing is written through a link, and no reader sees half a file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import posix

from vit_train.base import reading as plain_values
from vit_train.base import writing
from vit_train.base.reading import (
    Refused,
    near_path,
    open_regular,
    read_config,
    read_json,
    read_text,
    require_config,
    require_plain,
)
from vit_train.base.writing import (
    exclusive,
    new_folder,
    open_to_append,
    remove_partial,
    replacing,
    write_from,
    write_text,
)


@posix
def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_text(tmp_path / "file", 5) == "12345"
    with pytest.raises(Refused, match="larger than 4 bytes"):
        read_text(tmp_path / "file", 4)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", "."):
        with pytest.raises(Refused, match="not a regular file"), open_regular(tmp_path / name):
            pass
    with pytest.raises(FileNotFoundError), open_regular(tmp_path / "nothing"):
        pass
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(Refused, match="file is not text"):
        read_text(tmp_path / "file", 5)


@posix
def test_what_is_spelled_like_a_missing_path_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "outputs/cifar10-tiny").mkdir(parents=True)
    found = tmp_path / "outputs/cifar10-tiny"
    assert near_path(tmp_path / "outputs/cifar10-tny") == f", did you mean {found}?"
    for missing in ("photos", "output/cifar10-tiny", "outputs/stl10"):
        assert near_path(tmp_path / missing) == ""


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious", encoding="utf-8")
    link.symlink_to(victim)
    write_text(link, "ours")
    assert victim.read_text(encoding="utf-8") == "precious"
    assert link.read_text(encoding="utf-8") == "ours" and not link.is_symlink()


@posix
@pytest.mark.parametrize("write", [open_to_append, lambda path: write_from(path, 0, b"")])
def test_nothing_is_appended_or_cut_through_a_link(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious", encoding="utf-8")
    link.symlink_to(victim)
    with pytest.raises(Refused, match="is a symbolic link"):
        write(link)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="not a regular file"):
        write(tmp_path / "pipe")
    assert victim.read_text(encoding="utf-8") == "precious"


def test_appending_and_cutting(tmp_path: Path) -> None:
    for _ in range(2):
        with open_to_append(tmp_path / "log") as file:
            file.write("né\n")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "né\nné\n"
    for content, expected in ((b"", "né\n"), (b"more", "né\nmore")):
        write_from(tmp_path / "log", 4, content)
        assert (tmp_path / "log").read_text(encoding="utf-8") == expected
    with pytest.raises(FileNotFoundError):
        write_from(tmp_path / "gone", 4, b"more")


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half")
        raise KeyError
    assert os.listdir(tmp_path) == ["file"] and path.read_text(encoding="utf-8") == "old"
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text(encoding="utf-8") == "old"
        (unfinished,) = tmp_path.glob("*.partial")
    assert path.read_text(encoding="utf-8") == "new" and not unfinished.exists()
    unfinished.write_text("of a process that was killed", encoding="utf-8")
    remove_partial(tmp_path, seconds=60)
    assert unfinished.exists()
    remove_partial(tmp_path)
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_replaced_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("fsync"), sync(fd)))
    monkeypatch.setattr(Path, "replace", lambda *a: (events.append("rename"), rename(*a)))
    write_text(tmp_path / "file", "x")
    assert events == ["fsync", "rename"]


def doubled(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value, words",
    [
        (doubled(31), "too many values"),
        ([0] * 101, "too many values"),
        ({1.5: 0}, "a key"),
        ([{"a": 2**64}], "64 bits"),
        ([-(2**63) - 1], "64 bits"),
        ({"a": {1, 2}}, "holds a set"),
        ([b"x"], "holds a bytes"),
    ],
)
def test_what_is_not_plain_is_refused(value: object, words: str) -> None:
    with pytest.raises(Refused, match=f"the file .*{words}"):
        require_plain(value, "the file", nodes=100)


def test_plain_values_pass() -> None:
    value = {"a": [1, -(2**63), 2**64 - 1, 0.5, None, True, ("x", {3: "é"})], "b": float("nan")}
    require_plain(value, "it", nodes=100)
    require_plain([0] * 99, "it", nodes=100)
    require_plain([{1}], "it", nodes=100, others=(set,))
    deep: object = 0
    for _ in range(plain_values.DEPTH):
        deep = [deep]
    require_plain(deep, "it", nodes=100)
    with pytest.raises(Refused):
        require_plain([deep], "it", nodes=100)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": ' * 50_000,
        "9" * 5000,
        "[1,",
        "{'a': 1}",
        "\ufeff{}",
        '{"a": 1' + "0" * 30 + "}",
    ],
)
def test_damaged_json_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=r"summary\.json"):
        read_json(path)
    path.write_text('{"a": [1, 2.5, null]}', encoding="utf-8")
    assert read_json(path) == {"a": [1, 2.5, None]}


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}]\n"
    for before, name in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
)


HOSTILE = "has an alias .* or too many or deeply nested values"


@pytest.mark.parametrize(
    "text, words",
    [
        *((text, HOSTILE) for text in (LAUGHS, "a: &a 1\n", "<<: *b\n", "a: " + "[" * 1000)),
        *((text, HOSTILE) for text in ("- " * 1000 + "x", "[" + "1," * 5000 + "1]")),
        ("x" * 200_000, "larger than"),
        *((text, "cannot be read") for text in ("a: [", "a: \x07")),
    ],
)
def test_yaml_made_to_take_for_ever_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=words):
        read_config(tmp_path / "config.yaml")


def test_settings_that_look_something_up_are_refused() -> None:
    require_config({"data": {"root": "a$b{c}", "urls": ["x"]}}, "it")
    for stored in ({"a": "${seed}"}, {"a": ["x${oc.env:HOME}"]}, {"${seed}": 1}):
        with pytest.raises(Refused, match="an interpolation"):
            require_config(stored, "it")
    with pytest.raises(Refused, match="no settings"):
        require_config(["a"], "it")


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    for write in (replacing, new_folder):
        asked_for = write(tmp_path / "nowhere" / "file")
        with pytest.raises(OSError, match="No such file") as caught, asked_for:
            pass
        assert caught.value.filename == str(tmp_path / "nowhere" / "file")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_error_of_the_disk_names_the_file(tmp_path: Path, number: int) -> None:
    """Writing names none."""
    with pytest.raises(OSError, match=os.strerror(number)) as caught, replacing(tmp_path / "file"):
        raise OSError(number, os.strerror(number))
    assert caught.value.filename == str(tmp_path / "file") and not list(tmp_path.iterdir())


@posix
def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="pipe is not a regular file"):
        write_text(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1
    (tmp_path / "link").symlink_to("pipe")  # the link is replaced, and the pipe stays
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "pipe").is_fifo() and not (tmp_path / "link").is_symlink()


def test_a_folder_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyError), new_folder(tmp_path / "new") as folder:
        (folder / "file").touch()
        raise KeyError
    with new_folder(tmp_path / "new") as folder:
        (folder / "file").touch()
    with pytest.raises(Refused, match="exists already"), new_folder(tmp_path / "new"):
        pass
    assert (tmp_path / "new/file").exists()


@posix
@pytest.mark.parametrize("number", [*writing.NO_LOCKS, errno.EACCES])
def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(*what: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing.fcntl, "flock", refuse)
    if number == errno.EACCES:  # that is another fault
        with pytest.raises(PermissionError, match="lock"), exclusive(tmp_path / "lock"):
            pass
        return
    with exclusive(tmp_path / "lock"), exclusive(tmp_path / "lock"):
        assert f"lock cannot be locked ({os.strerror(number)})" in caplog.text
