"""`vit-check`: what every part of your own must do, tried in small runs before any real one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from vit_train.base.text import reason
from vit_train.config.data import ShapesConfig
from vit_train.config.fields import sides
from vit_train.config.model import ViTConfig
from vit_train.config.run import CHOSEN_BY_NAME, TrainConfig, values, with_settings
from vit_train.config.tools import ExportConfig
from vit_train.config.training import LoopConfig
from vit_train.figures.measures import FIGURES, NUMBERS
from vit_train.interop.export import export
from vit_train.loop.trainer import CALLBACKS
from vit_train.model import positions, vit
from vit_train.model.attention import attention_of
from vit_train.run.folder import TABLES
from vit_train.run.train import train, train_in
from vit_train.tasks import make_task
from vit_train.trained.checkpoint import Checkpoint
from vit_train.trained.folder import Launch, last_checkpoint
from vit_train.trained.own_code import is_own_part


def check_parts(config: TrainConfig) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each part of the user's own, and its checks for `outcome`.

    The parts are tried with these settings, but with a shallow model and in short runs.
    """
    if type(config.data) is ShapesConfig:
        few = replace(
            config.data, train_images=32, test_images=8, train_subset=None, test_subset=None
        )
        config = replace(config, data=few)
    loop = LoopConfig(epochs=1, batch_size=8, micro_batch=4)
    base = replace(shallow(config), train=loop, device="cpu", precision="fp32")
    for name, each in own(NUMBERS).items():
        yield name, called(base, numbers={name: each})
    for name, each in own(FIGURES).items():
        yield name, called(base, figures={name: each})
    for callback in CALLBACKS:
        yield getattr(callback, "__name__", str(callback)), called(base, callbacks=[callback])
    for key, name, part in own_parts():
        yield f"{key}={name}", tried(base, key, name, part)


def require_own_parts(config: TrainConfig) -> None:
    """Raise ValueError if a part that a run puts into a Vision Transformer is seen to be wrong.

    This takes less than a second. Random numbers are drawn, so seeds must be set later.
    """
    used = values(config)
    for key, name, _ in own_parts():
        is_used = name == used.get(key, used.get(f"{key}.name"))
        if is_used and type(config.model) is ViTConfig:
            outcome(f"{key}={name}", assembled(shallow(config)))


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
        why = reason(error)
        kind = type(error).__name__
        if not isinstance(error, ValueError) and why != kind:
            why = f"{kind}: {why}"
        raise ValueError(f"{name}: {done[-1]}: {why}") from error.__cause__ or error
    return f"{name}: {', '.join(done)}: ok"


def own(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a table that the user's own code defines."""
    return {name: each for name, each in table.items() if is_own_part(each)}


def own_parts() -> Iterator[tuple[str, str, Any]]:
    """Yield the setting that chooses each part of the user's own, its name, and the part."""
    for key, table in TABLES.items():
        for name, part in own(table).items():
            yield key, name, part


def using(config: TrainConfig, key: str, name: str, part: Any) -> TrainConfig:
    """Return the config, changed if necessary to use a part."""
    if key not in CHOSEN_BY_NAME:
        has_vit = isinstance(config.model, ViTConfig)
        return with_settings(config if has_vit else replace(config, model=ViTConfig()), {key: name})
    is_used = isinstance(getattr(config, key), part)
    return config if is_used else with_settings(config, {key: part()})


@contextmanager
def small_runs(
    numbers: Mapping[str, Any] = {}, figures: Mapping[str, Any] = {}, callbacks: Sequence[Any] = ()
) -> Iterator[Path]:
    """Within the block, let runs print and draw nothing, and call only these; yield a folder."""
    with (
        TemporaryDirectory() as folder,
        patch("logging.Logger.isEnabledFor", return_value=False),
        patch("vit_train.run.reports.TensorBoard.figure", return_value=b""),
        patch.multiple("vit_train.figures.measures", NUMBERS=numbers, FIGURES=figures),
        patch("vit_train.run.train.CALLBACKS", callbacks),
    ):
        yield Path(folder)


def called(config: TrainConfig, **only: Any) -> Iterator[str]:
    """Call a metric, a figure or a callback of the user's in a small run."""
    yield "called in a run"
    with small_runs(**only) as folder:
        train(config, folder / "run")


def built(config: TrainConfig, more: int = 0) -> nn.Module:
    """Build the task's model for two classes, and images that are `more` patches wider."""
    model: Any = config.model
    height, width = sides(config.data.image_size or config.data.own_size or 4 * model.patch_size)
    shape = (3, height, width + more * model.patch_size)
    return make_task(config.task, model, shape, 2).build_model().eval()


def assembled(config: TrainConfig) -> Iterator[str]:
    """Check the initial weights, the shapes and the attention of a Vision Transformer."""
    if not isinstance(config.model, ViTConfig):
        return
    yield "initial weights"
    require_initialized(config, config.model.init)
    encoder: Any = vit.encoder_of(built(config))
    x = torch.randn_like(encoder.tokens(torch.zeros(2, *encoder.image_shape)))  # (B,T,D)
    yield from encoded(encoder, x)
    if attention_of(config.model).has_weights:
        yield from attended(encoder, x, is_ours=type(config.model) is ViTConfig)


def require_initialized(config: TrainConfig, init: str) -> None:
    """Raise ValueError if model.init does not reach a layer of the model."""
    # Layers that only PyTorch's default initializes get ones, which model.init must replace.
    with (
        patch.object(nn.Linear, "reset_parameters", fill_with_ones),
        patch.object(nn.Conv2d, "reset_parameters", fill_with_ones),
    ):
        modules = dict(built(config).named_modules())
    tables = (each for each in modules.values() if isinstance(each, positions.PositionEmbedding))
    initialized = {layer for each in tables for layer in each.modules()}
    left = [
        name
        for name, layer in modules.items()
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer not in initialized
        if (layer.weight == 1).all()
    ]
    if left and init != "torch":
        raise ValueError(
            f"model.init={init} does not reach {', '.join(left)}: register attention "
            "in ATTENTIONS, or call vit_train.model.vit.init_weights(LAYER, config) for each layer "
            "that you add"
        )


def encoded(encoder: Any, x: Tensor) -> Iterator[str]:
    """Check the shapes of an encoder's results for tokens (B,T,D)."""
    yield "shapes"
    result, _ = encoder.encode(x)
    require_same(result, encoder.encode(x)[0], "results differ between two calls in eval mode")
    yield "shapes for one query, as in the last block"
    one, _ = encoder.encode(x, num_queries=1)
    require_same(
        one,
        result[:, :1],
        f"the first of {x.shape[1]} tokens gets another result if it is the only query: q is then "
        "(B,H,1,Dh), and a bias needs as many rows as q",
    )


def attended(encoder: Any, x: Tensor, is_ours: bool) -> Iterator[str]:
    """Check the weights of attention to tokens (B,T,D) and, in a model that `is_ours`, the mask."""
    yield "weights (B,H,T,T)"
    result, weights = encoder.encode(x, need_weights=True)
    if any(each is None or each.shape[2:] != 2 * x.shape[1:2] for each in weights):
        raise ValueError("each layer of attention must also return its weights, of this shape")
    yield "gradient of the result with respect to the weights"
    torch.autograd.grad(result.square().sum(), weights)
    if is_ours:
        yield "hidden tokens"
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        visible[:, -1] = False
        other = torch.cat((x[:, :-1], -x[:, -1:]), dim=1)
        seen, same = (encoder.blocks[0].attn(each, mask=visible)[0][:, :-1] for each in (x, other))
        require_same(seen, same, "a token hidden by `bias` has influence: add `bias` to the logits")


def fill_with_ones(layer: nn.Module) -> None:
    nn.init.ones_(layer.weight)  # type: ignore[arg-type]


def require_same(result: Tensor, expected: Tensor, otherwise: str) -> None:
    """Raise ValueError with the message `otherwise` if two results differ by more than rounding."""
    if result.shape != expected.shape or not torch.allclose(result, expected, atol=1e-4):
        raise ValueError(otherwise)


def tried(config: TrainConfig, key: str, name: str, part: Any) -> Iterator[str]:
    """Check a part in small runs, one of them stopped and resumed, and one in bf16."""
    config = using(config, key, name, part)
    yield from assembled(config)
    if type(config.model) is ViTConfig:
        yield "another image size"
        small: Any = vit.encoder_of(built(config))
        wide: Any = vit.encoder_of(built(config, more=2))
        with suppress(ValueError):  # positions that cannot be resized
            state = positions.resize_positions(small.state_dict(), small.grid, wide)
            wide.load_state_dict(state)
        wide.encode(wide.tokens(torch.zeros(2, *wide.image_shape)))
    with (
        small_runs() as folder,
        patch("vit_train.loop.workers.CORES", 2),  # so that threads share each step
    ):
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
                f"a stopped and resumed run ends with a different {odd[0]} than an uninterrupted "
                "one: draw random numbers with vit_train.base.rng, and keep what changes in "
                "parameters, buffers or the optimizer's state"
            )
        yield "bf16"
        train(replace(config, precision="bf16"), folder / "bf16")
        if key.startswith("model"):
            yield "export"
            export(ExportConfig(ckpt=str(folder / "whole"), format="torch"))
