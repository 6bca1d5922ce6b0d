"""The user's own code: the modules that register parts, and their copies in a run's folder."""

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from vit_train.base.log import logger
from vit_train.config.run import IMPORT
from vit_train.trained.folder import for_shell

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


def own_code(parts: Iterable[object] = ()) -> dict[str, bytes]:
    """Return the files of the user's own modules, by their names in a run's folder.

    They are the modules that `own_modules` names and those that define `parts`, such as registered
    classes, unless they belong to a library, with the own modules that they import from their
    folder.
    """
    names = [*own_modules(), *(str(getattr(part, "__module__", None)) for part in parts)]
    modules = filter(None, map(sys.modules.get, names))
    return dict(sorted(file for module in modules for file in sources(module).items()))


@cache  # as imported: files may be edited while the program runs
def sources(module: ModuleType) -> dict[str, bytes]:
    """Return the imported files in the folder of an own module, or of its package, and below."""
    file = file_of(module)
    if not is_own(file):
        return {}
    root = file.parents[module.__name__.count(".") + (file.name == "__init__.py")]
    files = [each for each in map(file_of, [*sys.modules.values()]) if root in each.parents]
    return {each.relative_to(root).as_posix(): each.read_bytes() for each in files if is_own(each)}


def file_of(module: ModuleType) -> Path:
    # Not getattr, which some modules answer with anything.
    return Path(str(getattr(module, "__dict__", {}).get("__file__")))


def saved_code(run: Path) -> dict[str, bytes]:
    """Return the copies of own code in a run's folder, as `own_code` does."""
    files = sorted(run.glob(f"{CODE}/**/*.py"))
    return {file.relative_to(run / CODE).as_posix(): file.read_bytes() for file in files}


def save_code(run: Path, code: Mapping[str, bytes]) -> None:
    for name, source in code.items():
        (run / CODE / name).parent.mkdir(parents=True, exist_ok=True)
        (run / CODE / name).write_bytes(source)


def require_same_code(run: Path, now: Mapping[str, bytes]) -> None:
    """Raise ValueError, with the difference, unless a run's own code is still the same.

    Runs of earlier versions recorded none.
    """
    then = saved_code(run)
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    if then and names:
        before, after = (each.get(names[0], b"").decode(errors="replace") for each in (then, now))
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        change = (
            "\n".join([*lines][2:10]) if names[0] in now else f"add {IMPORT}MODULE to import it"
        )
        raise ValueError(
            f"cannot resume {run}: {names[0]} has changed since this run began:\n{change}\nrestore "
            f"{run / CODE / names[0]}, or continue with the new code in a new folder: "
            f"fork={for_shell(run)}"
        )


def warn_of_changes(run: Path, now: Mapping[str, bytes]) -> None:
    """Log a warning if any of these files differs from its copy in the run's folder."""
    then = saved_code(run)
    if changed := [name for name in now if then.get(name, now[name]) != now[name]]:
        logger.warning(
            f"{', '.join(changed)} has changed since {run} was trained; the copy is in {run / CODE}"
        )
