"""Whether a checkpoint belongs to the run that is to go on from it."""

from collections.abc import Iterator
from contextlib import contextmanager

from vit_train.files.plain_values import Refused
from vit_train.limits import is_out_of_memory
from vit_train.runs.checkpoint import Checkpoint
from vit_train.runs.training.setup import Setup


def require_same_run(setup: Setup, state: Checkpoint) -> None:
    """Raise ValueError if a checkpoint's `state` is of other images, or of another teacher."""
    if state.fingerprint != setup.data.fingerprint:
        raise ValueError("the images on disk are not those it was trained on")
    if state.teacher.get("fingerprint") != setup.teacher.get("fingerprint"):
        now = setup.teacher.get("checkpoint", "none")
        raise ValueError(f"its teacher was not this one, as it is now: {now}")


@contextmanager
def refusing_other_runs(argument: str) -> Iterator[None]:
    """Raise ValueError if the block fails because the checkpoint belongs to another run.

    The checkpoint's checksum was valid, so an error in restoring its state means that the state
    does not fit. `argument`, resume or extend, is named in the message.
    """
    try:
        yield
    except Refused:
        raise
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(f"{argument}: this checkpoint is not from this run: {error}") from error
