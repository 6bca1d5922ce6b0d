"""Settings: dataclass fields with a help text and allowed values, checked on creation."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pkgutil import resolve_name
from types import NoneType
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from vit_train.base.reading import as_word
from vit_train.base.text import shortened

# Far above any real count.
LARGEST = 10**12
# About the largest 32-bit float.
LARGEST_FLOAT = 1e38
# The largest seed that random number generators accept.
LARGEST_SEED = 2**63 - 1
# The bounds that a number can have: in words, and as a comparison.
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "at_least": ("at least", operator.ge),
    "above": ("greater than", operator.gt),
    "at_most": ("at most", operator.le),
    "below": ("less than", operator.lt),
}
Entry = TypeVar("Entry")
# The height and width of images, in pixels or in patches.
Size = tuple[int, int]
# An image size as a setting: one number for square images, or a height and a width.
ImageSize = int | Sequence[int]
# The channels, height and width of images.
ImageShape = tuple[int, int, int]


class Reported(Exception):
    """An error with which a command ends with an exit status of its own."""

    exit_status: int


class UsageError(Reported, ValueError):
    """Raised if the command line is wrong, before anything is done."""

    exit_status = 2


def setting(
    default: Any,
    text: str,
    *,
    choices: tuple[object, ...] = (),
    suffixes: tuple[str, ...] = (),
    alters: Literal["nothing", "rounding", "machine", "results"] = "results",
    kept_by_fork: bool | None = None,
    shapes: bool | str = False,
    otherwise: object = None,
    is_size: bool = False,
    **bounds: float,
) -> Any:
    """Return a dataclass field with a help text, allowed values, and what the setting does.

    The name of a file must end in one of the `suffixes`, if given.

    `alters` is the most that another value changes. "machine" means that another value changes
    results, but that another machine may need it. A setting that is `kept_by_fork` belongs to the
    state that fork= and extend= carry over, so they cannot change it; None means the value of
    `kept_by_fork` in the setting's class. A setting that `shapes` a model determines the meaning of
    the model's weights; a text names a property that does so instead of the setting itself. The
    value None (null) leaves a setting open until a run starts, because its value may depend on
    pretrained weights, for example; `otherwise` is the value if nothing determines it. A setting
    that `is_size` is an image size: a number for square images, or a list of two.

    `bounds` are keyword arguments with names from BOUNDS, such as at_least=1. Bounds apply to a
    number and to each number in a list, but not to None. A callable `default` is called to make the
    default value of each instance.
    """
    metadata = {
        "help": text,
        "choices": choices,
        "suffixes": suffixes,
        "alters": alters,
        "kept_by_fork": kept_by_fork,
        "shapes": shapes,
        "otherwise": otherwise,
        "is_size": is_size,
        "bounds": bounds,
    }
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def size_of(name: str, value: Any) -> Size:
    """Return the height and width that a setting stands for; raise ValueError for other values."""
    given = value if isinstance(value, list | tuple) else (value, value)
    numbers = [int(str(each)) if str(each).isdecimal() else 0 for each in given]
    if len(numbers) != 2 or not all(1 <= number <= LARGEST for number in numbers):
        raise ValueError(
            f"{name}={shortened(str(value), 60)} must be a positive number of pixels, or two for "
            "[height,width]"
        )
    height, width = numbers
    return height, width


def sides(size: ImageSize) -> Size:
    """Return the height and width that an image size, one number or two, stands for."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def in_pixels(size: ImageSize) -> str:
    """Return an image size as text: "64 by 64 pixels"."""
    height, width = sides(size)
    order = "" if height == width else " (height by width)"
    return f"{height:,} by {width:,} pixels{order}"


def as_setting(size: Sequence[int]) -> int | list[int]:
    """Return a height and width as an image size: one number for square images, or a list."""
    height, width = size
    return height if height == width else [height, width]


def seed_setting(text: str) -> Any:
    """Return a dataclass field for a random seed, from 0 to LARGEST_SEED."""
    return setting(0, text, at_least=0, at_most=LARGEST_SEED)


@dataclass
class Settings:
    """Base class of all settings; creation raises ValueError for values that are not allowed."""

    # The prefix of these settings' names on the command line; "" for none.
    group: ClassVar[str] = ""
    # True if fork= and extend= cannot change these settings, unless a field says otherwise.
    kept_by_fork: ClassVar[bool] = True
    # What these settings configure: a class or function, or its place, such as "module:name".
    builds: ClassVar[Any] = None

    def value(self, name: str) -> Any:
        """Return a setting's value or, if it is null, its value of `otherwise` (see `setting`)."""
        own = getattr(self, name)
        if isinstance(own, Settings):
            return own.settled()
        return self.__dataclass_fields__[name].metadata.get("otherwise") if own is None else own

    def settled(self) -> Self:
        """Return a copy in which each setting, also of groups, has its `value`."""
        return replace(self, **{each.name: self.value(each.name) for each in fields(self)})

    def __post_init__(self) -> None:
        for each in fields(self):
            name = f"{self.group}.{each.name}".removeprefix(".")
            value = getattr(self, each.name)
            if each.metadata.get("is_size") and value is not None:
                setattr(self, each.name, as_setting(size_of(name, value)))
            items = {name: value}
            if isinstance(value, list):
                items = {f"{name}[{number}]": item for number, item in enumerate(value)}
            for key, item in items.items():
                if item is not None and (required := violated_requirement(item, each.metadata)):
                    or_null = ", or null" if key == name and NoneType in get_args(each.type) else ""
                    raise ValueError(f"{key}={item} must be {required}{or_null}")


def violated_requirement(value: Any, metadata: Mapping[str, Any]) -> str:
    """Return the requirement that `value` violates, such as "at least 1".

    Return "" if the value is allowed.
    """
    choices = metadata.get("choices")
    bounds = metadata.get("bounds", {})
    if choices and value not in choices:
        return f"one of: {', '.join(map(as_word, choices))}"
    if (suffixes := metadata.get("suffixes")) and not value.endswith(suffixes):
        return f"a file name that ends in {' or '.join(suffixes)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if not all(BOUNDS[bound][1](value, limit) for bound, limit in bounds.items()):
        return " and ".join(f"{BOUNDS[bound][0]} {limit}" for bound, limit in bounds.items())
    largest = max(bounds.get("at_most", 0), LARGEST_FLOAT if isinstance(value, float) else LARGEST)
    return "" if abs(value) <= largest else f"between {-largest} and {largest}"


def chosen(table: Mapping[str, Entry], key: str, name: str) -> Entry:
    """Return `table[name]`, the entry that the setting `key`=`name` selects.

    Raise UsageError if there is no such entry.
    """
    if name not in table:
        raise UsageError(
            f"{key}={name} must be one of: {', '.join(table)}; if your own module "
            f"registers {name}, add import=MODULE"
        )
    return table[name]


def builder(settings: Settings) -> Callable[..., Any]:
    """Import and return the class or function that the class of `settings` builds.

    Raise ValueError if the class has no attribute `builds`.
    """
    kind = type(settings)
    if kind.builds is None:
        raise ValueError(f"{kind.__name__} builds nothing: set its attribute `builds`")
    if not isinstance(kind.builds, str):
        return kind.builds  # type: ignore[no-any-return]
    return resolve_name(kind.builds)  # type: ignore[no-any-return]
