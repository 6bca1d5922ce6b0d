"""A function call in a new process, in which nothing else runs; `python -m` runs the other end."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from vit_train.engine.errors import reason

P = ParamSpec("P")
Result = TypeVar("Result")
# How many seconds a process may take to end after it has answered.
ENDING = 30


class Failed(ValueError):
    """The process did not answer; the message is one line, `details` all that it printed."""

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(reason)
        self.details = details


def alone(cache: Path, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Return function(*args, **kwargs) from a new process; raise Failed if there is no answer.

    The process has ended when this returns. It keeps compiled code in `cache` alone, so that it is
    known whether a model is compiled for the first time.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
    }
    # A file, not a pipe, which a library's own processes could keep open.
    with tempfile.TemporaryFile() as printed:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            env=environment,
        ) as process:
            assert process.stdin and process.stdout
            try:
                with contextlib.suppress(BrokenPipeError):  # said below
                    process.stdin.write(pickle.dumps((function, args, kwargs)))
                answer = process.stdout.read()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING)
            finally:
                process.kill()
        printed.seek(0)
        details = printed.read().decode(errors="replace")
    if not answer:
        raise Failed(how_it_ended(process.returncode, details), details)
    result, why, trace = pickle.loads(answer)
    if why:
        raise Failed(why, f"{details}{trace}")
    return result  # type: ignore[no-any-return]


def how_it_ended(status: int, printed: str) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        why = ", probably because memory ran out" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{why}"
    last = printed.strip().splitlines()[-1:] or ["it printed nothing"]
    return f"its process ended with status {status}: {last[0]}"


def answer_on_stdout() -> None:
    """Read a call from stdin and write its result, or the reason why there is none, to stdout."""
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # what libraries print
        result, why, trace = None, "", ""
        try:
            function, args, kwargs = pickle.load(sys.stdin.buffer)
            threading.Thread(target=end_with_parent, daemon=True).start()
            result = function(*args, **kwargs)
        except Exception as error:  # whatever a library or a compiler raises
            why, trace = reason(error), traceback.format_exc()
        pickle.dump((result, why, trace), answer)


def end_with_parent() -> None:
    """End this process when stdin closes because the parent has died."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    answer_on_stdout()
