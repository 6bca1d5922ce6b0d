"""What a path to a run, to its folder or to one of its files means."""

import json
import os
import shutil
from pathlib import Path

import pytest
from checkpoints import write
from conftest import SMALL, Run, SmallRun

from vit_train.runs.paths import checkpoint_at, run_at
from vit_train.runs.trained import load


def made(folder: Path, status: str, seconds: int) -> Path:
    """The summary of a run that ended so many seconds after the epoch."""
    folder.mkdir(parents=True)
    summary = folder / "summary.json"
    summary.write_text(json.dumps({"status": status}), encoding="utf-8")
    os.utime(summary, (seconds, seconds))
    return folder


def test_a_folder_means_its_best_checkpoint_or_its_last(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="and no runs: name a run's folder"):
        checkpoint_at(tmp_path)
    write(tmp_path / "checkpoints/last.safetensors")
    assert checkpoint_at(tmp_path).name == "last.safetensors"
    write(tmp_path / "checkpoints/best.safetensors")
    assert checkpoint_at(tmp_path).name == "best.safetensors"
    (tmp_path / "checkpoints" / "best.safetensors").unlink()
    # As a kill leaves it, between the two renames of a save.
    (tmp_path / "checkpoints" / "last.safetensors").rename(
        tmp_path / "checkpoints" / "last-1.safetensors"
    )
    assert checkpoint_at(tmp_path).name == "last-1.safetensors"


def test_the_newest_finished_run_counts_whatever_it_is_called(tmp_path: Path) -> None:
    made(tmp_path / "b", "finished", 10)
    newest = made(tmp_path / "a", "finished", 20)
    made(tmp_path / "c", "interrupted", 30)
    (made(tmp_path / "d", "finished", 40) / "summary.json").write_text("{", encoding="utf-8")
    assert run_at(tmp_path) == newest


def test_a_run_a_file_and_nothing_stand_for_themselves(tmp_path: Path) -> None:
    made(tmp_path / "run" / "inside", "finished", 10)
    (tmp_path / "run" / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    for path in (tmp_path / "run", tmp_path / "run/config.yaml", tmp_path / "nowhere"):
        assert run_at(path) == path


def test_no_finished_run_is_said(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "a", "running", 10)
    with pytest.raises(ValueError, match=r"none of the runs in .*runs is finished: name one"):
        run_at(tmp_path / "runs")


def test_vit_eval_load_and_init_from_take_a_folder_of_runs(run: Run, small_run: SmallRun) -> None:
    finished = small_run("finished", "runs/one")
    shutil.copytree(finished, "runs/two")
    Path("runs/two/summary.json").write_text('{"status": "interrupted"}', encoding="utf-8")
    words = "taking the newest finished run: runs/one"
    outcome = run.succeeds("vit-eval", "ckpt=runs")
    assert words in outcome.out
    assert Path("runs/one/eval-test/results.json").exists()
    assert load("runs")[1].path == Path("runs/one/checkpoints/best.safetensors")
    outcome = run.succeeds(
        "vit-train", *SMALL, "init_from=runs", "train.epochs=1", "hydra.run.dir=new"
    )
    assert words in outcome.out
    assert words in Path("new/train.log").read_text(encoding="utf-8")
    Path("runs/one/summary.json").write_text('{"status": "diverged"}', encoding="utf-8")
    outcome = run("vit-eval", "ckpt=runs")
    assert (outcome.status, outcome.err) == (
        1,
        "vit-eval: none of the runs in runs is finished: name one of them\n",
    )
