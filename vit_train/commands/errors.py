"""Errors as one short message on stderr and an exit status."""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from vit_train.base.memory import gigabytes, is_out_of_memory
from vit_train.base.text import print_signs_in_any_encoding, printable
from vit_train.commands.arguments import choices, no_such_choice, no_such_setting, schema
from vit_train.commands.overrides import DEEP
from vit_train.commands.start import ended_by_interrupt
from vit_train.runs.config import CONF_DIR, TrainConfig

PLUGINS = "pip install -e '.[sweeps]' in the checkout adds Optuna and Slurm"
# Hydra, its plugins, and what they stand on.
HYDRA = ("hydra", "hydra_plugins", "submitit", "optuna", "sqlalchemy")


def from_hydra(error: BaseException) -> bool:
    """Check for an error of Hydra or a plugin, such as a missing Slurm or database."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals["__name__"].partition(".")[0] in HYDRA


def explain(error: BaseException) -> str:
    """Describe an error in a few lines; a very long line is shortened to its two ends."""
    return re.sub(r"(?m)^(.{200}).{500,}(.{200})$", r"\1…\2", describe(error))


def describe(error: BaseException) -> str:
    if is_out_of_memory(error):
        said = str(error)
        if found := re.search(r"tried to allocate (\d+) bytes", said):  # PyTorch, on a CPU
            said = f"{gigabytes(int(found[1]))} more cannot be had: choose fewer or smaller images"
        return said if said.startswith("out of memory") else f"out of memory: {said}".rstrip(": ")
    # Hydra names the config file at fault.
    where = file[0] if (file := re.match(r"In '[^']+': ", str(error))) else ""
    context = None if error.__suppress_context__ else error.__context__
    causes = error, error.__cause__, context
    if any(isinstance(cause, RecursionError) for cause in causes):
        return DEEP
    for cause in causes:
        if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.full_key:
            return where + no_such_setting(cause.full_key, schema(TrainConfig))
        if isinstance(cause, MissingConfigException):
            group, _, choice = str(cause.missing_cfg_file).rpartition("/")
            if not group:
                return f"there is no {choice}.yaml"
            known = sorted(cause.options or choices(group, [CONF_DIR]))
            plugins = f"\n{PLUGINS}" if group.startswith("hydra/") else ""
            return where + no_such_choice(group, choice, known) + plugins
        if isinstance(cause, OmegaConfBaseException):  # in a config file
            return f"{where}{cause.full_key}: {str(cause.msg).splitlines()[0]}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        name = Path(str(error.filename2 or error.filename))
        return f"{name}: {error.strerror}"
    return str(error)


FULL_ERROR = "HYDRA_FULL_ERROR"
# Read before `short_errors` sets the variable for Hydra.
SHOW_TRACEBACKS = os.environ.get(FULL_ERROR) == "1"
EXPECTED = (
    *(ValueError, OSError, ArithmeticError, RecursionError),
    *(HydraException, OmegaConfBaseException),
)


@contextlib.contextmanager
def short_errors(command: str) -> Iterator[None]:
    """Turn errors that the user can fix into one message; HYDRA_FULL_ERROR=1 shows the traceback.

    The same variable keeps Hydra from printing errors itself, so it is set here.
    """
    print_signs_in_any_encoding()
    if SHOW_TRACEBACKS:
        yield
        return
    os.environ[FULL_ERROR] = "1"
    logging.raiseExceptions = False  # `vit-eval … | head` closes the pipe, which is no error
    try:
        with ended_by_interrupt(command), lost_output_is_said(command):
            require_current_folder()
            yield
    except Exception as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone():
            sys.exit(1)
        if not (isinstance(error, EXPECTED) or from_hydra(error) or is_out_of_memory(error)):
            raise
        sys.exit(printable(f"{command}: {explain(error)}", keep="\n"))


def require_current_folder() -> None:
    """Raise ValueError if the current folder is gone: many a library needs one."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ValueError("the current folder was deleted: change to another one (cd)") from None


@contextlib.contextmanager
def lost_output_is_said(command: str) -> Iterator[None]:
    """Exit with status 1 at the end of the block if output was lost, as on a full disk.

    Logging hides such errors, and so none ends a training.
    """
    lost: list[OSError] = []
    handlers: Any = logging.Handler
    hide = handlers.handleError

    def note(handler: logging.Handler, record: logging.LogRecord) -> None:
        error, stream = sys.exc_info()[1], getattr(handler, "stream", None)
        if isinstance(error, OSError) and stream is not None and stream is sys.stdout:
            lost.append(error)
        hide(handler, record)

    handlers.handleError = note
    try:
        yield
    finally:
        handlers.handleError = hide
    errors = [*lost, *flushed()]
    if errors:
        stdout_goes_nowhere()
    for error in errors:
        if not isinstance(error, BrokenPipeError):
            sys.exit(f"{command}: standard output: {error.strerror}")


def flushed() -> list[OSError]:
    """Write what stdout still holds; return the error if that fails."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return [error]
    return []


def stdout_goes_nowhere() -> None:
    """Discard pending output on stdout, about which Python would complain at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_has_gone() -> bool:
    """Check for a reader of stdout that is gone, as after `vit-results | head`.

    If so, what is still to be written to it goes nowhere.
    """
    try:
        print(flush=True)  # what was lost leaves nothing in the buffer to try with
        return False
    except BrokenPipeError:
        stdout_goes_nowhere()
        return True
