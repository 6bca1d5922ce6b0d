"""No setting takes a number that nothing can reckon with, whichever command it belongs to."""

import copy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from omegaconf import DictConfig, OmegaConf

from vit_train.files.memory import LARGEST, LARGEST_SEED, require_in_bounds
from vit_train.runs.config import CHOSEN_BY_NAME, TrainConfig, typed
from vit_train.runs.settings import EvalConfig, SheetConfig

NEEDED: dict[type, dict[str, Any]] = {EvalConfig: {"ckpt": "x"}}


def composed(kind: type, **chosen: str) -> DictConfig:
    """The config that a command would compose, with these groups; others are the first ones."""
    config = OmegaConf.structured(kind)
    parts = {
        group: classes[chosen.get(group, next(iter(classes)))]
        for group, classes in CHOSEN_BY_NAME.items()
        if group in config and kind is not EvalConfig
    }
    config = OmegaConf.merge(config, parts, NEEDED.get(kind, {}))
    assert isinstance(config, DictConfig)
    if "data" in parts:
        config.data.root = "x"
    if chosen.get("task") == "distill":
        config.task.teacher = "x"
    return config


def numeric(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of all that may be a number, or numbers, and their types."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from numeric(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        elif {int, float} & {hint, *get_args(hint)}:
            yield prefix + field.name, hint


CASES: list[tuple[Any, dict[str, str], list[tuple[str, Any]]]] = [
    *((kind, {}, [(key, hint) for key, hint in numeric(kind)
                  if key.split(".")[0] not in CHOSEN_BY_NAME or kind is EvalConfig])
      for kind in (TrainConfig, EvalConfig, SheetConfig)),
    *((TrainConfig, {group: name}, list(numeric(part, f"{group}.")))
      for group, classes in CHOSEN_BY_NAME.items() for name, part in classes.items()),
]  # fmt: skip


def test_there_are_many() -> None:
    keys = {key for *_, settings in CASES for key, _ in settings}
    assert len(keys) > 60
    assert {"seed", "train.epochs", "data.draw_seed", "model.widths"} <= keys
    assert {"batch_size", "data.image_size", "images", "task.given_rows"} <= keys


@pytest.mark.parametrize(
    ("kind", "chosen", "settings"),
    CASES,
    ids=[f"{kind.__name__} {'/'.join(chosen.values())}" for kind, chosen, _ in CASES],
)
def test_each_has_bounds(
    kind: Any, chosen: dict[str, str], settings: list[tuple[str, Any]]
) -> None:
    config = composed(kind, **chosen)
    typed(config, kind)
    for number, (key, hint) in enumerate(settings):
        changed = copy.deepcopy(config)
        is_int = int in (hint, *get_args(hint))
        for value in (10**400, 2**63, -(2**63)) if is_int else (1e300, -1e300, float("inf")):
            OmegaConf.update(changed, key, [1, value] if hint == list[int] else value)
            with pytest.raises(ValueError, match=r"must be (between|a finite number)") as caught:
                if number:
                    require_in_bounds(OmegaConf.to_container(changed))
                else:  # once, as a command does it, which takes longer
                    typed(changed, kind)
            assert str(caught.value).startswith(f"{key}="), (key, value)


def test_what_is_within_them_is_taken() -> None:
    config = composed(TrainConfig, data="shapes")
    config.seed = config.data.split_seed = config.data.draw_seed = LARGEST_SEED
    config.train.epochs = config.train.log_every = LARGEST
    assert typed(config, TrainConfig).data.split_seed == LARGEST_SEED
