"""torch.compile where it works, and a clear warning where it does not."""

import logging

import torch
from torch import Tensor, nn

from vit_train.engine.device import Precision
from vit_train.engine.errors import reason
from vit_train.engine.objective import Objective

logger = logging.getLogger(__name__)
# Models that one process compiles; PyTorch's limit of all recompilations is the same.
MOST_MODELS = 256


def compiles(setting: bool | str, device: torch.device) -> bool:
    """Return whether to compile on this device, for compile=true, false or auto."""
    return device.type == "cuda" if setting == "auto" else bool(setting)


def compile_model(
    model: nn.Module, objective: Objective, piece: tuple[Tensor, Tensor], precision: Precision
) -> bool:
    """Compile the model's forward and backward in place; return False, with a warning, on failure.

    `piece` is one micro-batch, images and targets. The compiled code is run on it at once, because
    a missing C++ compiler or Triton shows only then. Weights, buffers and random states are left
    unchanged. Evaluation does not use the compiled code: its batches have other shapes, and each
    would have to be compiled again.
    """
    device = precision.device
    devices = [device] if device.type == "cuda" else []
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    # Beyond the limit, which counts all models of a process (a sweep's), PyTorch would silently not
    # compile.
    torch._dynamo.config.recompile_limit = MOST_MODELS
    model.compile(dynamic=False)  # on a GPU, the whole step becomes a CUDA graph later
    try:
        with torch.random.fork_rng(devices):
            with precision.autocast():
                loss = objective.step_sums(model, *piece)[0]
            torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
        return True
    except torch.OutOfMemoryError:  # which training would run into, too
        raise
    except Exception as error:  # a compiler may raise anything; training works without it
        model._compiled_call_impl = None
        logger.warning(f"compiling does not work here, continuing without it: {reason(error)}")
        return False
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
