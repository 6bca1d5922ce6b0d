"""Entry points of the commands; Ctrl-C ends a command at once, even before Hydra is imported."""

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from importlib import import_module


@contextlib.contextmanager
def ended_by_interrupt(command: str) -> Iterator[None]:
    """Within the block, let Ctrl-C end the process at once, until training sets its own handler.

    KeyboardInterrupt is not used, because an import, a destructor or a callback could catch this
    exception, and the command would continue. If the process already ignores Ctrl-C, as a script's
    background job does, Ctrl-C stays ignored.
    """

    def end(number: int, frame: object) -> None:
        os.write(2, f"{command}: interrupted\n".encode())  # sys.stderr may be in use at this moment
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(command: str, module: str = "tools", function: str | None = None) -> None:
    with ended_by_interrupt(command):
        name = function or command.replace("-", "_")
        getattr(import_module(f"vit_train.commands.{module}"), name)()


train = partial(start, "vit-train", "train", "main")
evaluate = partial(start, "vit-eval")
suspects = partial(start, "vit-suspects")
predict = partial(start, "vit-predict")
explain = partial(start, "vit-explain")
features = partial(start, "vit-features")
export = partial(start, "vit-export")
results = partial(start, "vit-results")
augment = partial(start, "vit-augment")
data = partial(start, "vit-data")
inspect = partial(start, "vit-inspect")
check = partial(start, "vit-check")
