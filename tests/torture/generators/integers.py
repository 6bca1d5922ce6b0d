"""Integers of any size for every integer setting of every command."""

import random
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from torture.kills import SMALL, VIT
from torture.place import Place
from vit_train.runs.config import CHOSEN_BY_NAME, TrainConfig
from vit_train.runs.settings import EvalConfig, SheetConfig

SMALL_NUMBERS = (-(10**9), -2, -1, 0, 1, 2, 3, 5, 17)
LARGE = (
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, 10**400,
    -(2**31), -(2**63), -(2**63) - 1, -(2**64), 10**12, 10**15,
    "9" * 5000,  # more digits than Python reads by itself
)  # fmt: skip
COMMANDS = {
    "vit-train": TrainConfig,
    "vit-eval": EvalConfig,
    "vit-augment": SheetConfig,
}


def make(rng: random.Random, place: Place) -> None:
    command = rng.choice(["vit-train"] * 6 + ["vit-eval", "vit-augment", "vit-augment"])
    choice, key, many = rng.choice(list(integer_settings(COMMANDS[command])))
    numbers = LARGE if rng.random() < 0.7 else SMALL_NUMBERS
    number = rng.choice(numbers)
    value = rng.choice([f"[{number}]", f"[1,{number}]"]) if many else str(number)
    place.note(f"{command} {' '.join(choice)} {key}={value[:60]}")
    arguments = [*base(command, choice, place), *choice, f"{key}={value}"]
    if command == "vit-train":
        arguments += ["train.max_minutes=0.02", "hydra.run.dir=run"]
    place.run(command, *arguments, writes=["run", "sheet.png", "outputs"])


def base(command: str, choice: list[str], place: Place) -> list[str]:
    """Small, where the setting itself says nothing else."""
    if command == "vit-eval":
        place.copy("finished")
        return ["ckpt=run"]
    images = [] if choice and choice[0].startswith("data=") else SMALL[:2]
    if command == "vit-augment":
        return [*images, "out=sheet.png", "images=2", "variants=2"]
    model = [] if choice and choice[0].startswith("model=") else VIT
    return [*images, *SMALL[2:], *model]


def integer_settings(config: type) -> Iterator[tuple[list[str], str, bool]]:
    """(the group to choose for it, its key, whether it is a list of them)."""
    for key, kind in get_type_hints(config).items():
        if key in CHOSEN_BY_NAME and config is not EvalConfig:
            for name, chosen in CHOSEN_BY_NAME[key].items():
                group = [] if name in ("vit", "shapes") else [f"{key}={name}"]
                for _, inner, many in integer_settings(chosen):
                    yield group, f"{key}.{inner}", many
        elif is_dataclass(kind):
            for choice, inner, many in integer_settings(kind):  # type: ignore[arg-type]
                yield choice, f"{key}.{inner}", many
        elif is_integer(kind) or kind == list[int]:
            yield [], key, kind == list[int]


def is_integer(kind: Any) -> bool:
    """int, or int | None."""
    return kind is int or (isinstance(kind, types.UnionType) and int in get_args(kind))
