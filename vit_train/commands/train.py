"""vit-train: train a model, go on with a run, or sweep over settings."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from vit_train.commands.boundary import short_errors
from vit_train.commands.helping import run_or_help
from vit_train.commands.paths import quoted, taken_literally
from vit_train.commands.resuming import asked_for, is_finished, resumed_config, split_path
from vit_train.commands.sweep import Sweep
from vit_train.config import CONF_DIR, TrainConfig, register_schemas, typed

ABOUT = """\
vit-train: train a Vision Transformer on small images.

  vit-train model=tiny data=cifar10 data.root=FOLDER train.epochs=8"""
SWEEP = Sweep()


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")
def job(composed: DictConfig) -> float | None:
    """One run; returns what validation liked best, for sweepers that look for it."""
    settings = HydraConfig.get()
    errors = SWEEP.errors(settings) if settings.mode == RunMode.MULTIRUN else None
    with errors or short_errors("vit-train"):
        folder, checkpoint = Path(settings.runtime.output_dir), None
        if composed.resume is None:
            config = typed(composed, TrainConfig)
            refuse_used(folder)
        elif errors:
            raise ValueError("resume goes on with one run: leave -m out")
        else:
            folder, checkpoint = split_path(composed.resume)
            config = resumed_config(folder, checkpoint, composed, settings.overrides.task)
            if is_finished(folder) and Path(composed.resume).is_dir():
                print(f"{folder} is finished: its results are in {folder / 'summary.json'}")
                return None
        from vit_train.training import train

        outcome = train(config, folder, checkpoint)
        if outcome.exit_status:
            sys.exit(outcome.exit_status)
        return outcome.score
    return None


def refuse_used(folder: Path) -> None:
    if (folder / "config.yaml").exists():
        raise ValueError(
            f"{folder} already holds a run: choose another hydra.run.dir, or go on with "
            f"resume={folder}"
        )


def for_hydra(resumed: Path | None) -> list[str]:
    """Where Hydra shall write: of a resumed run, and of several processes that torchrun started.

    Of those only the first one writes.
    """
    if os.environ.get("RANK", "0") != "0":
        scratch = Path(tempfile.mkdtemp(prefix="vit_train-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        return [
            f"hydra.run.dir={quoted(scratch)}",
            "hydra.output_subdir=null",
            "hydra/job_logging=disabled",
        ]
    if resumed is not None:
        return [f"hydra.run.dir={quoted(resumed)}", "hydra.output_subdir=null"]
    return []


def main() -> None:
    register_schemas()
    with short_errors("vit-train"):
        sys.argv[1:] = taken_literally(sys.argv[1:], ("resume", "init_from", "data.root"))
        resume, folder = asked_for(sys.argv[1:]), None
        if resume is not None:
            folder, _ = split_path(resume)
        sys.argv[1:] += for_hydra(folder)
        run_or_help(job, ABOUT, groups=True)
        SWEEP.report()


if __name__ == "__main__":
    main()
