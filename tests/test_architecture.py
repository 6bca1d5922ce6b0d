"""The direction of the arrows in the map of the code: leaves know nothing of each other."""

import ast
from pathlib import Path

import vit_train

PACKAGE = Path(vit_train.__file__).parent
ROOMS_MAY_IMPORT = {
    "model": {"model", "noise"},
    "data": {"data", "files", "memory"},
    "engine": {"engine", "noise", "files", "plain"},
    "explain": {"explain", "model"},
    "tasks": {"tasks", "model", "data", "engine", "explain"},
    "report": {"report", "engine", "files", "__init__"},
}
ONLY_THESE_IMPORT_HYDRA = {"config.py", "run_folder.py", "commands"}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_rooms_import_only_what_the_map_allows() -> None:
    for room, allowed in ROOMS_MAY_IMPORT.items():
        for path in (PACKAGE / room).glob("*.py"):
            for name in imports(path):
                if name.split(".")[0] == "vit_train":
                    part = [*name.split("."), "__init__"][1]
                    assert part in allowed, f"{path.name} imports {name}"


def test_only_the_outermost_layer_knows_hydra() -> None:
    for path in PACKAGE.rglob("*.py"):
        inner = path.relative_to(PACKAGE).parts[0] not in ONLY_THESE_IMPORT_HYDRA
        if inner:
            roots = {name.split(".")[0] for name in imports(path)}
            assert not roots & {"hydra", "omegaconf"}, path
