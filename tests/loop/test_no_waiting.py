"""Nothing of a training step waits for a GPU or moves a tensor between it and the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_no_step_waits_or_moves_anything_and_what_does_is_noticed() -> None:
    program = [sys.executable, str(Path(__file__).with_name("fake_gpu.py"))]
    no_gpu = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(program, capture_output=True, text=True, env=no_gpu, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert "_local_scalar_dense" in results.pop("what waits")
    assert "AssertionError: aten._to_copy" in results.pop("what is moved")
    assert len(results) == 18 and set(results.values()) == {"fine"}, results
