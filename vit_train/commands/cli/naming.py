"""The name of a new run's folder: what was chosen on the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.conf import HydraConf
from omegaconf import OmegaConf

from vit_train.commands.cli.arguments import parsed
from vit_train.runs.paths import CONFIG
from vit_train.text import file_name


def run_name(overrides: Sequence[str], choices: Mapping[str, str], root: str | None) -> str:
    """Return the name of the experiment, A+B for several; without one, what is trained on what.

    A run that extends another has the name of the folder that this one is in, such as cifar10-tiny.
    `choices` are those of the groups, and `root` is the folder of the data, if they have one.
    """
    chosen, otherwise = None, what_on_what(choices, root)
    for override in parsed(overrides):
        value = override.value()
        if override.key_or_group == "extend" and isinstance(value, str):
            path = Path(value).resolve()
            if path.is_dir():  # what is not must not be made
                if not (path / CONFIG).exists():
                    return path.name or otherwise
                beside = path.parent.name
                return f"{path.name}-extended" if beside in ("outputs", "") else beside
        if override.key_or_group == "experiment":
            chosen = value
    names = chosen if isinstance(chosen, list) else [chosen]
    return "+".join(str(name) for name in names if name is not None) or otherwise


def what_on_what(choices: Mapping[str, str], root: str | None) -> str:
    """Return a name such as cifar10-tiny, or cifar10-tiny-reconstruct for a task without labels.

    Of a folder of one's own images, it has the name.
    """
    data, task = choices["data"], choices["task"]
    if data == "folder" and root:
        data = file_name(Path(root).expanduser().resolve().name) or data
    return f"{data}-{choices['model']}" + ("" if task == "classify" else f"-{task}")


def is_named(settings: HydraConf) -> bool:
    """Return whether the command line names the folder itself."""
    return any(override.startswith("hydra.run.dir=") for override in settings.overrides.hydra)


def register_run_name() -> None:
    """Let conf/train.yaml call `run_name`."""
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)
