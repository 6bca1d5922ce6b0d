"""`vit-check`: what every part of your own must do, tried in small runs before any real one."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from vit_train.base.text import reason
from vit_train.config.data import ShapesConfig
from vit_train.config.fields import sides
from vit_train.config.model import ViTConfig
from vit_train.config.run import CHOSEN_BY_NAME, TrainConfig, with_settings
from vit_train.config.tools import ExportConfig
from vit_train.config.training import LoopConfig
from vit_train.figures.measures import FIGURES, NUMBERS
from vit_train.interop.export import export
from vit_train.loop import schedule, trainer
from vit_train.model import attention, layers, positions, vit
from vit_train.run.folder import Launch
from vit_train.run.train import train, train_in
from vit_train.tasks import make_task
from vit_train.trained.checkpoint import Checkpoint
from vit_train.trained.folder import last_checkpoint

# The tables of parts, by the setting that chooses from them.
TABLES: dict[str, Mapping[str, Any]] = {
    "model.positions": positions.POSITIONS,
    "model.attention": attention.ATTENTIONS,
    "model.activation": layers.ACTIVATIONS,
    "optim.schedule": schedule.SCHEDULES,
    **CHOSEN_BY_NAME,
}
# Small runs print nothing, and make no pictures of their figures.
SILENT = patch("logging.Logger.isEnabledFor", return_value=False)
UNDRAWN = patch("vit_train.run.reports.TensorBoard.figure", return_value=b"")


def check_parts(config: TrainConfig) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each part of the user's own, and its checks for `outcome`.

    The parts are tried with these settings, but with a shallow model and in short runs.
    """
    if type(config.data) is ShapesConfig:
        config = replace(config, data=ShapesConfig(train_images=32, test_images=8))
    loop = LoopConfig(epochs=1, batch_size=8, micro_batch=4)
    base = replace(shallow(config), train=loop, device="cpu", precision="fp32")
    measures = [*own(NUMBERS), *own(FIGURES), *(each.__name__ for each in trainer.CALLBACKS)]
    if measures:
        yield ", ".join(measures), called(base)
    for name, chosen in own_parts(base):
        yield name, tried(chosen, exported=name.startswith("model"))


def require_own_parts(config: TrainConfig) -> None:
    """Raise ValueError if a part that a run puts into a Vision Transformer is seen to be wrong.

    This takes less than a second. Random numbers are drawn, so seeds must be set later.
    """
    for name, chosen in own_parts(config):
        if chosen == config and type(config.model) is ViTConfig:
            outcome(name, assembled(shallow(config)))


def shallow(config: TrainConfig) -> TrainConfig:
    """Return the config with a single block, unless the model is the user's own."""
    is_ours = type(config.model) is ViTConfig
    return with_settings(config, {"model.depth": 1}) if is_ours else config


def outcome(name: str, checks: Iterable[str]) -> str:
    """Run the checks of a part, each of which is named before it begins; return what was checked.

    If a check fails, raise ValueError from the error in the part.
    """
    done = ["import"]
    try:
        for check in checks:
            done.append(check)
    except Exception as error:  # a part can raise any error
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{name}: {done[-1]}: {kind}{reason(error)}") from error.__cause__ or error
    return f"{name}: {', '.join(done)}: ok"


def own(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a table whose code is neither this package's nor PyTorch's."""
    others = ("vit_train", "torch", "functools")
    return {n: each for n, each in table.items() if each.__module__.split(".")[0] not in others}


def own_parts(config: TrainConfig) -> Iterator[tuple[str, TrainConfig]]:
    """Yield each part of the user's own, with the config changed to use it."""
    with_vit = config if isinstance(config.model, ViTConfig) else replace(config, model=ViTConfig())
    for key, table in TABLES.items():
        for name, part in own(table).items():
            if key not in CHOSEN_BY_NAME:
                changed = with_settings(with_vit, {key: name})
            elif isinstance(getattr(config, key), part):
                changed = config
            else:
                changed = with_settings(config, {key: part()})
            yield f"{key}={name}", changed


def called(config: TrainConfig) -> Iterator[str]:
    """Call the user's metrics, figures and callbacks in a small run."""
    yield "called in a run"
    with TemporaryDirectory() as folder, SILENT, UNDRAWN:
        train(config, f"{folder}/run")


def built(config: TrainConfig, more: int = 0) -> nn.Module:
    """Build the task's model for two classes, and images that are `more` patches wider."""
    model: Any = config.model
    height, width = sides(
        config.data.value("image_size") or config.data.own_size or 4 * model.patch_size
    )
    shape = (3, height, width + more * model.patch_size)
    return make_task(config.task, model, shape, 2).build_model().eval()


def assembled(config: TrainConfig) -> Iterator[str]:
    """Check the initial weights and the shapes of a Vision Transformer."""
    if not isinstance(config.model, ViTConfig):
        return
    yield "initial weights"
    # Layers that PyTorch initializes get ones, which model.init must replace.
    with patch("torch.nn.init.kaiming_uniform_", lambda weight, a: nn.init.ones_(weight)):
        modules = dict(built(config).named_modules())
    tables = (each for each in modules.values() if isinstance(each, positions.PositionEmbedding))
    initialized = {layer for each in tables for layer in each.modules()}
    left = [
        name
        for name, layer in modules.items()
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer not in initialized
        if (layer.weight == 1).all()
    ]
    if left and config.model.init != "torch":
        raise ValueError(
            f"model.init={config.model.init} does not reach {', '.join(left)}: register attention "
            "in ATTENTIONS, or call vit_train.model.vit.init_weights(LAYER, config) for each layer "
            "that you add"
        )
    yield "shapes"
    encoder: Any = vit.encoder_of(built(config))
    x = torch.randn_like(encoder.tokens(torch.zeros(2, *encoder.image_shape)))  # (B,T,D)
    result, _ = encoder.encode(x)
    yield "shapes for one query, as in the last block"
    one, _ = encoder.encode(x, num_queries=1)
    if one.shape != x[:, :1].shape or not torch.allclose(one, result[:, :1], atol=1e-4):
        raise ValueError(
            f"the first of {x.shape[1]} tokens gets another result if it is the only query: q is "
            "then (B,H,1,Dh), and a bias needs as many rows as q"
        )


def tried(config: TrainConfig, exported: bool) -> Iterator[str]:
    """Check a part in small runs, one of them stopped and resumed, and one in bf16."""
    yield from assembled(config)
    if type(config.model) is ViTConfig:
        yield "another image size"
        with suppress(ValueError):  # positions that cannot be resized
            small: Any = vit.encoder_of(built(config))
            wide: Any = vit.encoder_of(built(config, more=2))
            state = positions.resize_positions(small.state_dict(), small.grid, wide)
            wide.load_state_dict(state)
    with (
        TemporaryDirectory() as name,
        SILENT,
        UNDRAWN,
        patch("vit_train.loop.workers.CORES", 2),  # so that threads share each step
        patch.multiple("vit_train.figures.measures", NUMBERS={}, FIGURES={}),
        patch("vit_train.run.train.CALLBACKS", []),
    ):
        folder = Path(name)
        yield "training"
        train(config, folder / "whole")
        yield "resuming"
        stopped = folder / "stopped"
        train(with_settings(config, {"train.max_minutes": 1e-9}), stopped)
        train_in(stopped, config, Launch(""), last_checkpoint(stopped), resumed=True)
        ends = (last_checkpoint(each) for each in (folder / "whole", stopped))
        whole, resumed = (Checkpoint.load(each).model for each in ends if each)
        if odd := [key for key, each in whole.items() if not each.equal(resumed[key])]:
            raise ValueError(
                f"a run that was stopped and resumed ends with another {odd[0]} than one that was "
                "not: draw random numbers with vit_train.base.rng, and keep what changes in "
                "parameters, buffers or the optimizer's state"
            )
        yield "bf16"
        train(replace(config, precision="bf16"), folder / "bf16")
        if exported:
            yield "export"
            export(ExportConfig(ckpt=str(folder / "whole"), format="torch"))
