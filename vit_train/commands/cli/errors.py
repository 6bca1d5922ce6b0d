"""Errors, reported as a short message on stderr and an exit status."""

import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from vit_train.config import NOT_TAKEN_AWAY, no_such_setting
from vit_train.limits import is_out_of_memory
from vit_train.text import printable

FULL_ERROR = "HYDRA_FULL_ERROR"
# Read before `short_errors` sets the variable for Hydra.
SHOW_TRACEBACKS = os.environ.get(FULL_ERROR) == "1"
PLUGINS = "pip install -e '.[sweeps]' in the checkout adds Optuna and Slurm"
GRAMMAR = "key=value; quote a value with special characters: key='a, b'"
DEEP = "an argument or a config file is nested too deeply"
DIGITS = "an argument or a config file has a number with too many digits"
EXPECTED = (
    *(ValueError, OSError, ArithmeticError, RecursionError),
    *(HydraException, OmegaConfBaseException),
)


@contextlib.contextmanager
def short_errors(command: str) -> Iterator[None]:
    """Turn errors that the user can fix into one message; HYDRA_FULL_ERROR=1 shows the traceback.

    The same variable keeps Hydra from printing errors itself, so it is set here.
    """
    if SHOW_TRACEBACKS:
        yield
        return
    os.environ[FULL_ERROR] = "1"
    hook, threading.excepthook = threading.excepthook, on_thread_error
    logging.raiseExceptions = False  # `vit-eval … | head` closes the pipe, which is no error
    try:
        with ended_by_interrupt(command):
            yield
    except Exception as error:
        if not (isinstance(error, EXPECTED) or from_hydra(error) or is_out_of_memory(error)):
            raise
        sys.exit(printable(f"{command}: {explain(error)}"))
    finally:
        threading.excepthook = hook


@contextlib.contextmanager
def ended_by_interrupt(command: str) -> Iterator[None]:
    """Let Ctrl-C end the process at once, until training takes over and stops after a step.

    KeyboardInterrupt is not used: if it is raised inside an import, a destructor or a callback, it
    can be caught and ignored there, and the command would go on.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{command}: interrupted\n".encode())  # sys.stderr may be in use right now
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def from_hydra(error: BaseException) -> bool:
    """Return whether Hydra itself failed, as it does on some arguments that its grammar accepts."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals["__name__"].startswith("hydra.")


def on_thread_error(error: threading.ExceptHookArgs) -> None:
    """Report an error in a thread, unless it is an OSError.

    On a full disk TensorBoard's thread fails too, and TensorBoard raises the same error again in
    the main thread.
    """
    if not issubclass(error.exc_type, OSError):
        threading.__excepthook__(error)


def explain(error: BaseException) -> str:
    """Describe the error in the user's words rather than in Hydra's and OmegaConf's.

    A very long line, which may come from a long argument, is shortened to its two ends.
    """
    return re.sub(r"(?m)^(.{200}).{500,}(.{200})$", r"\1…\2", in_words(error))


def in_words(error: BaseException) -> str:
    if is_out_of_memory(error):
        return f"out of memory: {error}" if str(error) else "out of memory"
    cause = error.__cause__ or error
    where = re.match(r"In '[^']+': ", str(error))
    if where and isinstance(error.__context__, ConfigKeyError):  # in a YAML file
        return where[0] + unknown_key(error.__context__)
    for candidate in (cause, error):
        if isinstance(candidate, RecursionError):
            return DEEP
        if isinstance(candidate, ValueError) and "integer string conversion" in str(candidate):
            return DIGITS
        if isinstance(candidate, ConfigKeyError | ConfigAttributeError):
            return unknown_key(candidate)
        if isinstance(candidate, OverrideParseException):
            return f"{candidate.override} cannot be read as {GRAMMAR}"
        if isinstance(candidate, AssertionError) and from_hydra(candidate):
            return f"an argument cannot be read as {GRAMMAR}"
    return tidied(str(cause if isinstance(cause, OmegaConfBaseException) else error))


def tidied(text: str) -> str:
    """Remove Hydra's search path and OmegaConf's jargon; put a list of choices on one line."""
    if "hydra/sweeper/" in text or "hydra/launcher/" in text:
        text += f"\n{PLUGINS}"
    text = re.sub(r"Config search path:.*(\n\t.*)*", "", text).replace("\n\t", " ")
    text = re.sub(r"\w+ \(DictConfig\) does not support deletion", NOT_TAKEN_AWAY, text)
    internal = re.compile(r"\s*(object_type|reference_type|Set the environment variable)\b")
    lines = [line.rstrip() for line in text.splitlines() if not internal.match(line)]
    return re.sub(r"\s*full_key: (.+)", r" (\1)", "\n".join(line for line in lines if line))


def unknown_key(error: ConfigKeyError | ConfigAttributeError) -> str:
    """Return the message for a misspelled key, with the nearest key that exists."""
    known = [str(key) for key in error.parent_node] if error.parent_node is not None else []
    return no_such_setting(error.full_key or str(error.key), known)
