"""tests/same_bits.py, with which two commits are compared."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from same_bits import difference

PAIRS: list[tuple[object, object]] = [
    (np.float32([0, 1]), np.float32([-0.0, 1])),
    (np.float32([0, 1]), np.float32([[0, 1]])),
    (np.float32([0, 1]), np.float64([0, 1])),
    ("loss 0.1", "loss 0.12"),
    ("loss 0.1", None),
    (np.float32([0, 1]), None),
]


@pytest.mark.parametrize("one, other", PAIRS)
def test_a_difference_of_one_bit_is_found(one: object, other: object) -> None:
    assert difference(one, other) and not difference(one, one)


@pytest.mark.slow
def test_a_commit_has_the_bits_of_itself() -> None:
    command = [sys.executable, str(Path(__file__).with_name("same_bits.py")), "HEAD", "HEAD"]
    done = subprocess.run([*command, "-k", "predict_tags"], capture_output=True, text=True)
    assert done.stdout.endswith("0 of 2 commands differ\n"), done.stdout + done.stderr
