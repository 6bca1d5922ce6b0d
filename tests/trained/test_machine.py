import platform
import subprocess
from pathlib import Path

import pytest
import torch

from vit_train.base import machine


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *settings, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


commit = machine.commit.__wrapped__  # which asks git anew


def test_the_commit_is_that_of_the_checkout_with_a_mark_for_changes(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("1", encoding="utf-8")
    assert commit(tmp_path) is None  # no checkout
    git(tmp_path, "init")
    assert commit(tmp_path) is None  # without a commit
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes").write_text("untracked files are none of the program's", encoding="utf-8")
    assert commit(tmp_path) == head
    file.write_text("2", encoding="utf-8")
    assert commit(tmp_path) == f"{head}+changes"


def test_the_commit_is_the_one_at_the_start(tmp_path: Path) -> None:
    for _ in range(2):
        git(tmp_path, "init")
        git(tmp_path, "commit", "--allow-empty", "-m", "next")
        assert machine.commit(tmp_path) == git(tmp_path, "rev-list", "--max-parents=0", "HEAD")


def test_the_cpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    names = "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nmodel name\t: other\n"
    (tmp_path / "named").write_text(names, encoding="utf-8")
    (tmp_path / "unnamed").write_text("processor\t: 0\nFeatures\t: asimd\n", encoding="utf-8")
    # There is no such file on macOS and Windows.
    for file, cpu in (("named", "Fast CPU @ 3 GHz"), ("unnamed", "arm"), ("missing", "arm")):
        monkeypatch.setattr(machine, "CPUINFO", tmp_path / file)
        found = machine.hardware(torch.device("cpu"))
        assert (found["cpu"], found["cpu_capability"]) == (cpu, "AVX512"), file
