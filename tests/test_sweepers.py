"""Optuna searches by what validation says; a sweep's jobs can go to Slurm."""

import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, Run
from hydra.utils import get_class
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from vit_train.base.reading import read_json


def composed(run: Run, *arguments: str) -> dict:
    outcome = run("vit-train", *arguments, "--cfg", "hydra")
    assert outcome.status == 0, outcome.err
    return yaml.safe_load(outcome.out)["hydra"]


def test_slurm_gets_each_job_with_a_gpu_and_time_to_save(run: Run) -> None:
    launcher = composed(run, "hydra/launcher=slurm", "hydra.launcher.partition=big")["launcher"]
    assert get_class(launcher["_target_"]).__name__ == "SlurmLauncher"
    assert launcher["gpus_per_node"] == 1 and launcher["partition"] == "big"
    assert 0 < launcher["signal_delay_s"] < 60 * launcher["timeout_min"]


@pytest.mark.filterwarnings("ignore")  # Optuna's own dependencies warn when it is imported
def test_optuna_looks_for_the_best_validation(run: Run) -> None:
    assert composed(run, "experiment=tune")["sweeper"]["direction"] == "maximize"
    outcome = run(
        "vit-train", "experiment=tune", *SMALL, "data.train_images=60", "train.epochs=1",
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.params={optim.lr:'choice(0.001,0.1,-1)'}", "hydra.sweeper.sampler.seed=3",
    )  # fmt: skip
    runs = [read_json(path) for path in Path("outputs/tune").glob("*/summary.json")]
    failed = 3 - len(runs)
    assert len(runs) > 0 and outcome.status == (failed > 0), outcome.err
    best = yaml.safe_load(
        Path("outputs/tune/optimization_results.yaml").read_text(encoding="utf-8")
    )
    assert best["best_value"] == max(each["best_val"]["acc"] for each in runs)
    for each in runs:
        assert f"optim.lr={each['config']['optim']['lr']}" in shlex.split(each["command"])
    outcome = run(
        "vit-train", "experiment=tune", *SMALL, "hydra.sweep.dir=none", "hydra.sweeper.n_trials=2",
        "hydra.sweeper.params={optim.lr:'choice(-1,-2)'}",
    )  # fmt: skip
    assert (
        outcome.status == 1
        and "failed jobs" in outcome.err
        and "must be greater than 0" in outcome.err
    )


def test_what_is_not_installed_says_so(run: Run) -> None:
    outcome = run("vit-train", "hydra/sweeper=ax")
    assert outcome.status == 1 and "pip install -e '.[sweeps]'" in outcome.err


def test_tensorboard_shows_what_a_sweep_sets_wherever_that_is_written(run: Run) -> None:
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/depths.yaml").write_text(
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweep:\n    dir: depths\n"
        "    subdir: ${model.depth}\n  sweeper:\n    params:\n      model.depth: 1,2\n",
        encoding="utf-8",
    )
    few = ["data.train_images=60", "data.test_images=20", "model.embed_dim=16"]
    quick = [*few, "train.max_minutes=1e-9", "model.patch_size=16"]
    assert run("vit-train", "--config-dir", "mine", "experiment=depths", *quick).status == 0
    events = EventAccumulator("depths/2").Reload()
    plugin = events.SummaryMetadata("_hparams_/experiment").plugin_data
    infos = HParamsPluginData.FromString(plugin.content).experiment.hparam_infos
    shown = {info.name for info in infos if info.differs}
    assert {"model.depth", "model.patch_size"} <= shown and "model.num_heads" not in shown


def test_each_job_of_a_sweep_has_the_command_that_repeats_it_alone(run: Run) -> None:
    Path("mine/experiment").mkdir(parents=True)
    experiment = Path("mine/experiment/depths.yaml")
    for sweep, given in (
        ("{mode: MULTIRUN, sweeper: {params: {model.depth: '1,2'}}}", ["seed=3"]),
        ("{}", ["-m", "model.depth=1,2", "seed=3"]),
    ):
        text = f"# @package _global_\nhydra: {sweep}\ntrain: {{epochs: 1}}\n"
        experiment.write_text(text, encoding="utf-8")
        few = ["data.train_images=60", "data.test_images=20", "model.embed_dim=16"]
        run("vit-train", "--config-dir", "mine", "experiment=depths", *given, *few,
            "hydra.sweep.dir='a sweep'")  # fmt: skip
        for job, depth in enumerate((1, 2)):
            summary = read_json(Path(f"a sweep/{job}/summary.json"))
            program, *arguments = shlex.split(summary["command"])
            assert run(program, *arguments, "hydra.run.dir=again").status == 0
            again = read_json(Path("again/summary.json"))
            assert again["config"] == summary["config"]
            assert again["config"]["model"]["depth"] == depth and again["test"] == summary["test"]
            shutil.rmtree("again")
        shutil.rmtree("a sweep")


FEW = ["data.train_images=60", "data.test_images=20", "model.embed_dim=16", "model.depth=1"]
JOBS = ["-m", "seed=0,1", *FEW, "train.epochs=2", "hydra.sweep.dir=jobs"]


@pytest.mark.slow
def test_a_sweep_run_again_into_its_folder_does_what_is_left(run: Run) -> None:
    assert run("vit-train", *JOBS, "hydra.sweep.dir=whole").status == 0
    outcome = run("vit-train", *JOBS, "train.max_minutes=1e-9")
    assert "0 of 2 jobs finished" in outcome.out
    Path("whole/1").rename("jobs/finished")
    shutil.rmtree("jobs/1")
    Path("jobs/finished").rename("jobs/1")
    outcome = run("vit-train", *JOBS)
    assert outcome.status == 0 and "2 of 2 jobs finished" in outcome.out, outcome.err
    assert outcome.out.count("jobs/0 was begun with these settings and is resumed") == 1
    assert outcome.out.count("jobs/1 is finished, with these settings, and is not repeated") == 1
    assert sorted(path.name for path in Path("jobs").glob("[0-9]*")) == ["0", "1"]
    ends = [read_json(Path(each, "0/summary.json"))["test"] for each in ("jobs", "whole")]
    assert ends[0] == ends[1]
    outcome = run("vit-train", *JOBS, "train.epochs=1")  # other runs, in folders of their own
    assert "is not repeated" not in outcome.out
    assert sorted(path.name for path in Path("jobs").glob("[0-9]*")) == ["0", "0-2", "1", "1-2"]


def test_what_to_do_next_is_said_once_for_a_whole_sweep(run: Run) -> None:
    outcome = run("vit-train", *JOBS, "train.epochs=1")
    assert outcome.out.count("\nnext ") == 1 and "vit-eval" not in outcome.out
    assert outcome.out.endswith("\nnext    vit-results jobs\n        tensorboard --logdir jobs\n")


SEARCH = ["experiment=tune", *FEW, "train.epochs=1"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_an_interrupted_search_goes_on_and_a_stored_one_grows(run: Run) -> None:
    whole = run("vit-train", *SEARCH, "hydra.sweeper.n_trials=3", "hydra.sweep.dir=whole")
    assert run("vit-train", *SEARCH, "hydra.sweeper.n_trials=2").status == 0
    again = run("vit-train", *SEARCH, "hydra.sweeper.n_trials=3")
    assert again.status == whole.status == 0 and again.out.count("is not repeated") == 2
    found = [Path(f"{each}/optimization_results.yaml") for each in ("whole", "outputs/tune")]
    assert found[0].read_text(encoding="utf-8") == found[1].read_text(encoding="utf-8")
    stored = ["hydra.sweeper.storage=sqlite:///tune.db", "hydra.sweeper.sampler.seed=null"]
    for _ in range(2):
        outcome = run("vit-train", *SEARCH, *stored, "hydra.sweeper.n_trials=1",
                      "hydra.sweep.dir=stored")  # fmt: skip
        assert outcome.status == 0, outcome.err
    with closing(sqlite3.connect("tune.db")) as database:
        values = [value for (value,) in database.execute("SELECT value FROM trial_values")]
    assert len(values) == 2
    best = yaml.safe_load(Path("stored/optimization_results.yaml").read_text(encoding="utf-8"))
    assert best["best_value"] == max(values)


@pytest.mark.filterwarnings("ignore")  # Optuna's own dependencies warn when it is imported
def test_slurm_and_a_database_that_are_not_there_say_so_in_a_line(run: Run) -> None:
    for arguments, words in (
        (["-m", "hydra/launcher=slurm", "seed=0,1"], 'Could not detect "srun"'),
        (["experiment=tune", "hydra.sweeper.storage=nowhere"], "Could not parse SQLAlchemy URL"),
    ):
        outcome = run("vit-train", *arguments)
        assert outcome.status == 1 and outcome.err.startswith(f"vit-train: {words}")
        assert outcome.err.count("\n") == 1
