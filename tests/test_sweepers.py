"""Optuna maximizes the validation metric; a sweep's jobs can go to Slurm."""

import os
import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import SMALL, Run, Started
from hydra.utils import get_class
from omegaconf import DictConfig
from test_resume import varied

from vit_train.base.reading import flatten, read_json
from vit_train.commands import train
from vit_train.commands.rerun import begun_run
from vit_train.config.data import DATA_CONFIGS
from vit_train.config.run import TrainConfig, with_defaults
from vit_train.evaluate import differences
from vit_train.trained.folder import CONFIG, REQUESTED, Outcome


def composed(run: Run, part: str, *arguments: str) -> dict[str, Any]:
    """The config of the part "job" or "hydra"."""
    return yaml.safe_load(run.succeeds("vit-train", *arguments, "--cfg", part).out)


def own_experiment(text: str) -> list[str]:
    """Arguments that choose an experiment of one's own."""
    Path("mine/experiment").mkdir(parents=True)
    own = Path("mine/experiment/depths.yaml")
    own.write_text(f"# @package _global_\n{text}", encoding="utf-8")
    return ["--config-dir", "mine", "experiment=depths"]


@pytest.mark.parametrize(
    ("name", "notes", "root"),
    [
        ("0.10", "695e051", "1_000"),
        ("012", "+5", "-0"),
        (".5", "inf", "NaN"),
        ("true", "no", "0x10"),
    ],
)
def test_text_stays_as_written(run: Run, name: str, notes: str, root: str) -> None:
    own = own_experiment(f"name: {name}\nnotes: {notes}\ndata: {{root: {root}}}\n")
    for arguments in ([f"name={name}", f"notes={notes}", f"data.root={root}"], own):
        shown = composed(run, "job", *arguments)
        assert (shown["name"], shown["notes"], shown["data"]["root"]) == (name, notes, root)


def test_text_in_a_sweep_stays_as_written(run: Run, started: Started) -> None:
    run.succeeds("vit-train", "-m", "name=0.10, 0.20 ,'a, 1.0',b 1.0,~/c")
    run.succeeds("vit-train", "name=null", "notes=NULL")
    names = [config.name for config, _ in started]
    assert names == ["0.10", "0.20", "a, 1.0", "b 1.0", str(Path("~/c").expanduser()), None]
    assert started[-1][0].notes == "NULL"


def test_an_experiment_that_sweeps_takes_more_values(run: Run, started: Started) -> None:
    run.succeeds("vit-train", *own_experiment("hydra: {mode: MULTIRUN}\n"), "seed=3,4")
    assert {config.seed for config, _ in started} == {3, 4}


def test_hydras_own_settings_hold_in_a_single_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def note(composed: DictConfig, settings: Any, folder: Path) -> Outcome:
        seen.append((os.environ.get("MINE"), composed.notes))
        return Outcome(folder)

    monkeypatch.setattr(train, "start", note)
    own = own_experiment("hydra: {job: {env_set: {MINE: '1'}}}\n")
    run.succeeds("vit-train", *own)
    run.succeeds("vit-train", "notes=${hydra:runtime.output_dir}", "hydra.run.dir=here")
    assert seen == [("1", None), (None, str(Path("here").absolute()))]


@pytest.mark.filterwarnings("ignore")  # Optuna's own dependencies warn when it is imported
@pytest.mark.parametrize("searching", [["seed=auto"], ["-m", "hydra/sweeper=optuna"]])
@pytest.mark.slow
def test_a_search_needs_validation_also_of_a_repeated_run(run: Run, searching: list[str]) -> None:
    run.succeeds("vit-train", *SMALL, "data.val=none", "train.max_minutes=1e-9", "name=own")
    (folder,) = Path("outputs/own").iterdir()
    command = ["vit-train", f"config={folder}", "optim.lr=1e-3,2e-3", *searching]
    assert "this sweep needs validation results" in run(*command).said


def test_slurm_gets_each_job_with_a_gpu_and_time_to_save(run: Run) -> None:
    slurm = ["hydra/launcher=slurm", "hydra.launcher.partition=big"]
    launcher = composed(run, "hydra", *slurm)["hydra"]["launcher"]
    assert get_class(launcher["_target_"]).__name__ == "SlurmLauncher"
    assert launcher["gpus_per_node"] == 1 and launcher["partition"] == "big"
    assert 0 < launcher["signal_delay_s"] < 60 * launcher["timeout_min"]


@pytest.mark.filterwarnings("ignore")  # Optuna's own dependencies warn when it is imported
def test_optuna_maximizes_the_validation_accuracy(run: Run) -> None:
    config = composed(run, "hydra", "experiment=tune")
    assert config["hydra"]["sweeper"]["direction"] == "maximize"
    rates = "hydra.sweeper.params={optim.lr:'choice(0.001,0.1)'}"
    run.succeeds("vit-train", *SEARCH, rates, "hydra.sweeper.n_trials=2")
    runs = [read_json(path) for path in Path("outputs/tune").glob("*/summary.json")]
    text = Path("outputs/tune/optimization_results.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["best_value"] == max(each["best_val"]["acc"] for each in runs)
    for each in runs:
        assert f"optim.lr={each['config']['optim']['lr']}" in shlex.split(each["command"])
    stopped = [*SEARCH, "hydra.sweeper.n_trials=1", "train.max_minutes=1e-9"]
    run.says("repeat the sweep with hydra.sweep.dir=stopped", "vit-train", *stopped,
             "hydra.sweep.dir=stopped")  # fmt: skip
    assert not Path("stopped/optimization_results.yaml").exists(), "no trial was completed"
    rates = "hydra.sweeper.params={optim.lr:'choice(-1,-2)'}"
    failing = [*SEARCH, rates, "hydra.sweeper.n_trials=1", "hydra.sweep.dir=failing"]
    assert "failed jobs" in run.fails("must be greater than 0", "vit-train", *failing).err


FEW = ["data.train_images=60", "data.test_images=20", "model.embed_dim=16", "model.depth=1"]
SEARCH = ["experiment=tune", *FEW, "train.epochs=1"]


@pytest.mark.parametrize(
    ("sweep", "given"),
    [
        ("{mode: MULTIRUN, sweeper: {params: {model.depth: '1,2'}}}", []),
        ("{}", ["-m", "model.depth=1,2"]),
    ],
    ids=["in a file", "on the command line"],
)
def test_a_job_of_a_sweep_is_repeated_by_its_command(
    run: Run, sweep: str, given: list[str]
) -> None:
    own = [*own_experiment(f"hydra: {sweep}\ntrain: {{epochs: 1}}\n"), "seed=3", *FEW[:3]]
    run.succeeds("vit-train", *own, *given, "hydra.sweep.dir='a sweep'")
    summary = read_json(Path("a sweep/depth_2/summary.json"))
    run.succeeds(*shlex.split(summary["command"]), "hydra.run.dir=again")
    again = read_json(Path("again/summary.json"))
    assert again["config"] == summary["config"] and again["test"] == summary["test"]
    assert again["config"]["model"]["depth"] == 2
    shown = varied(Path("a sweep/depth_2"))  # in TensorBoard
    assert {"model.depth", "model.embed_dim"} <= shown and "model.num_heads" not in shown


JOBS = ["-m", "seed=range(2)", *FEW, "train.epochs=2", "init_from=start", "hydra.sweep.dir=jobs"]


def test_a_repeated_sweep_finishes_its_jobs(run: Run) -> None:
    run.succeeds("vit-train", *FEW, "train.epochs=1", "hydra.run.dir=start/run")
    outcome = run.says("0 of 2 jobs finished", "vit-train", *JOBS, "train.max_minutes=1e-9")
    assert "vit-results" not in outcome.out
    first, second = re.findall(r"^  vit-train (resume=.+)$", outcome.out, re.MULTILINE)
    assert first.endswith("/seed_0")
    run.succeeds("vit-train", second, "train.max_minutes=null")
    outcome = run.succeeds("vit-train", *JOBS)
    assert outcome.out.count("resuming after step 1") == 1
    assert outcome.out.count("jobs/seed_1 is finished") == 1
    assert "2 of 2 jobs finished" in outcome.out
    # One more seed repeats no finished run.
    more = [each.replace("seed=range(2)", "seed=7,0,1") for each in JOBS]
    outcome = run.succeeds("vit-train", *more)
    assert outcome.out.count(" is finished: its results are in") == 2
    assert sorted(path.name for path in Path("jobs").glob("s*")) == ["seed_0", "seed_1", "seed_7"]
    shutil.rmtree("jobs/seed_7")
    # Other settings train other runs, in folders of their own.
    outcome = run.succeeds("vit-train", *JOBS, "train.epochs=1")
    names = ["seed_0", "seed_0-2", "seed_1", "seed_1-2"]
    assert sorted(path.name for path in Path("jobs").glob("s*")) == names
    # The next steps are printed once for all of the sweep.
    assert outcome.out.count("\nnext ") == 1 and "vit-eval" not in outcome.out
    assert outcome.out.endswith("\nnext    vit-results jobs\n        tensorboard --logdir jobs\n")


@pytest.mark.parametrize("key, values", [("train.micro_batch", (4, 8)), ("name", ("a", "b"))])
def test_jobs_that_differ_in_anything_are_separate_runs(
    run: Run, key: str, values: tuple[Any, ...]
) -> None:
    """Also beside a run that cannot be read, which concerns no other job."""
    Path("jobs/damaged").mkdir(parents=True)
    Path("jobs/damaged/config.yaml").write_text("{", encoding="utf-8")
    sweep = ["-m", f"{key}={values[0]},{values[1]}", *FEW, "train.epochs=1"]
    outcome = run.succeeds("vit-train", *sweep, "hydra.sweep.dir=jobs")
    assert "2 of 2 jobs finished" in outcome.out and "is finished" not in outcome.out
    for value in values:
        summary = read_json(Path(f"jobs/{key.removeprefix('train.')}_{value}/summary.json"))
        assert dict(flatten(summary["config"]))[key] == value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_repeated_search_skips_finished_trials(run: Run) -> None:
    whole = run("vit-train", *SEARCH, "hydra.sweeper.n_trials=3", "hydra.sweep.dir=whole")
    assert run("vit-train", *SEARCH, "hydra.sweeper.n_trials=2").status == 0
    again = run("vit-train", *SEARCH, "hydra.sweeper.n_trials=3")
    assert (
        again.status == whole.status == 0
        and again.out.count(" is finished: its results are in") == 2
    )
    found = [Path(f"{each}/optimization_results.yaml") for each in ("whole", "outputs/tune")]
    assert found[0].read_text(encoding="utf-8") == found[1].read_text(encoding="utf-8")
    stored = ["hydra.sweeper.storage=sqlite:///tune.db", "hydra.sweeper.sampler.seed=null"]
    for _ in range(2):
        run.succeeds(
            "vit-train", *SEARCH, *stored, "hydra.sweeper.n_trials=1", "hydra.sweep.dir=stored"
        )
    with closing(sqlite3.connect("tune.db")) as database:
        values = [value for (value,) in database.execute("SELECT value FROM trial_values")]
    assert len(values) == 2
    best = yaml.safe_load(Path("stored/optimization_results.yaml").read_text(encoding="utf-8"))
    assert best["best_value"] == max(values)


@pytest.mark.filterwarnings("ignore")  # Optuna's own dependencies warn when it is imported
@pytest.mark.parametrize(
    "words, arguments",
    [
        ("pip install -e '.[sweeps]'", "hydra/sweeper=ax"),
        ('vit-train: Could not detect "srun"', "-m hydra/launcher=slurm seed=0,1"),
        ("Could not parse SQLAlchemy URL", "experiment=tune hydra.sweeper.storage=nowhere"),
    ],
)
def test_a_missing_plugin_gives_a_short_message(
    run: Run, words: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)  # on a cluster, srun would be found
    assert run.fails(words, "vit-train", *arguments.split()).err.count("\n") <= 2


def test_seeds_are_added_until_two_settings_differ(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = [*FEW, "task=reconstruct", "task.decoder_depth=1", "train.epochs=1", "seed=auto"]
    words = "model.embed_dim=8,16", "hydra.sweep.dir=seeds"
    monkeypatch.setattr(differences, "LAST_LOOK", 2)
    outcome = run.succeeds("vit-train", "-m", *sweep, *words)
    assert "embed_dim=16 minus embed_dim=8, 2 seeds: " in outcome.out
    assert outcome.out.count("not significant") == 2 and "4 of 4 jobs finished" in outcome.out
    runs = [read_json(path) for path in Path("seeds").glob("*/summary.json")]
    losses = {16: 0.0, 8: 0.0}
    for each in runs:
        losses[each["config"]["model"]["embed_dim"]] += each["best_val"]["loss"] / 2
    (size,) = re.findall(r"2 seeds: (\S+) in validation loss", outcome.out)
    assert float(size) == pytest.approx(losses[16] - losses[8], abs=1e-4)
    monkeypatch.setattr(differences, "FIRST_LOOK", 2)
    monkeypatch.setattr(differences, "LEVEL", 1 - 1e-9)
    monkeypatch.setattr(differences, "LAST_LOOK", 10)
    outcome = run.succeeds("vit-train", *sweep, *words)  # the runs before are not repeated
    assert outcome.out.count("is finished") == 2
    assert re.findall("2 seeds: .+: (.+)", outcome.out) == ["significant"]
    blind = ["data.val=none", "hydra.sweep.dir=blind"]
    run.fails("needs validation results", "vit-train", *sweep, *words[:1], *blind)
    run.fails(
        "two combinations of settings, but this sweep has 1", "vit-train", *sweep, words[1][:-1]
    )
    assert not Path("seed").exists()  # no run has been trained
    run.fails("leave out hydra/launcher=", "vit-train", *sweep, words[0], "hydra/launcher=basic")
    folds = ["data.cv_folds=2", "data.cv_fold=0,1"]  # not seeds: they share training images
    run.fails("but this sweep has 4", "vit-train", *sweep, words[0], *folds)


@pytest.mark.parametrize(("source", "is_same"), [("folder", False), ("cifar10", True)])
def test_a_run_is_the_same_wherever_a_published_data_set_lies(
    tmp_path: Path, source: str, is_same: bool
) -> None:
    """Another folder of one's own holds other images."""
    here, there = (
        with_defaults(TrainConfig(data=DATA_CONFIGS[source](root=root))) for root in ("a", "b")
    )
    for name in (REQUESTED, CONFIG):
        (tmp_path / name).write_text(yaml.safe_dump(asdict(here)), encoding="utf-8")
    assert (begun_run([tmp_path], there, ()) is not None) == is_same
