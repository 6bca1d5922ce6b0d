"""The user's own code: the modules that register parts, and their copies in a run's folder."""

import ast
import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from vit_train.base.log import logger
from vit_train.base.reading import read_object
from vit_train.config.run import IMPORT
from vit_train.trained.folder import SUMMARY, for_shell

# The folder of the copies, in a run's folder. Nothing is ever imported from it.
CODE = "code"
PACKAGE = Path(__file__).parents[1]
# The folders and the names of folders that hold the code of others.
OTHERS = {PACKAGE, Path(os.__file__).parent, "site-packages", "dist-packages"}


def own_modules() -> list[str]:
    """Return the modules that `import=A,B` or the variable VIT_TRAIN_IMPORT names."""
    typed = [each.removeprefix(IMPORT) for each in sys.argv[1:] if each.startswith(IMPORT)]
    return re.findall("[^,]+", ",".join(typed) or os.environ.get("VIT_TRAIN_IMPORT", ""))


def is_own(file: Path) -> bool:
    """Return True for a Python file that belongs to neither this package nor any library."""
    return file.suffix == ".py" and not OTHERS & {*file.parents, *file.parts}


def module_of(part: object) -> ModuleType | None:
    """Return the module that defines a class or function; text, such as "net:Net", names it."""
    if isinstance(part, partial):
        return module_of(part.func)
    if isinstance(part, str):
        return import_module(part.partition(":")[0])
    return sys.modules.get(str(getattr(part, "__module__", None)))


def file_of(module: ModuleType | None) -> Path:
    # Not getattr, which some modules answer with anything.
    return Path(str(getattr(module, "__dict__", {}).get("__file__")))


def is_own_part(part: object) -> bool:
    """Return True if the user's own code defines a class or function."""
    return is_own(file_of(module_of(part)))


def own_code(parts: Iterable[object] = ()) -> dict[str, bytes]:
    """Return the files of the user's own modules, by their names in a run's folder.

    These are the modules that `own_modules` names and those that define `parts`, with the files
    that they import from their own folder. Libraries are left out.
    """
    modules = [*map(sys.modules.get, own_modules()), *map(module_of, parts)]
    return dict(sorted(file for module in modules if module for file in sources(module).items()))


@cache  # as imported: files may be edited while the program runs
def sources(module: ModuleType) -> dict[str, bytes]:
    """Return the file of an own module, and all files of its folder that it can import.

    They are found in the text of the import statements, because which of these have been executed
    differs between processes.
    """
    file = file_of(module)
    if not is_own(file):
        return {}
    name = module.__spec__.name if module.__spec__ else file.stem  # without: the script that runs
    root = file.parents[name.count(".") + (file.name == "__init__.py")]
    found: dict[Path, bytes] = {}
    waiting = [file]
    while waiting:
        file = waiting.pop()
        if file not in found and root in file.parents and is_own(file) and file.is_file():
            found[file] = file.read_bytes()
            waiting += imported(file, found[file], root)
    return {each.relative_to(root).as_posix(): source for each, source in found.items()}


def imported(file: Path, source: bytes, root: Path) -> Iterator[Path]:
    """Yield the files below `root` that the code in a file may import, also if they are missing."""
    yield from (folder / "__init__.py" for folder in file.parents if root in folder.parents)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            level = getattr(node, "level", 0)  # the number of dots
            folder = file.parents[level - 1] if level else root
            start = getattr(node, "module", None) or ""
            for each in node.names:
                path = folder.joinpath(*start.split("."), *each.name.split("."))
                for module in (path, path.parent):  # a module, or a name in one
                    if module != root:
                        yield from (module.with_name(f"{module.name}.py"), module / "__init__.py")


def saved_code(run: Path) -> dict[str, bytes]:
    """Return the copies of own code in a run's folder, as `own_code` does."""
    names = read_object(run / SUMMARY).get("code", {})  # CODE may also hold runs started in it
    files = {file.relative_to(run / CODE).as_posix(): file for file in run.glob(f"{CODE}/**/*.py")}
    return {name: files[name].read_bytes() for name in sorted(files) if name in names}


def save_code(run: Path, code: Mapping[str, bytes]) -> None:
    for name, source in code.items():
        path = run / CODE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)


def require_same_code(run: Path, now: Mapping[str, bytes]) -> None:
    """Raise ValueError, with the difference, unless a run's own code is still the same.

    Runs of earlier versions recorded none.
    """
    then = saved_code(run)
    if changed := [name for name in then if then[name] != now.get(name, then[name])]:
        name = changed[0]
        before, after = (each[name].decode(errors="replace") for each in (then, now))
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        change = "\n".join([*lines][2:10])
        why = f"{name} changed after this run began:\n{change}\nrestore it from {run / CODE / name}"
    elif missing := then.keys() - now.keys():
        why = f"it needs {IMPORT}MODULE ({', '.join(sorted(missing))})"
    elif then and (new := now.keys() - then.keys()):
        why = f"{min(new)} is new: leave it out"
    else:
        return
    raise ValueError(
        f"cannot resume {run}: {why}, or continue with the new code in a new folder: "
        f"fork={for_shell(run)}"
    )


def warn_of_changes(run: Path, now: Mapping[str, bytes]) -> None:
    """Log a warning if any of these files differs from its copy in the run's folder."""
    then = saved_code(run) if now else {}
    if changed := [name for name in now if then.get(name, now[name]) != now[name]]:
        logger.warning(
            f"{', '.join(changed)} has changed since {run} was trained; the copy is in {run / CODE}"
        )
