"""`--help`: a command's purpose, its groups, and the current values of all its settings.

Hydra's own help copies its config repository once per group, which takes seconds.
"""

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vit_train.commands.described import described
from vit_train.commands.overrides import settings_first
from vit_train.runs.config import CHOSEN_BY_NAME, CONF_DIR

FLAGS = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
FLAGS.add_argument("--help", "-h", action="store_true")
FLAGS.add_argument("--config-dir", "-cd", type=Path)
# Accepted together with --help, but without effect there.
FLAGS.add_argument("--run", "-r", "--multirun", "-m", action="store_true")


def run_or_help(job: Callable[[], object], about: str, groups: Collection[str], kind: type) -> None:
    """Run the job, or print its help or the version if the arguments ask for it.

    `groups` are those it has, and `kind` is the dataclass of its settings.
    """
    sys.argv[1:] = settings_first(sys.argv[1:])
    if "--version" in sys.argv[1:]:
        print(version_line())
        return
    if not {"--help", "-h"} & set(sys.argv[1:]):
        job()
        return
    flags, rest = FLAGS.parse_known_args(sys.argv[1:])
    folders = [CONF_DIR, *([flags.config_dir] if flags.config_dir else [])]
    if flags.config_dir:
        rest += ["--config-dir", str(flags.config_dir)]
    sys.argv[1:] = [*rest, "--cfg", "job"]
    with contextlib.redirect_stdout(io.StringIO()) as settings:
        job()
    print(about)
    if groups:
        print("\n== Groups, chosen by group=name ==")
        print(*group_lines(folders, groups), sep="\n")
    print("\n== Current settings (change them with key=value) ==")
    print(described(settings.getvalue(), kind))
    print("Add --cfg job to print the settings alone, --hydra-help for Hydra's own flags.")


def version_line() -> str:
    try:
        return f"vit_train {version('vit-train')}"
    except PackageNotFoundError:  # a bare checkout
        return "vit_train, not installed"


def group_lines(folders: Sequence[Path], groups: Collection[str]) -> Iterable[str]:
    """Yield one line per group with its choices: presets of all folders, and registered names."""
    choices = {group: set(classes) for group, classes in CHOSEN_BY_NAME.items()}
    for file in (file for folder in folders for file in folder.glob("*/*.yaml")):
        choices.setdefault(file.parent.name, set()).add(file.stem)
    for group in sorted(choices.keys() & groups):
        yield f"{group}: {', '.join(sorted(choices[group]))}"
