"""summary.json of a run: where it comes from, what it is, and what came of it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from vit_train.base.reading import read_object
from vit_train.base.writing import write_json
from vit_train.engine.precision import bf16_speedup
from vit_train.runs import provenance
from vit_train.runs.checkpoint import Extended
from vit_train.training.setup import Setup

# What may differ between the processes that trained a run one after another.
HERE = ("commit", "versions", "machine", "precision")
# What Hydra calls the source of settings that --config-dir names.
FLAG = "command-line"


class RunSummary:
    """The summary of a new or `resumed` run; `extends` are the runs before it."""

    def __init__(self, path: Path, setup: Setup, extends: list[Extended], resumed: bool) -> None:
        self.path, self.setup, self.extends = path, setup, extends
        before = read_or_nothing(path) if resumed else {}
        # The command that began the run or, if that is lost, this process's.
        self.command = str(before.get("command", own_command()))
        self.earlier = trained_before(before)

    def write(self, status: str, **results: Any) -> None:
        setup = self.setup
        on_gpu = setup.device.type != "cpu"
        here = {
            "commit": provenance.commit(),
            "versions": provenance.versions(),
            "machine": provenance.machine(setup.device),
            "precision": setup.precision.name,
        }
        known = {
            "status": status,
            "command": self.command,
            "date": provenance.today(),
            **here,
            "bf16_speedup": None if on_gpu else round(bf16_speedup(setup.model), 2),
            "earlier": [each for each in self.earlier if each != here],
            "processes": setup.processes.count,
            "parameters": sum(parameter.numel() for parameter in setup.model.parameters()),
            "images": setup.sizes,
            "fingerprint": setup.data.fingerprint,
            "config": asdict(setup.config),
            "extends": [asdict(each) for each in self.extends],
            "teacher": setup.teacher or None,
        }
        write_json(self.path, known | results)


def in_sweep() -> bool:
    """Check for a job of a sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def own_command() -> str:
    """Return the command that repeats this run: of a sweep's job, one that trains it alone."""
    if not in_sweep():
        return provenance.command_line()
    settings = HydraConfig.get()
    folders = [each.path for each in settings.runtime.config_sources if each.provider == FLAG]
    flags = [f"--config-dir={folder}" for folder in folders]
    if settings.job.config_name != "train":
        flags.append(f"--config-name={settings.job.config_name}")
    # An experiment may make a sweep of each command that names it.
    return provenance.command_line([*settings.overrides.task, "hydra.mode=RUN", *flags])


def read_or_nothing(summary: Path) -> dict[str, Any]:
    """Return the content of a summary; {} if it is lost or damaged."""
    try:
        return dict(read_object(summary))
    except (OSError, ValueError):
        return {}


def trained_before(summary: dict[str, Any]) -> list[Any]:
    """Return the commits, versions, machines and precisions of a run before it was resumed."""
    if not summary.keys() >= set(HERE):
        return []
    last, earlier = {key: summary[key] for key in HERE}, summary.get("earlier")
    more = earlier if isinstance(earlier, list) else []
    return [*(each for each in more if each != last), last]
