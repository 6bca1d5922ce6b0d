"""The map of the code: which room may import which, one way, and how much of it there is.

A room is a folder of the package with all below it, or the package's own `__init__.py`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from PIL import Image

import vit_train

PACKAGE = Path(vit_train.__file__).parent
# From the ground floor up: each room, and all it may import.
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "config": {"base"},
    "model": {"base", "config"},
    "loop": {"base", "config"},
    "data": {"base", "config"},
    "tasks": {"config", "data", "loop", "model"},
    "figures": {"base", "config", "data", "loop", "model", "tasks"},
    "trained": {"base", "config", "data", "loop", "model", "tasks"},
    "explain": {"base", "config", "data", "figures", "loop", "model", "tasks", "trained"},
    "interop": {"base", "config", "data", "model", "trained"},
    "evaluate": {"base", "config", "data", "explain", "figures", "loop", "model", "trained"},
    "run": {
        *("base", "config", "data", "evaluate", "explain", "figures", "interop", "loop"),
        *("model", "tasks", "trained"),
    },
    # Its tools name functions of explain and interop, too, as text: they are imported when called.
    "commands": {"base", "config", "evaluate", "run", "trained"},
    "__init__": {"config", "model", "run", "trained"},
}
# 8,000 statements in 110 files held all of the program once. Comparing runs has needed 370 more,
# images of one's own 1,260: tables, weights, groups, tags, rectangles, copies, wrong labels, what
# does not fit into memory, abstaining, fine-tuning. PatchDropout and counting the arithmetic of
# decoders and of dropped patches have needed 50, and sixty faults found by reading, 30. What real
# folders, bug reports and failing disks showed has needed 310, and a fast CNN that teaches, 50,
# its hints another 40.
# Nodes are counted instead of statements now, because packing statements does not change them.
MOST = {
    "syntax nodes in vit_train": 102_035,
    "statements in tests": 12_991,
    "files": 118,
    "rooms": 14,
    "floors": 9,
    "modules that vit-predict imports": 59,
    "modules that vit-train imports up to its first epoch": 73,
}
# Hydra and its configs are for the outermost places alone. Only the room that draws imports
# matplotlib, without the settings of the current folder, which may be somebody else's.
KNOW_HYDRA = {
    "commands",
    "config/run.py",
    "run/folder.py",
}
KNOWN_TO = {"matplotlib": {"figures"}, "hydra": KNOW_HYDRA, "omegaconf": KNOW_HYDRA}


FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file names in an import, inside functions and for types alone, too."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return frozenset(map(module_named, found))


def module_named(name: str) -> str:
    """The module of a name in it: vit_train.loop.state of vit_train.loop.state.Best."""
    while name not in FILES and name.startswith("vit_train."):
        name = name.rpartition(".")[0]
    return name


def room_of(module: str) -> str:
    return [*module.split("."), "__init__"][1]


@cache
def rooms() -> dict[str, set[str]]:
    """Each room with the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for module, path in FILES.items():
        room = room_of(module)
        named = {room_of(name) for name in imports(path) if name in FILES}
        found.setdefault(room, set()).update(named - {room})
    return found


def floor(room: str) -> int:
    """1 for a room that imports no other, else one more than the highest that it imports."""
    return 1 + max(map(floor, rooms()[room]), default=0)


def nodes(folder: Path) -> Iterator[ast.AST]:
    """The nodes of the syntax trees below a folder, without docstrings and contexts like Load."""
    for path in folder.rglob("*.py"):
        rest: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        while rest:
            node = rest.pop()
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.expr_context) or (
                is_text and isinstance(node.value.value, str)
            ):
                continue
            yield node
            rest += ast.iter_child_nodes(node)


def statements(folder: Path) -> int:
    return sum(isinstance(node, ast.stmt) for node in nodes(folder))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_what_the_map_says(room: str) -> None:
    assert rooms()[room] == MAY_IMPORT[room]


def test_no_files_import_each_other_in_a_circle() -> None:
    """Not even for types alone."""
    graph = {
        module: {name for name in imports(path) if name in FILES} - {module, "vit_train"}
        for module, path in FILES.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError for a circle


# Two processes share the import of PyTorch.
IMPORTED = """\
import contextlib, os, sys, torch
if os.fork() == 0:
    command, sys.argv[1:] = "predict", {predicting}
else:
    os.wait()
    command, sys.argv[1:] = "train", {training}
from vit_train.commands import start
with contextlib.suppress(SystemExit):
    getattr(start, command)()
slow = {{"matplotlib", "torchvision"}} & sys.modules.keys()
print(command, sum(name.split(".")[0] == "vit_train" for name in sys.modules), *slow)
"""
TRAIN = ["data.train_images=40", "data.test_images=20", "model.depth=1", "train.max_minutes=1e-9"]


def test_the_house_is_small(tmp_path: Path) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "photo.png")
    code = IMPORTED.format(predicting=["images=photo.png", "ckpt=builtin:cifar10"], training=TRAIN)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    slow = {words[0]: words[2:] for words in lines if words[:1] in (["predict"], ["train"])}
    assert slow == {"predict": [], "train": ["matplotlib"]}
    imported = {words[0]: int(words[1]) for words in lines if words[:1] in (["predict"], ["train"])}
    figures = {
        "syntax nodes in vit_train": sum(1 for _ in nodes(PACKAGE)),
        "statements in tests": statements(Path(__file__).parent),
        "files": len(FILES),
        "rooms": len(rooms()),
        "floors": max(map(floor, rooms())),
        "modules that vit-predict imports": imported["predict"],
        "modules that vit-train imports up to its first epoch": imported["train"],
    }
    for name, figure in figures.items():
        print(f"{name}: {figure:,} of at most {MOST[name]:,}")
    assert all(figure <= MOST[name] for name, figure in figures.items())


@pytest.mark.parametrize("library", KNOWN_TO)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    for path in FILES.values():
        place = path.relative_to(PACKAGE)
        if not {place.parts[0], place.as_posix()} & KNOWN_TO[library]:
            assert library not in {name.split(".")[0] for name in imports(path)}, place
