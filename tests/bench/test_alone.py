"""A call in a process of its own."""

import os
from pathlib import Path

import pytest
from line_up import contenders

from vit_train.bench.alone import Failed, alone
from vit_train.bench.contender import Peer
from vit_train.engine.errors import reason


def test_a_call_has_a_process_of_its_own_that_has_ended_afterwards(tmp_path: Path) -> None:
    number = alone(tmp_path, os.getpid)
    assert number != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    assert alone(tmp_path, os.getenv, "TORCHINDUCTOR_CACHE_DIR") == str(tmp_path)
    assert alone(tmp_path, print, "what a library prints") is None


@pytest.mark.parametrize(
    "call, reason, details",
    [
        ((int, "x"), "invalid literal for int", "Traceback"),
        ((os.abort,), "its process was ended by SIGABRT", ""),
        ((os._exit, 3), "its process ended with status 3: it printed nothing", ""),
    ],
)
def test_a_call_that_does_not_answer_says_why(
    tmp_path: Path, call: tuple[object, ...], reason: str, details: str
) -> None:
    with pytest.raises(Failed, match=reason) as caught:
        alone(tmp_path, *call)
    assert details in caught.value.details and "\n" not in str(caught.value)


def test_a_reason_is_short() -> None:
    error = RuntimeError("backend='inductor' raised:\n\nCppCompileError: C++ compile error\nmore")
    assert reason(error) == ("backend='inductor' raised: CppCompileError: C++ compile error")
    assert reason(ValueError("no compiler\n\nadvice")) == "no compiler"
    assert reason(KeyError()) == "KeyError"


def test_a_contender_imports_nothing_that_would_count_as_a_start_up(tmp_path: Path) -> None:
    heavy = "{'torch', 'hydra', 'matplotlib'} & set(__import__('sys').modules)"
    (peer,) = (each for each in contenders("shipped") if isinstance(each, Peer))
    assert alone(tmp_path, eval, heavy, {"contender": peer}) == set()
