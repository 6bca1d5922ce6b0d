"""Errors, reported as a short message on stderr and an exit status."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from vit_train.commands.messages import explain, from_hydra
from vit_train.commands.start import ended_by_interrupt
from vit_train.files.memory import is_out_of_memory
from vit_train.files.text import print_signs_in_any_encoding, printable

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
    """Let what is still to be written to stdout go nowhere, or Python complains when it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_has_gone() -> bool:
    """Return whether nobody reads stdout any more, as after `vit-results | head`.

    If so, what is still to be written to it goes nowhere.
    """
    try:
        print(flush=True)  # what was lost leaves nothing in the buffer to try with
        return False
    except BrokenPipeError:
        stdout_goes_nowhere()
        return True
