"""Compilation of training steps: torch.compile, and CUDA graphs on a GPU."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.text import reason
from vit_train.loop.device import Precision, trained_weights
from vit_train.loop.objective import Batch, Objective

# The most models that one process compiles; PyTorch's limit on recompilations is set to the same.
MOST_MODELS = 256


def compiles(setting: bool | str, device: torch.device) -> bool:
    """Return True if compile=`setting` (true, false or auto) compiles training on this device.

    auto compiles only on a CUDA GPU.
    """
    return device.type == "cuda" if setting == "auto" else bool(setting)


def compile_model(
    model: nn.Module, objective: Objective, piece: Iterable[Tensor], precision: Precision
) -> bool:
    """Compile the model's forward and backward passes in place; on failure, warn and return False.

    Run the compiled code at once on `piece`, a micro-batch of images and targets, because only a
    run reveals that a C++ compiler or Triton is missing. Leave weights, buffers and random states
    unchanged. Evaluation does not use the compiled code, because evaluation batches have other
    shapes, and each shape would have to be compiled again.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    # Beyond this limit, which counts all models of a process (in a sweep), PyTorch would silently
    # stop compiling.
    torch._dynamo.config.recompile_limit = MOST_MODELS
    model.compile(dynamic=False)  # on a GPU, the whole step becomes a CUDA graph later

    def forward_backward() -> None:
        with torch.random.fork_rng([precision.device] if precision.device.type == "cuda" else []):
            with precision.autocast():
                loss = objective.step_sums(model, *piece)[0]
            torch.autograd.grad(loss, trained_weights(model), materialize_grads=True)

    compiled = works(forward_backward)
    if not compiled:
        model._compiled_call_impl = None
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return compiled


def compile_batch(make: Callable[..., Batch], draws: Iterable[Tensor]) -> Callable[..., Batch]:
    """Compile the function that makes a batch; on failure, warn and return the function as it is.

    Without compilation, strong augmentation needs more than 300 kernels, and each kernel reads
    and writes all pixels.
    """
    compiled = torch.compile(make, dynamic=False)
    return compiled if works(lambda: compiled(*draws)) else make


def works(compiled: Callable[[], object]) -> bool:
    """Call `compiled` once, which triggers compilation; on failure, warn and return False."""
    try:
        compiled()
        return True
    except torch.OutOfMemoryError:  # training would run out of memory, too
        raise
    except Exception as error:  # a compiler may raise anything; training works without it
        logger.warning(
            f"cannot compile the training step ({reason(error)}); continuing without compiling"
        )
        return False


# Steps that run normally before the capture: they allocate lasting tensors, such as the optimizer's
# moments, and load the kernels.
WARM_UP = 3
# Before this version, an invalid capture leaves PyTorch's allocator and random generator in a state
# in which training cannot continue (pytorch/pytorch#180395 and #176752).
RECOVERS_SINCE = "2.13"


class GraphedStep:
    """Calls `function` on tensors copied to the device; on a GPU, replays a CUDA graph of the work.

    Every call must pass tensors of the same shapes. With `replay`, on a GPU, the first WARM_UP
    calls are normal calls. Then the function's work is captured in a CUDA graph, and each call
    replays the graph with a single launch. A normal call takes several hundred launches, each of
    which costs the CPU more time than the GPU needs for the arithmetic. For the capture, the
    function must do all its work on the device, without waiting for the device, and keep its
    results in tensors that are never moved. If the capture fails, warn, and keep all calls normal;
    before PyTorch 2.13, raise ValueError for an operation that cannot be captured.
    """

    def __init__(
        self, function: Callable[..., None], device: torch.device, replay: bool = False
    ) -> None:
        self.function = function
        self.device = device
        self.replay = replay and device.type == "cuda"
        # PyTorch requires a stream other than the default one for the steps before a capture.
        self.side_stream = torch.cuda.Stream(device) if self.replay else None
        self.restart()

    def restart(self) -> None:
        """Forget the graph, because the next calls do different work."""
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor) -> None:
        self.calls += 1
        if self.replay and self.calls > WARM_UP and self.graph is None:
            self.capture(inputs)
        if self.graph is not None:
            for buffer, values in zip(self.buffers, packed(inputs), strict=True):
                buffer.copy_(pinned(values), non_blocking=True)
            self.graph.replay()
        elif self.replay:
            assert self.side_stream is not None
            self.side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side_stream):
                self.function(*self.moved(inputs))
            torch.cuda.current_stream().wait_stream(self.side_stream)
        else:
            self.function(*self.moved(inputs))

    def moved(self, inputs: Iterable[Tensor]) -> list[Tensor]:
        """Copy the inputs to the device; use pinned memory for copies to a GPU."""
        if self.device.type == "cuda":
            inputs = map(pinned, inputs)
        return [each.to(self.device, non_blocking=True) for each in inputs]

    def capture(self, inputs: tuple[Tensor, ...]) -> None:
        """Capture the function's work in a CUDA graph, without executing it.

        The graph reads its inputs from buffers of the same shapes as `inputs`.
        """
        self.buffers = [each.clone() for each in self.moved(packed(inputs))]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self.device)
        try:
            # Other threads may use the GPU meanwhile: a thread of NCCL polls its progress there.
            with torch.cuda.graph(
                graph, stream=self.side_stream, capture_error_mode="thread_local"
            ):
                self.function(*unpacked(self.buffers, inputs))
            self.graph = graph
        except Exception as error:  # anything that cannot be captured; training works without it
            self.replay = False
            torch.cuda.set_stream(stream)  # a failed capture does not restore the stream
            # If ending the capture failed too, the cause is the operation that failed first.
            cause = error.__context__ if isinstance(error.__context__, Exception) else error
            if "StreamCapture" in f"{error} {cause}" and torch.__version__ < RECOVERS_SINCE:
                raise ValueError(
                    "a step cannot be captured as a CUDA graph: set "
                    f"train.cuda_graph=false ({reason(cause)})"
                ) from error
            logger.warning(
                f"cannot capture a step as a CUDA graph ({reason(cause)}); continuing "
                "without one. If training still fails, set train.cuda_graph=false"
            )
            del cause  # its traceback would keep the memory of the capture


class GraphedOutputs:
    """Calls `function` on batches; on a GPU with `replay`, replays a CUDA graph for full batches.

    The first batch must be full: the graph replays batches of its shapes. The graph reads the
    weights where they were when it was captured, so the weights must never be moved.
    """

    def __init__(self, function: Callable[..., Tensor], device: torch.device, replay: bool) -> None:
        self.function = function
        self.shapes: list[torch.Size] = []
        self.graphed = GraphedStep(self.keep_outputs, device, replay)

    def keep_outputs(self, *batch: Tensor) -> None:
        self.outputs = self.function(*batch)

    def __call__(self, *batch: Tensor) -> Tensor:
        shapes = [each.shape for each in batch]
        self.shapes = self.shapes or shapes
        if not self.graphed.replay or shapes != self.shapes:
            return self.function(*batch)
        self.graphed(*batch)
        return self.outputs.clone()  # a copy, because the next replay overwrites self.outputs


def pinned(tensor: Tensor) -> Tensor:
    """Return a tensor of the CPU in pinned memory, from which copies to a GPU need no wait."""
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def packed(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Concatenate all tensors of the same type, so that each type needs only one copy.

    A tensor that is the only one of its type is not copied, because it may be large and pinned.
    """
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.flatten())
    return [torch.cat(each) if len(each) > 1 else each[0] for each in by_type.values()]


def unpacked(buffers: Iterable[Tensor], like: Iterable[Tensor]) -> list[Tensor]:
    """Return views of the packed buffers in the order and shapes of the tensors `like`."""
    rest = {buffer.dtype: buffer for buffer in buffers}
    views = []
    for tensor in like:
        buffer = rest[tensor.dtype]
        views.append(buffer[: tensor.numel()].view(tensor.shape))
        rest[tensor.dtype] = buffer[tensor.numel() :]
    return views
