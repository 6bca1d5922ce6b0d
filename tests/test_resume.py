"""A run that was interrupted goes on as if nothing had happened: to the last bit."""

import contextlib
import math
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
import torch
from checkpoints import rewrite
from conftest import SMALL, Run, SmallRun, csv_rows, measured, posix
from filelock import FileLock
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from vit_train.base.reading import read_json
from vit_train.base.writing import write_json
from vit_train.commands.rerun import read_settings
from vit_train.config.run import (
    TrainConfig,
    declared,
    from_checkpoint,
    may_change,
    with_defaults,
)
from vit_train.evaluate.summaries import settings_of
from vit_train.loop import device, workers
from vit_train.loop.state import Best
from vit_train.run import folder as run_folder
from vit_train.run import saver as checkpoint_manager
from vit_train.run.earlier import recipe
from vit_train.trained.checkpoint import Checkpoint, Extended, disassemble

# 5 steps an epoch; points of the curves and checkpoints fall on different steps.
STEPS = ["train.log_every=2", "checkpoint.every_steps=3"]
CONFIGS = {
    "plain": [],
    "noisy": [
        *("train.ema_decay=0.9", "train.micro_batch=8", "augment=strong", "model.dropout=0.1"),
        "deterministic=true",
        *("data.sampler=balanced", "task.class_weights=[1,2,3,4,5,1,2,3,4,5]", "optim=muon"),
    ],
    "reconstruct": ["task=reconstruct", "task.decoder_depth=1"],
    "bf16": ["precision=bf16"],
    "cnn": ["model=cnn", "model.widths=[4,8]"],
    "saved at the last step of epochs": ["checkpoint.every_steps=5"],
}
LAST = "checkpoints/last.safetensors"
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
        first, second = (Checkpoint.load(each / "checkpoints" / name) for each in (one, other))
        for key in ("step", "epoch", "batch", "images_seen", "best", "lr", "extends"):
            assert getattr(first, key) == getattr(second, key), key
        (_, tensors), (_, others) = disassemble(first), disassemble(second)
        assert tensors.keys() == others.keys()
        assert any(name.startswith("optimizers.") for name in tensors)
        for name, value in tensors.items():
            assert name.startswith("random.") or torch.equal(value, others[name]), name
    assert rows(one) == rows(other)
    assert scalars(one) == scalars(other)
    results = [read_json(each / "summary.json") for each in (one, other)]
    for key in ("status", "test", "best_val", "epochs", "steps", "images_seen"):
        assert results[0][key] == results[1][key], key


class Killed(BaseException):
    pass


Limit = Callable[[Callable[..., Any]], Callable[..., Any]]


def failing_after(calls: int, error: BaseException) -> Limit:
    """Let functions be called so often, all of them together, and then fail."""
    effects = chain(repeat(DEFAULT, calls), repeat(error))

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        mock = Mock(wraps=function, side_effect=effects)
        return lambda *what, **more: mock(*what, **more)  # which can be a method, unlike a mock

    return limited


def dies_after(saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run be killed when it would save for the next time after so many."""
    dying = failing_after(saves, Killed())(checkpoint_manager.save_archive)
    monkeypatch.setattr(checkpoint_manager, "save_archive", dying)
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)  # also after every epoch


@pytest.fixture
def undisturbed(
    run: Run, small_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """The run of a config that nothing disturbed, made once for all processes of pytest-xdist."""
    # Worker threads, as users have them; the tests of one machine are run on a core each.
    monkeypatch.setattr(workers, "CORES", 2)

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
        ("bf16", 1),
        ("cnn", 1),
        ("saved at the last step of epochs", 4),
    ],
)
def test_a_killed_run_resumes_bitwise(
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
    (Path("killed") / "metrics.csv.1-1.partial").write_text("half", encoding="utf-8")
    run.succeeds("vit-train", "resume=killed")
    assert_same_run(whole, Path("killed"))
    assert varied(whole) == varied(Path("killed")) and not list(Path("killed").rglob("*.partial"))


def varied(folder: Path) -> set[str]:
    """The settings that TensorBoard shows as those in which runs differ."""
    plugin = EventAccumulator(str(folder)).Reload().SummaryMetadata("_hparams_/experiment")
    content = HParamsPluginData.FromString(plugin.plugin_data.content)
    return {info.name for info in content.experiment.hparam_infos if info.differs}


def test_a_finished_run_is_not_trained_again(run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    before = {path: path.stat().st_mtime for path in Path("run").rglob("*")}
    for resumed in ("run", "run/checkpoints/best.safetensors", '"run"'):
        run.says("run is finished", "vit-train", f"resume={resumed}", "seed=0")
    with contextlib.chdir("run/checkpoints"):
        run.says("run is finished", "vit-train", "resume=last.safetensors")
    for change, words in {
        "seed=1": "resume= cannot change seed",
        "train.epochs=4": "start a new run: fork= or config= with this run's folder\n",
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
    assert "train.max_minutes has passed (counted from each start" in outcome.out
    assert "Resume with: vit-train resume=run\n" in outcome.out
    run.says("resuming after step 2", "vit-train", "resume=run", "train.max_minutes=60")
    assert_same_run(small_run("finished", "undisturbed"), Path("run"))


def test_a_setting_that_training_depends_on_cannot_be_changed(
    run: Run, small_run: SmallRun
) -> None:
    small_run("interrupted")
    for change, words in {
        "seed=1": "seed=0): leave seed out, or start a new run: config= with this run's folder\n",
        "train.batch_size=8": "start a new run: config= with",
        "model.depth=1": "start a new run: config= with",
        "data=cifar10": "resume= cannot change data (",
        "optim.lr=0.1": "start a new run: fork= or config= with",
        "experiment=quickstart": "resume= cannot change experiment (",
    }.items():
        run.fails(words, "vit-train", "resume=run", change)
    allowed = ["train.log_every=3", "checkpoint={keep: 0}", "device=cpu"]
    run.succeeds("vit-train", "resume=run", "model=tiny", *SMALL, *allowed)
    assert "log_every: 3" in Path("run/config.yaml").read_text(encoding="utf-8")


def test_a_run_keeps_its_precision_on_another_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setattr(device, "image_seconds", lambda *_: measured(2.0))
        begin = ["vit-train", *SMALL, "train.max_minutes=1e-9", "hydra.run.dir=run"]
        run.says("bf16 on", *begin)
    run.says("bf16 on", "vit-train", "resume=run")
    assert read_json(Path("run/summary.json"))["bf16_speedup"] == 2
    run.says("fp32 on", "vit-train", "resume=run", "train.max_minutes=null", "precision=fp32")
    used = settings_of(read_json(Path("run/summary.json")))["precision"]
    assert used == "bf16, then fp32"
    run.says("fp32", "vit-eval", "ckpt=run")  # where bf16 would be emulated


def test_a_run_does_not_resume_on_other_images(run: Run, small_run: SmallRun) -> None:
    path = small_run("interrupted") / "checkpoints/last.safetensors"
    Path("run/config.yaml").unlink()  # the checkpoint has all of it, too
    kept, before = path.read_bytes(), contents(Path("run"), but=REWRITTEN)
    changes: list[dict[str, Any]] = [{"model": {}}, {"fingerprint": "0"}]
    for change in changes:
        path.write_bytes(kept)
        rewrite(path, **change, written={})
        refused = run.fails("cannot use this checkpoint for resume=", "vit-train", "resume=run")
        assert ("the images on disk have changed" in refused.err) == ("fingerprint" in change)
        assert (
            contents(Path("run"), but=REWRITTEN) == before
        )  # nothing is cut for a state that does not fit
    run.says("not those of the training run", "vit-eval", "ckpt=run")
    path.write_bytes(kept)
    assert "not those" not in run.succeeds("vit-eval", "ckpt=run").out
    run.succeeds("vit-train", "resume=run", "train.max_minutes=null")
    command = read_json(Path("run/summary.json"))["command"]
    assert "max_minutes=1e-9" in command and "resume" not in command


REWRITTEN = ("train.log", ".lock", "last.safetensors")


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[Path, bytes]:
    """What all files below a folder hold, but those of these names."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in but)
    return {path: path.read_bytes() for path in files}


def test_a_run_without_a_checkpoint_keeps_its_command(run: Run, small_run: SmallRun) -> None:
    shutil.rmtree(small_run("interrupted") / "checkpoints")
    run.succeeds("vit-train", "resume=run")
    summary = read_json(Path("run/summary.json"))
    assert "resume" not in summary["command"] and summary["earlier"] == []
    assert summary["steps"] == 1


def test_a_resumed_run_names_all_that_trained_it(run: Run, small_run: SmallRun) -> None:
    path = small_run("interrupted") / "summary.json"
    before = read_json(path) | {"commit": "a" * 40}
    write_json(path, before)
    run.succeeds("vit-train", "resume=run", "train.max_minutes=null")
    (earlier,) = read_json(path)["earlier"]
    assert earlier == {key: before[key] for key in ("commit", "versions", "machine", "precision")}
    run.succeeds("vit-results", "run")
    assert "| aaaaaaa, " in Path("run/results.md").read_text(encoding="utf-8")


def test_a_run_ends_without_its_best_weights_if_they_are_damaged(
    run: Run, small_run: SmallRun
) -> None:
    path = small_run("interrupted") / "checkpoints/last.safetensors"
    rewrite(path, best=Best(9, 0.99, {"acc": 0.99, "loss": 0.1}))
    path.with_name("best.safetensors").write_bytes(b"damaged")
    for start in ("fork=run", "resume=run"):
        run.says("the best weights are lost", "vit-train", start, "train.max_minutes=null")


def test_a_run_does_not_continue_a_damaged_metrics_file(run: Run, small_run: SmallRun) -> None:
    curve = as_if_running(small_run("finished")) / "metrics.csv"
    text = curve.read_text(encoding="utf-8")
    # A letter; a column more in the first rows, so that the length noted cuts through the last.
    for other in (text.rstrip()[:-1] + "x\n", text.replace("\n", ",0\n")):
        curve.write_text(other, encoding="utf-8")
        run.fails("metrics.csv is damaged: ", "vit-train", "resume=run")
    curve.unlink()
    run.says("metrics.csv is missing or too short", "vit-train", "resume=run")


def as_if_running(folder: Path) -> Path:
    """The folder of a run as if its process had been killed."""
    write_json(folder / "summary.json", read_json(folder / "summary.json") | {"status": "running"})
    return folder


@pytest.mark.parametrize("name", ["lr=0.1,(a b)", "a\\b\\\\'c\\"])
def test_a_folder_of_any_name_can_be_resumed(run: Run, small_run: SmallRun, name: str) -> None:
    small_run("interrupted", name)
    outcome = run.succeeds("vit-train", f"resume={name}")
    assert shlex.split(outcome.out.rpartition("Resume with: ")[2])[1] == f"resume={name}"
    run.succeeds("vit-eval", f"ckpt={name}")


def test_a_run_that_cannot_be_resumed_is_refused(run: Run, small_run: SmallRun) -> None:
    Path("empty").mkdir()
    small_run("finished", "runs/a"), small_run("interrupted", "runs/b")
    for words, *arguments in (
        ("there is no run in empty", "resume=empty"),
        ("there is no run in nowhere", "resume=nowhere"),
        ("resume= continues a single run", "-m", "resume=runs/b"),
        ("Ambiguous value for argument 'resume=runs/a,runs/b'", "resume=runs/a,runs/b"),
        ("there is no run in runs, did you mean runs/b? (vit-results", "resume=runs"),
    ):
        run.fails(words, "vit-train", *arguments)
    for text in ("model: [", "5", "seed: !!timestamp foo", "seed: 0"):
        Path("runs/b/config.yaml").write_text(text, encoding="utf-8")
        run.fails("cannot be read: ", "vit-train", "resume=runs/b")
    assert not list(Path("empty").iterdir()) and not Path("outputs").exists()


def test_a_damaged_checkpoint_names_the_newest_intact_one(
    run: Run, undisturbed: Callable[[str], Path]
) -> None:
    whole = undisturbed("plain")
    last = as_if_running(Path(shutil.copytree(whole, "run"))) / "checkpoints/last.safetensors"
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    outcome = run.fails("last.safetensors: it is damaged", "vit-train", "resume=run")
    assert "last-1.safetensors is intact" in outcome.err
    command, argument = shlex.split(outcome.err.rpartition("resume from it with: ")[2])
    assert (command, Path(argument).name) == ("vit-train", "last-1.safetensors")
    run.succeeds(command, argument)
    assert_same_run(whole, Path("run"))


def test_a_run_resumes_from_its_newest_checkpoint(run: Run, small_run: SmallRun) -> None:
    last = small_run("interrupted") / "checkpoints/last.safetensors"
    last.rename(last.with_name("last-10.safetensors"))
    run.succeeds("vit-train", "resume='run/checkpoints'", "train.max_minutes=null")


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
def test_a_run_stopped_by_a_signal_resumes_bitwise(
    run: Run,
    undisturbed: Callable[[str], Path],
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, save, saved = undisturbed("plain"), checkpoint_manager.save_archive, []

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
    assert outcome.status == 128 + number and not outcome.err
    words = f"on {number.name}. Resume with: vit-train resume={Path('run').absolute()}"
    assert words in outcome.out
    step = read_json(Path("run/summary.json"))["steps"]
    assert Checkpoint.load(Path("run/checkpoints/last.safetensors")).step == step < 10
    if number == signal.SIGTERM:  # what is saved does not depend on the signal
        run.succeeds("vit-train", "resume=run")
        assert_same_run(whole, Path("run"))


def test_a_run_writes_its_status_last(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status "finished" is written last, when all else is on the disk."""
    write = run_folder.write_json

    def dying(path: Path, content: dict[str, object]) -> None:
        write(path, content)
        if content["status"] == "finished":
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(run_folder, "write_json", dying)
        run("vit-train", *SMALL, "hydra.run.dir=killed")
    assert_same_run(small_run("finished", "whole"), Path("killed"))


MORE = ["train.epochs=2", "optim.lr=5e-4", "checkpoint.every_steps=3"]


def summary(folder: str) -> dict[str, Any]:
    return read_json(Path(folder, "summary.json"))


def test_extending_a_run_leaves_it_unchanged(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = small_run("averaged", "runs/first")
    before, last = contents(first), Checkpoint.load(first / "checkpoints/last.safetensors")
    words = "from extends runs/first after epoch 2"
    run.says(words, "vit-train", "extend=runs", *MORE, "hydra.run.dir=runs/second")
    # All of its state: the moments, the average and the counters go on.
    second = Path("runs/second")
    state = Checkpoint.load(second / "checkpoints/last.safetensors")
    assert state.optimizers[0][0]["step"] == state.step == 20
    assert state.ema is not None and state.images_seen == 640
    table = rows(second)
    assert table[:2] == rows(first) and [row["epoch"] for row in table] == ["1", "2", "3", "4"]
    assert [step for step, _ in scalars(second)["loss/val"]] == [15, 20]
    assert float(table[2]["lr"]) == 5e-4  # at the end of one epoch of warm-up
    said = summary("runs/second")
    (noted,) = said["extends"]
    assert (noted["run"], noted["epochs"], noted["images_seen"]) == ("runs/first", 2, 320)
    assert noted["fingerprint"] == last.checksum
    assert (said["images_seen"], said["epochs"]) == (640, 4) and said["best_val"]["epoch"] > 2

    # Killed before its first checkpoint, then stopped after a step: the same bits in the end.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dies_after(0, patch)
        run("vit-train", "extend=runs/first", *MORE, "hydra.run.dir=killed")
    run.succeeds("vit-train", "resume=killed", "train.max_minutes=1e-9")
    weights = Checkpoint.load(Path("killed/checkpoints/last.safetensors")).model
    # A step away from where the first run ended.
    torch.testing.assert_close(weights, last.model, rtol=0, atol=2e-4)
    run.succeeds("vit-train", "resume=killed", "train.max_minutes=null")
    assert_same_run(second, Path("killed"))
    assert summary("killed")["extends"][0]["fingerprint"] == last.checksum

    # And further, beside the run that is extended, with the settings that it has.
    more = ["optim=adamw", "train.epochs=6", "train.max_minutes=1e-9"]
    run.succeeds("vit-train", "extend=runs/second", *more)
    (third,) = Path("outputs/second-extended").iterdir()
    again = summary(str(third))
    assert [each["epochs"] for each in again["extends"]] == [2, 4] and again["steps"] == 21
    optim = again["config"]["optim"]
    assert (optim["lr"], optim["warmup_epochs"]) == (5e-4, 3)
    assert again["config"]["train"]["epochs"] == 6 and contents(first) == before


@pytest.mark.parametrize("config", ["plain", "noisy"])
def test_an_unchanged_fork_ends_like_its_run(run: Run, config: str) -> None:
    """Though it begins in the middle of an epoch; a changed one shares the curve up to there."""
    run.succeeds("vit-train", *arguments(config), "checkpoint.keep=9", "hydra.run.dir=whole")
    whole = Path("whole")
    before, source = contents(whole), whole / "checkpoints/last-2.safetensors"
    forked = Checkpoint.load(source)
    assert forked.batch and forked.epoch == 1
    run.says(
        f"forks whole after step {forked.step}",
        *("vit-train", f"fork={source}", "hydra.run.dir=same"),
    )
    for key in ("model", "ema", "optimizers"):
        ends = [getattr(Checkpoint.load(f / LAST), key) for f in (whole, Path("same"))]
        torch.testing.assert_close(*ends, rtol=0, atol=0)
    assert rows(whole) == rows(Path("same"))
    assert summary("whole")["test"] == summary("same")["test"]
    (noted,) = summary("same")["extends"]
    assert (noted["run"], noted["steps"]) == ("whole", forked.step)

    anew = run.succeeds("vit-train", "config=same", "train.max_minutes=1e-9").said
    assert "forks whole" not in anew and "extends" not in anew
    run.says("extends same after epoch 2", "vit-train", "extend=same", "train.epochs=1")
    cut = ["vit-train", f"fork={source}", "train.max_minutes=1e-9"]
    run.succeeds(*cut, "optim.schedule=constant", "train.epochs=3", "checkpoint.metric=loss")
    (other,) = Path("outputs/whole-forked").iterdir()
    best, copied = (f / "checkpoints/best.safetensors" for f in (whole, other))
    is_early = forked.best is not None and Checkpoint.load(best).epoch == forked.best.epoch
    assert copied.exists() == is_early  # a later best epoch is not the fork's
    run.succeeds("vit-train", f"resume={other}", "train.max_minutes=null")
    table = rows(other)
    assert table[0] == rows(whole)[0] and float(table[2]["lr"]) == 1e-3
    best = Checkpoint.load(other / LAST).best
    assert best is None or best.score == -best.values["loss"]
    assert contents(whole) == before

    run.succeeds(*cut, "hydra.run.dir=cut")
    if is_early:  # the fork's best checkpoint is then a copy of its run's
        words = "or the checkpoint is a copy of its own: use resume="
        run.fails(words, "vit-train", "resume=cut/checkpoints/best.safetensors")
    shutil.rmtree("cut/checkpoints")
    shutil.copy(whole / LAST, source)
    run.fails("whole has changed since this run began from it", "vit-train", "resume=cut")


def test_a_run_is_repeated_from_its_settings(run: Run, small_run: SmallRun) -> None:
    first = small_run("finished")
    shutil.copy("run/summary.json", "published.json")
    run.succeeds("vit-train", "config=published.json", "hydra.run.dir=same")
    assert_same_run(first, Path("same"))
    changes = ["model=cnn", "model.widths=[8]", "name=a CNN", "notes=to compare"]
    run.succeeds("vit-train", "config=run/config.yaml", *changes, "train.max_minutes=1e-9")
    (other,) = Path("outputs").glob("a_CNN-*/*")
    config = summary(str(other))["config"]
    assert config["model"]["widths"] == [8] and config["data"]["train_images"] == 200
    assert (config["name"], config["notes"], config["config"]) == ("a CNN", "to compare", None)
    # Its data may be of another kind, and its settings may be damaged.
    table = ["data=table", "data.file=nowhere.csv"]
    run.fails("nowhere.csv cannot be read", "vit-train", "config=run", *table)
    Path("run/requested.yaml").write_text("model: 3", encoding="utf-8")
    run.fails("requested.yaml cannot be read: it states", "vit-train", "config=run")
    Path("published.json").write_text("{}", encoding="utf-8")
    run.fails("its config contains no settings", "vit-train", "config=published.json")


def test_published_rows_of_every_age_can_be_repeated() -> None:
    """The first versions had fewer settings."""
    by_settings = {}
    for file in Path(__file__).parents[1].glob("docs/results/*/*.json"):
        row = read_json(file)
        if config := row.get("config"):
            by_settings[str([sorted(config[group]) for group in ("task", "data")])] = file, row
    assert len(by_settings) > 9
    for file, row in by_settings.values():
        config = from_checkpoint(read_settings(file))
        assert (config.seed, config.precision) == (row["config"]["seed"], row["precision"])
        assert config.train.epochs == row["config"]["train"]["epochs"]


def test_a_choice_that_the_run_already_has_changes_nothing_else(run: Run) -> None:
    run.succeeds("vit-train", *SMALL, "optim=muon", "optim.lr=0.01", "hydra.run.dir=run")
    more = ["optim=muon", "optim.momentum=0.5", "train.max_minutes=1e-9", "hydra.run.dir=other"]
    run.succeeds("vit-train", "config=run", *more)
    optim = summary("other")["config"]["optim"]
    assert (optim["lr"], optim["momentum"]) == (0.01, 0.5)


def test_keep_every_keeps_checkpoints_of_epochs(run: Run) -> None:
    settings = ["train.epochs=4", "checkpoint.keep_every=2", "hydra.run.dir=whole"]
    run.succeeds("vit-train", *SMALL, *settings)
    kept = sorted(Path("whole/checkpoints").glob("epoch-*"))
    assert [path.name for path in kept] == ["epoch-2.safetensors", "epoch-4.safetensors"]
    assert [Checkpoint.load(path).epoch for path in kept] == [2, 4]
    shorter = ["train.epochs=3", "hydra.run.dir=forked"]
    run.says("forks whole after step 10", "vit-train", f"fork={kept[0]}", *shorter)
    run.says("but the new run starts anew", "vit-train", "config=forked", "train.max_minutes=1e-9")


@pytest.mark.parametrize(
    ("start", "kept", "best"),
    [
        ("fork=whole/checkpoints/epoch-1.safetensors", (1,), 1),
        ("fork=whole/checkpoints/epoch-2.safetensors", (1, 2), 1),
        ("fork=whole/checkpoints/epoch-2.safetensors", (2,), 3),
        ("resume=whole/checkpoints/epoch-1.safetensors", (1,), 1),
        ("resume=whole", (), None),
    ],
)
def test_lost_best_weights_are_replaced_if_possible(
    run: Run, small_run: SmallRun, start: str, kept: tuple[int, ...], best: int | None
) -> None:
    checkpoints = as_if_running(small_run("still", "whole")) / "checkpoints"
    (checkpoints / "best.safetensors").unlink()
    for epoch in {1, 2}.difference(kept):
        (checkpoints / f"epoch-{epoch}.safetensors").unlink()
    longer = ["train.epochs=5", "train.patience=2", "hydra.run.dir=forked"]
    forks = start.startswith("fork")
    outcome = run.succeeds("vit-train", start, *(longer if forks else []))
    assert ("the best weights are lost" in outcome.out) == (best != 1)
    said = summary("forked" if forks else "whole")
    assert (said["best_val"] or {}).get("epoch") == best and ("best" in said["test"]) == bool(best)
    assert said["epochs"] == (best + 2 if forks and best else 2)  # with patience


def test_a_run_that_cannot_be_extended_or_forked_is_refused(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted", "my runs/half done")
    last = small_run("finished") / "checkpoints/last.safetensors"
    Path("no run").mkdir()
    shutil.rmtree(small_run("finished", "bare") / "checkpoints")
    more = ["vit-train", "train.epochs=2", "hydra.run.dir=new"]
    for words, *arguments in (
        ("extend=nowhere: there is no run in nowhere", "extend=nowhere"),
        ("finish it with vit-train resume='my runs/half", "extend=my runs/half done"),
        ("none of the runs in my runs is finished", "extend=my runs"),
        ("extend=no run: there is no run in no run", "extend=no run"),
        ("in builtin:cifar10: name the folder of a finished run", "extend=builtin:cifar10"),
        ("extend= cannot change data (this run has", "extend=run", "data=cifar10"),
        ("extend= cannot change train.minutes", "extend=run", "train.minutes=5"),
        ("it leaves nothing to train: set train.epochs=", "fork=run"),
        ("fork=nowhere: there is no run in nowhere", "fork=nowhere"),
        ("fork=bare: this run has no checkpoint", "fork=bare"),
        ("fork= cannot change data (this run has", "fork=run", "data=cifar10"),
        ("fork= cannot change optim (this run has optim.name=adamw", "fork=run", "optim=muon"),
    ):
        run.fails(words, *more, *arguments)
    rewrite(last, fingerprint="0")
    run.fails("the images on disk have changed since the checkpoint was saved", *more, "extend=run")
    assert not Path("new").exists()


def test_which_settings_a_continued_run_may_change() -> None:
    always = "train.micro_batch train.max_minutes train.log_every data.root device checkpoint.keep"
    may = "optim.lr optim.weight_decay train.patience augment augment.policy task.label_smoothing"
    always += " compile deterministic precision"
    may_not = "optim.name train.ema_decay train.batch_size data.train_subset model.depth seed task"
    says = declared()
    for keys, resume, extend in ((always, True, True), (may, False, True), (may_not, False, False)):
        for key in keys.split():
            found = [may_change(key, verb, says) for verb in ("resume", "extend")]
            assert found == [resume, extend], key


def test_a_run_stops_early_when_validation_no_longer_improves(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Weights that stay as they are: no epoch is better than the first.
    few = [*SMALL, "data.train_images=60", "data.test_images=20", "checkpoint.every_steps=1"]
    still = ["vit-train", *few, "optim.lr=1e-30", "train.epochs=9", "train.patience=1"]
    words = "stopped early after epoch 2: no better epoch within train.patience=1"
    run.says(words, *still, "hydra.run.dir=whole")
    said = summary("whole")
    assert said["status"] == "finished" and said["stopped_early"] and said["epochs"] == 2
    fork = ["vit-train", "fork=whole", "train.patience=1", "hydra.run.dir=forked"]
    run.fails("to train: set train.patience= to null or more than 1\n", *fork, "train.epochs=20")
    run.fails("to train: set train.epochs= to more than 2\n", *fork, "train.epochs=1")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dies_after(3, patch)  # one after each step, the best one, and one after its epoch
        run(*still, "hydra.run.dir=killed")
    run.succeeds("vit-train", "resume=killed")
    assert_same_run(Path("whole"), Path("killed"))


def test_repetitions_share_a_recipe() -> None:
    """Settings that a version does not know yet are at their defaults."""
    config = asdict(with_defaults(TrainConfig()))
    one, earlier = recipe(config, []), Extended("run", 30, 300, 300, 1.0, "", recipe="")
    older = {k: v for k, v in config["train"].items() if k != "patience"}
    for same in ({"seed": 7, "device": "cpu"}, {"train": older}):
        assert recipe(config | same, []) == one
    assert recipe(config | {"model": config["model"] | {"depth": 5}}, []) != one
    extended = (recipe(config, [replace(earlier, recipe=each)]) for each in (one, "another"))
    assert len({one, *extended}) == 3
