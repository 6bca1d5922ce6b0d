"""`trackers=`: send a run's curves to Trackio, Weights & Biases or MLflow as well."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from vit_train.base.log import logger
from vit_train.base.reading import flatten
from vit_train.base.text import reason


class Wandb:
    """Weights & Biases, or Trackio, which has the same functions."""

    def __init__(self, module: Any, folder: Path, settings: dict[str, Any]) -> None:
        known = {"id": folder.name} if module.__name__ == "wandb" else {}
        run = module.init(
            project=folder.absolute().parent.name,
            name=folder.name,
            config=settings,
            resume="allow",
            **known,
        )
        self.log, self.close = run.log, run.finish


class Mlflow:
    """MLflow, which finds an earlier run by its name."""

    def __init__(self, module: Any, folder: Path, settings: dict[str, Any]) -> None:
        module.set_experiment(folder.absolute().parent.name)
        query = f"attributes.run_name = '{folder.name}'"
        found = module.search_runs(filter_string=query, output_format="list")
        module.start_run(run_id=found[0].info.run_id if found else None, run_name=folder.name)
        if not found:  # MLflow allows no changes, such as of train.max_minutes
            module.log_params({key: str(value)[:500] for key, value in flatten(settings)})
        self.log, self.close = module.log_metrics, module.end_run


def open_tracker(name: str, folder: Path, settings: dict[str, Any]) -> Wandb | Mlflow:
    """Open the named tracker; raise ValueError if its package is missing or cannot start."""
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"trackers=[{name}] needs a package: pip install {name}") from error
    try:
        return (Mlflow if name == "mlflow" else Wandb)(module, folder, settings)
    except Exception as error:  # of any kind, such as for a missing login
        raise ValueError(f"trackers=[{name}] cannot start: {reason(error)}") from error


class Trackers:
    """The trackers of a run; if a tracker fails, training continues without it.

    When a run is resumed, each tracker continues the same record.
    """

    def __init__(self, names: list[str], folder: Path, settings: dict[str, Any]) -> None:
        self.opened = {name: open_tracker(name, folder, settings) for name in names}

    def log(self, values: dict[str, float], step: int) -> None:
        self.with_each(lambda tracker: tracker.log(values, step))

    def close(self) -> None:
        self.with_each(lambda tracker: tracker.close())

    def with_each(self, act: Callable[[Any], None]) -> None:
        for name, tracker in list(self.opened.items()):
            try:
                act(tracker)
            except Exception as error:  # of the network, or of the package
                logger.warning(f"trackers: no longer sending to {name}: {reason(error)}")
                del self.opened[name]
