"""A run that was interrupted goes on as if nothing had happened: to the last bit."""

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import rewrite
from conftest import SMALL, Run, SmallRun, csv_rows, posix
from filelock import FileLock
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit_train.base.reading import read_json
from vit_train.base.writing import generations, write_json
from vit_train.engine import precision, workers
from vit_train.engine.state import Best
from vit_train.results.summaries import settings_of
from vit_train.runs.checkpoint import Checkpoint, apart
from vit_train.training import checkpoints as checkpoint_manager
from vit_train.training import folder as run_folder

# 5 steps an epoch; points of the curves and checkpoints fall on different steps.
STEPS = ["train.epochs=3", "train.log_every=2", "checkpoint.every_steps=3"]
CONFIGS = {
    "plain": [],
    "noisy": [
        *("train.ema_decay=0.9", "train.micro_batch=8", "augment=strong", "model.dropout=0.1"),
        *("data.sampler=balanced", "task.class_weights=[1,2,3,4,5,1,2,3,4,5]", "optim=muon"),
    ],
    "reconstruct": ["task=reconstruct", "task.decoder_depth=1"],
    "cnn": ["model=cnn", "model.widths=[4,8]"],
    "saved at the last step of epochs": ["checkpoint.every_steps=5"],
}
CLOCK = {"images_per_s", "seconds"}


def arguments(config: str) -> list[str]:
    model = [each for each in SMALL if not (config == "cnn" and each.startswith("model."))]
    return [*model, *STEPS, *CONFIGS[config]]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.endswith("images_per_s")]
    # Files that were begun in the same second are read in any order.
    return {tag: sorted((each.step, each.value) for each in events.Scalars(tag)) for tag in tags}


def rows(folder: Path) -> list[dict[str, str]]:
    table = csv_rows(folder / "metrics.csv")
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in table]


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("last.safetensors", "best.safetensors"):
        states = [Checkpoint.load(each / "checkpoints" / name) for each in (one, other)]
        for key in ("step", "epoch", "batch", "images_seen", "best", "lr", "extends"):
            assert getattr(states[0], key) == getattr(states[1], key), key
        tensors = [apart(state)[1] for state in states]
        assert tensors[0].keys() == tensors[1].keys()
        assert any(name.startswith("optimizers.") for name in tensors[0])
        for name, value in tensors[0].items():
            assert name.startswith("random.") or torch.equal(value, tensors[1][name]), name
    assert rows(one) == rows(other)
    assert scalars(one) == scalars(other)
    results = [read_json(each / "summary.json") for each in (one, other)]
    for key in ("status", "test", "best_val", "epochs", "steps", "images_seen"):
        assert results[0][key] == results[1][key], key


class Killed(BaseException):
    pass


def dies_after(saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run be killed when it would save for the next time after so many."""
    save = checkpoint_manager.save_archive

    def dying(*what: object, **more: object) -> None:
        nonlocal saves
        if saves == 0:
            raise Killed
        saves -= 1
        save(*what, **more)

    monkeypatch.setattr(checkpoint_manager, "save_archive", dying)
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)  # also after every epoch


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker threads, as users have them; the tests of one machine are run on a core each."""
    monkeypatch.setattr(workers, "CORES", 2)


@pytest.fixture
def undisturbed(run: Run, small_runs: Path, two_cores: None) -> Callable[[str], Path]:
    """The run of a config that nothing disturbed, made once for all processes of pytest-xdist."""

    def made(config: str) -> Path:
        folder = small_runs / f"undisturbed {config}"
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                run.succeeds("vit-train", *arguments(config), f"hydra.run.dir='{folder}'")
        return folder

    return made


@pytest.mark.parametrize(
    "config, saves",
    [
        ("plain", 0),
        ("noisy", 3),
        ("reconstruct", 1),
        ("cnn", 1),
        ("saved at the last step of epochs", 4),
    ],
)
def test_a_killed_run_goes_on_to_the_same_end(
    run: Run,
    undisturbed: Callable[[str], Path],
    config: str,
    saves: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = undisturbed(config)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dies_after(saves, patch)
        run("vit-train", *arguments(config), "hydra.run.dir=killed")
    run.succeeds("vit-train", "resume=killed")
    assert_same_run(whole, Path("killed"))


def test_a_finished_run_is_not_trained_again(run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    before = {path: path.stat().st_mtime for path in Path("run").rglob("*")}
    for resumed in ("run", "run/checkpoints/best.safetensors"):
        outcome = run.succeeds("vit-train", f"resume={resumed}", "seed=0")
        assert "run is finished" in outcome.out
    with contextlib.chdir("run/checkpoints"):
        assert "run is finished" in run.succeeds("vit-train", "resume=last.safetensors").out
    for change, words in {
        "seed=1": "cannot change seed when resuming",
        "train.epochs=4": "leave it out, start a new run, or extend= a finished one\n",
        "+train.epoch=5": "did you mean train.epochs?",
    }.items():
        run.fails(words, "vit-train", "resume=run", change)
    assert {path: path.stat().st_mtime for path in Path("run").rglob("*")} == before


def test_a_run_stops_in_time_and_resumes(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted")
    summary = read_json(Path("run/summary.json"))
    assert summary["status"] == "interrupted" and summary["steps"] == 1
    outcome = run.succeeds("vit-train", "resume=run")  # with the same limit: again one step
    assert "resuming after step 1" in outcome.out
    assert "its time is up (train.max_minutes counts anew from each start" in outcome.out
    assert "Resume with: vit-train resume=run\n" in outcome.out
    outcome = run.succeeds("vit-train", "resume=run", "train.max_minutes=60")
    assert "resuming after step 2" in outcome.out
    assert_same_run(small_run("finished", "undisturbed"), Path("run"))


def test_a_setting_that_training_depends_on_cannot_be_changed(
    run: Run, small_run: SmallRun
) -> None:
    small_run("interrupted")
    for change in ("seed=1", "data=cifar10", "optim.lr=0.1", "experiment=quickstart"):
        key = change.partition("=")[0]
        words = f"cannot change {key} when resuming ("
        outcome = run.fails(words, "vit-train", "resume=run", change)
        assert key != "seed" or "(this run has seed=0): leave it" in outcome.err
    words = "write checkpoint.NAME=VALUE, not checkpoint={…}"
    run.fails(words, "vit-train", "resume=run", "checkpoint={every_steps: 3}")
    allowed = ["train.log_every=3", "checkpoint.keep=0", "device=cpu"]
    run.succeeds("vit-train", "resume=run", *SMALL, *allowed)
    assert "log_every: 3" in Path("run/config.yaml").read_text(encoding="utf-8")


def test_a_run_keeps_its_precision_on_another_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ["vit-train", *SMALL, "train.max_minutes=1e-9", "hydra.run.dir=run"]
    with monkeypatch.context() as there:
        there.setattr(precision, "product_speedup", lambda *sides, threads: 2.0)
        assert "bf16 on" in run(*begin).out
    assert "bf16 on" in run("vit-train", "resume=run").out
    chosen = ["train.max_minutes=null", "precision=fp32"]
    assert "fp32 on" in run.succeeds("vit-train", "resume=run", *chosen).out
    used = settings_of(read_json(Path("run/summary.json")))["precision"]
    assert used == "bf16, then fp32"
    assert "fp32" in run("vit-eval", "ckpt=run").out  # where bf16 would be emulated


def test_other_images_than_it_began_with_are_refused(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted")
    Path("run/config.yaml").unlink()  # the checkpoint has all of it, too
    path = Path("run/checkpoints/last.safetensors")
    kept, before = path.read_bytes(), reports(Path("run"))
    changes: list[dict[str, Any]] = [{"fingerprint": "0"}, {"model": {}}]
    for change in changes:
        path.write_bytes(kept)
        rewrite(path, **change, written={})
        refused = run.fails("not from this run", "vit-train", "resume=run")
        assert ("the images on disk are not those" in refused.err) == ("fingerprint" in change)
        assert reports(Path("run")) == before  # nothing is cut for a state that does not fit
    path.write_bytes(kept)
    rewrite(path, fingerprint="0")
    assert "not those of the training run" in run("vit-eval", "ckpt=run").out
    path.write_bytes(kept)
    assert "not those" not in run("vit-eval", "ckpt=run").out
    run.succeeds("vit-train", "resume=run", "train.max_minutes=null")
    summary = read_json(Path("run/summary.json"))
    assert "max_minutes=1e-9" in summary["command"] and "resume" not in summary["command"]


def reports(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()
            and path.name not in ("train.log", ".lock")}  # fmt: skip


def test_a_run_without_a_checkpoint_keeps_its_command(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted")
    shutil.rmtree("run/checkpoints")
    run.succeeds("vit-train", "resume=run")
    summary = read_json(Path("run/summary.json"))
    assert "resume" not in summary["command"] and summary["steps"] == 1
    assert summary["earlier"] == []


def test_a_resumed_run_names_all_that_trained_it(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted")
    before = read_json(Path("run/summary.json")) | {"commit": "a" * 40}
    write_json(Path("run/summary.json"), before)
    assert run("vit-train", "resume=run", "train.max_minutes=null").status == 0
    (earlier,) = read_json(Path("run/summary.json"))["earlier"]
    assert earlier == {key: before[key] for key in run_folder.HERE}
    assert "| aaaaaaa, " in run("vit-results", "run").out


def test_a_run_ends_without_its_best_weights_if_they_are_damaged(
    run: Run, small_run: SmallRun
) -> None:
    path = small_run("interrupted") / "checkpoints/last.safetensors"
    rewrite(path, best=Best(9, 0.99, {"acc": 0.99, "loss": 0.1}))
    Path("run/checkpoints/best.safetensors").write_bytes(b"damaged")
    outcome = run("vit-train", "resume=run", "train.max_minutes=null")
    assert outcome.status == 0 and "the best weights are lost" in outcome.err + outcome.out


def test_a_damaged_curve_is_not_continued(run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    as_if_running(Path("run"))
    curve = Path("run/metrics.csv")
    text = curve.read_text(encoding="utf-8")
    # A letter; a column more in the first rows, so that the length noted cuts through the last.
    for other in (text.rstrip()[:-1] + "x\n", text.replace("\n", ",0\n")):
        curve.write_text(other, encoding="utf-8")
        run.fails("metrics.csv is damaged: move it away", "vit-train", "resume=run")


def as_if_running(folder: Path) -> None:
    summary = read_json(folder / "summary.json")
    (folder / "summary.json").write_text(
        json.dumps(summary | {"status": "running"}), encoding="utf-8"
    )


def test_a_folder_has_one_writer(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted")
    with FileLock("run/.lock"):
        outcome = run("vit-train", "resume=run", "train.max_minutes=null")
    assert outcome.status == 1 and "another process is training in run" in outcome.err
    assert run("vit-train", "resume=run", "train.max_minutes=null").status == 0


def test_a_lost_report_is_said(run: Run, undisturbed: Callable[[str], Path]) -> None:
    shutil.copytree(undisturbed("plain"), "run")
    as_if_running(Path("run"))
    Path("run/metrics.csv").unlink()
    assert "metrics.csv is missing or too short" in run("vit-train", "resume=run").out


@pytest.mark.parametrize("name", ["lr=0.1,(a b)", "a\\b\\\\'c\\"])
def test_a_folder_of_any_name_goes_on(run: Run, small_run: SmallRun, name: str) -> None:
    small_run("interrupted", name)
    outcome = run.succeeds("vit-train", f"resume={name}")
    assert shlex.split(outcome.out.rpartition("Resume with: ")[2])[1] == f"resume={name}"
    assert run("vit-eval", f"ckpt={name}").status == 0


def test_what_cannot_go_on_is_refused(run: Run, small_run: SmallRun) -> None:
    Path("empty").mkdir()
    for folder, words in (("empty", "there is no run in empty"), ("nowhere", "no such folder")):
        run.fails(words, "vit-train", f"resume={folder}")
        assert not Path(folder, "train.log").exists()
    small_run("interrupted")
    for text in ("model: [", "5", "seed: !!timestamp foo"):
        Path("run/config.yaml").write_text(text, encoding="utf-8")
        run.fails("config.yaml cannot be read: ", "vit-train", "resume=run")


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_named(
    run: Run, undisturbed: Callable[[str], Path]
) -> None:
    whole = undisturbed("plain")
    shutil.copytree(whole, "run")
    as_if_running(Path("run"))
    last = Path("run/checkpoints/last.safetensors")
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    outcome = run.fails(
        "run/checkpoints/last.safetensors: it is damaged", "vit-train", "resume=run"
    )
    assert "last-1.safetensors is intact" in outcome.err
    command, argument = shlex.split(outcome.err.rpartition("resume from it with: ")[2])
    assert (command, Path(argument).name) == ("vit-train", "last-1.safetensors")
    run.succeeds(command, argument)
    assert_same_run(whole, Path("run"))


def test_the_newest_checkpoint_there_is_goes_on(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted")
    assert "resume continues a single run" in run("vit-train", "-m", "resume=run").err
    assert not Path("outputs").exists()
    Path("run/checkpoints/last.safetensors").rename("run/checkpoints/last-10.safetensors")
    Path("run/checkpoints/last-9.safetensors").write_bytes(
        Path("run/checkpoints/last-10.safetensors").read_bytes()
    )
    assert [path.name for path in generations(Path("run/checkpoints/last.safetensors"))] == [
        "last-9.safetensors", "last-10.safetensors",
    ]  # fmt: skip
    run.succeeds("vit-train", "resume='run/checkpoints'", "train.max_minutes=null")
    assert "run is finished" in run("vit-train", 'resume="run"').out


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_run_after_the_step_and_it_goes_on(
    run: Run,
    undisturbed: Callable[[str], Path],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number, whole = signal.Signals[name], undisturbed("plain")
    save, saved = checkpoint_manager.save_archive, []

    def signalled(*what: object) -> None:
        save(*what)
        saved.append(what)
        if len(saved) == 2:  # in the middle of the run
            assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
            os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)  # even if the tests run under nohup
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_manager, "save_archive", signalled)
        outcome = run("vit-train", *arguments("plain"), "hydra.run.dir=run")
    signal.signal(number, before)
    assert outcome.status == 128 + number and "Traceback" not in outcome.err, outcome.err
    assert (
        f"on {number.name}. Resume with: vit-train resume={Path('run').absolute()}" in outcome.out
    )
    step = read_json(Path("run/summary.json"))["steps"]
    assert Checkpoint.load(Path("run/checkpoints/last.safetensors")).step == step < 15
    assert run("vit-train", "resume=run").status == 0
    assert_same_run(whole, Path("run"))


def test_a_run_that_is_killed_at_its_very_end_misses_nothing(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status "finished" is written last, when all else is on the disk."""
    whole = small_run("finished", "whole")
    write = run_folder.write_json

    def dying(path: Path, content: dict[str, object]) -> None:
        write(path, content)
        if content["status"] == "finished":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_json", dying)
        with pytest.raises(Killed):
            run("vit-train", *SMALL, "hydra.run.dir=killed")
    assert_same_run(whole, Path("killed"))


def test_a_folder_of_runs_names_those_that_are_unfinished(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "runs/a")
    small_run("interrupted", "runs/b")
    run.fails("Unfinished runs below it: runs/b\n", "vit-train", "resume=runs")
    run.fails("Unfinished runs below it: runs/b\n", "vit-train", "resume=.")
