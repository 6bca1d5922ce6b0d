"""The console scripts, which end at once on Ctrl-C, from before Hydra is imported on."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from types import FrameType


@contextlib.contextmanager
def ended_by_interrupt(command: str) -> Iterator[None]:
    """Let Ctrl-C end the process at once, until training takes over and stops after a step.

    KeyboardInterrupt is not used: if it is raised inside an import, a destructor or a callback, it
    can be caught and ignored there, and the command would go on. Where Ctrl-C is ignored, as in a
    script's background, it stays so.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{command}: interrupted\n".encode())  # sys.stderr may be in use right now
        os._exit(130)

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(command: str, module: str, function: str) -> None:
    with ended_by_interrupt(command):
        getattr(import_module(f"vit_train.commands.{module}"), function)()


train = partial(start, "vit-train", "train", "main")
evaluate = partial(start, "vit-eval", "tools", "vit_eval")
predict = partial(start, "vit-predict", "tools", "vit_predict")
explain = partial(start, "vit-explain", "tools", "vit_explain")
export = partial(start, "vit-export", "tools", "vit_export")
results = partial(start, "vit-results", "tools", "vit_results")
augment = partial(start, "vit-augment", "tools", "vit_augment")
inspect = partial(start, "vit-inspect", "tools", "vit_inspect")
