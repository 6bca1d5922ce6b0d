"""The map of the code: which room may import which, one way, and how much of that there is.

A room is a folder of the package with all below it, or a module at its root.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import vit_train

PACKAGE = Path(vit_train.__file__).parent
# From the ground floor up: each room, and all it may import.
MAY_IMPORT: dict[str, set[str]] = {
    "text": set(),
    "rng": set(),
    "limits": set(),
    "setting": set(),
    "files": set(),
    "explain": set(),
    "model": {"rng", "setting"},
    "layouts": {"model"},
    "data": {"files", "limits", "setting", "text"},
    "engine": {"rng", "setting"},
    "tasks": {"data", "engine", "explain", "model", "setting"},
    "config": {"data", "engine", "model", "setting", "tasks"},
    "viz": {"data", "explain", "model", "tasks", "text"},
    "report": {"engine", "files", "text", "viz"},
    "runs": {
        *("config", "data", "engine", "explain", "files", "layouts", "limits"),
        *("model", "report", "setting", "tasks", "text", "viz"),
    },
    "__init__": {"config", "model", "runs"},
    "commands": {"config", "files", "limits", "runs", "text"},
}
MOST_ROOMS, MOST_FLOORS, MOST_IMPORTS = 18, 8, 58
# Hydra and its configs are for these alone.
KNOW_HYDRA = {
    "config.py",
    "commands",
    "runs/training/folder.py",
    "runs/training/run_summary.py",
    "runs/settings.py",
}


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, inside functions and for types alone, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str:
    """The room of a module, or of a name in it: "engine" of vit_train.engine.optim.AdamW."""
    part = [*name.split("."), ""][1]
    there = (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file()
    return part if part and there else "__init__"


@cache
def rooms() -> dict[str, set[str]]:
    """Each room with the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        named = {room_of(name) for name in imports(path) if name.split(".")[0] == "vit_train"}
        found.setdefault(room, set()).update(named - {room})
    return found


def floor(room: str, above: tuple[str, ...] = ()) -> int:
    """1 for a room that imports none, else one more than the highest that it imports."""
    assert room not in above, f"a circle: {' → '.join((*above, room))}"
    return 1 + max((floor(below, (*above, room)) for below in rooms()[room]), default=0)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_what_the_map_says(room: str) -> None:
    assert rooms()[room] == MAY_IMPORT[room]


def test_the_house_is_small() -> None:
    floors = {room: floor(room) for room in rooms()}
    count = sum(map(len, rooms().values()))
    for level in range(max(floors.values()), 0, -1):
        print(level, *sorted(room for room in floors if floors[room] == level))
    print(f"{len(floors)} rooms on {max(floors.values())} floors, {count} imports between them")
    assert set(floors) == set(MAY_IMPORT) and len(floors) <= MOST_ROOMS
    assert max(floors.values()) <= MOST_FLOORS and count <= MOST_IMPORTS


def test_the_parts_of_runs_stand_on_each_other_and_all_on_its_own_modules() -> None:
    below: dict[str, set[str]] = {}
    for path in (PACKAGE / "runs").rglob("*.py"):
        part = path.relative_to(PACKAGE / "runs").parts[0]
        named = {name.split(".")[2] for name in imports(path) if name.startswith("vit_train.runs.")}
        parts = {name for name in named - {part} if (PACKAGE / "runs" / name).is_dir()}
        below.setdefault(part, set()).update(parts)
    assert not {part for part in below if part.endswith(".py") and below[part]}
    list(TopologicalSorter(below).static_order())  # raises CycleError for a circle


def test_only_the_room_that_draws_imports_matplotlib() -> None:
    """It does so without the settings of the current folder, which may be somebody else's."""
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        roots = {name.split(".")[0] for name in imports(path)}
        assert place.parts[0] == "viz" or "matplotlib" not in roots, place


def test_only_the_outermost_rooms_know_hydra() -> None:
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if not {place.parts[0], place.as_posix()} & KNOW_HYDRA:
            roots = {name.split(".")[0] for name in imports(path)}
            assert not roots & {"hydra", "omegaconf"}, place
