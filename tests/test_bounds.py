"""No setting takes a number that nothing can reckon with, whichever command it belongs to."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest
from omegaconf import OmegaConf

from vit_train.base.setting import LARGEST, LARGEST_SEED, Settings, registered, setting
from vit_train.data.config import FolderConfig, ShapesConfig
from vit_train.runs import settings as after
from vit_train.runs.config import CHOSEN_BY_NAME, TrainConfig, typed
from vit_train.tasks.config import DistillConfig

NEEDED: dict[type, dict[str, Any]] = {FolderConfig: {"root": "x"}, DistillConfig: {"teacher": "x"}}


def all_kinds() -> list[type[Settings]]:
    """The classes of all commands' settings, and of the parts and choices in them."""
    groups = [kind for choices in CHOSEN_BY_NAME.values() for kind in choices.values()]
    asked, found = [TrainConfig, *groups, *vars(after).values()], []
    for kind in asked:
        if isinstance(kind, type) and is_dataclass(kind) and kind not in found:
            found.append(kind)
            asked += [each for each in get_type_hints(kind).values() if is_dataclass(each)]
    return found


def numeric(kind: type[Settings]) -> Iterator[tuple[str, Any]]:
    """The fields that may be a number, or numbers, and their types."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        if {int, float, list[int], list[float]} & {hint, *get_args(hint)}:
            yield each.name, hint


def test_there_are_many() -> None:
    names = {f"{kind.group}.{name}" for kind in all_kinds() for name, _ in numeric(kind)}
    assert len(names) > 60
    assert {".seed", "train.epochs", "data.draw_seed", "model.widths", "data.std"} <= names
    assert {".batch_size", "data.image_size", ".images", "task.given_rows"} <= names


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.__name__)
def test_each_has_bounds(kind: type[Settings]) -> None:
    config = kind(**NEEDED.get(kind, {}))
    for name, hint in numeric(kind):
        types = {hint, *get_args(hint)}
        listed = {list[int], list[float]} & types
        is_int = {int, list[int]} & types
        for value in (10**400, 2**63, -(2**63)) if is_int else (1e300, -1e300, float("inf")):
            key = f"{kind.group}.{name}".removeprefix(".") + ("[1]" if listed else "")
            with pytest.raises(ValueError, match=" must be ") as caught:
                replace(config, **{name: [1, value] if listed else value})
            assert str(caught.value).startswith(f"{key}={value}"), (key, value)


def test_what_is_within_them_is_taken() -> None:
    config = OmegaConf.merge(OmegaConf.structured(TrainConfig), {"data": ShapesConfig})
    for group in ("model", "task", "optim"):
        config = OmegaConf.merge(config, {group: next(iter(CHOSEN_BY_NAME[group].values()))})
    config.seed = config.data.split_seed = config.data.draw_seed = LARGEST_SEED
    config.train.epochs = config.train.log_every = LARGEST
    assert typed(config, TrainConfig).data.split_seed == LARGEST_SEED


@pytest.mark.parametrize(
    ("bounds", "right", "wrong", "words"),
    [
        ({"at_least": 1}, [1, None], 0, "some.value=0 must be at least 1, or null"),
        ({"above": 0}, [0.5, None], 0, "some.value=0 must be greater than 0, or null"),
        ({"at_most": 3}, [3, -9], 4, "some.value=4 must be at most 3, or null"),
        ({"below": 1}, [0.9], 1, "some.value=1 must be less than 1, or null"),
        ({"at_least": 0, "below": 1}, [0], 1, "must be at least 0 and less than 1, or null"),
        ({"choices": ("a", True)}, ["a", True], "b", "some.value=b must be one of: a, true, or"),
        ({"above": 0}, [[1, 2]], [1, 0], "some.value[1]=0 must be greater than 0"),
        ({}, [1e38, -1e38], float("nan"), "some.value=nan must be a finite number, or null"),
    ],
)
def test_a_value_is_allowed_or_refused_by_its_name(
    bounds: dict[str, Any], right: list[Any], wrong: object, words: str
) -> None:
    namespace = {"__annotations__": {"value": int | None}, "group": "some"}
    kind: Any = dataclass_of(namespace | {"value": setting(None, "A value.", **bounds)})
    for value in right:
        assert kind(value).value == value
    with pytest.raises(ValueError) as caught:
        kind(wrong)
    assert words in str(caught.value)


def dataclass_of(namespace: dict[str, Any]) -> type:
    return dataclass(type("Bounded", (Settings,), namespace))


def test_a_constructor_serves_subclasses_that_have_none_of_their_own() -> None:
    class Own(ShapesConfig):
        pass

    table = {Settings: "base", ShapesConfig: "shapes"}
    assert registered(table, Own()) == "shapes" and registered(table, TrainConfig()) == "base"
    with pytest.raises(ValueError, match="Own has no constructor"):
        registered({TrainConfig: ""}, Own())
