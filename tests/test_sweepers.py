"""Optuna searches by what validation says; a sweep's jobs can go to Slurm."""

import json
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, Run
from hydra.utils import get_class


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
    runs = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in Path("outputs/tune").glob("*/summary.json")
    ]
    failed = 3 - len(runs)
    assert len(runs) > 0 and outcome.status == (failed > 0), outcome.err
    best = yaml.safe_load(
        Path("outputs/tune/optimization_results.yaml").read_text(encoding="utf-8")
    )
    assert best["best_value"] == max(each["best_val"]["acc"] for each in runs)


def test_what_is_not_installed_says_so(run: Run) -> None:
    outcome = run("vit-train", "hydra/sweeper=ax")
    assert outcome.status == 1 and "pip install -e '.[sweeps]'" in outcome.err
