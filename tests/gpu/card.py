"""The device of the GPU tests, and what they need of its machine.

`GPU_TESTS_ON=cpu pytest -m gpu` runs them without a GPU, to find their own mistakes.
"""

import os
import shutil

import pytest
import torch

DEVICE = os.environ.get("GPU_TESTS_ON", "cuda")
CPU, GPU = torch.device("cpu"), torch.device(DEVICE)
IS_GPU = GPU.type == "cuda"
marks = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # a GPU's libraries warn of what is not ours
    pytest.mark.skipif(IS_GPU and not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
gpu_alone = pytest.mark.skipif(not IS_GPU, reason="is of the GPU alone")
# Triton compiles its launchers with it.
compiles = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler"
)
