"""Checkpoints with tensors of any kind, form and storage, and weights that ask for much memory."""

import random
import warnings
from collections import OrderedDict
from typing import Any

import torch

from torture.forgery import (
    Forged,
    archive,
    at,
    everywhere,
    new_tensor,
    open_it,
    original,
    put,
    seal,
)
from torture.place import Place

HUGE = (2**20, 2**31, 2**33, 2**40, 2**62, 2**63 - 1)


def make(rng: random.Random, place: Place) -> None:
    content = original(place)
    kind = rng.choice([one_tensor, one_tensor, one_tensor, all_shared, large_model, many_patches])
    place.note(kind.__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, on what it means to change
        kind(content, rng, place)
    open_it(seal(archive(content)), rng, place)


def one_tensor(content: dict[str, Any], rng: random.Random, place: Place) -> None:
    """Another one instead of one that is there, or instead of another value."""
    paths = everywhere(content)
    tensors = [path for path in paths if isinstance(at(content, path), torch.Tensor)]
    for _ in range(rng.choice([1, 1, 3])):
        path = rng.choice(tensors if rng.random() < 0.7 else paths)
        old = at(content, path)
        name = rng.choice(list(TENSORS))
        place.note(f"{path}: {name}")
        shape = old.shape if isinstance(old, torch.Tensor) else torch.Size([3])
        if not any(len(other) > len(path) and other[: len(path)] == path for other in paths):
            put(content, path, TENSORS[name](shape, rng))


def storage(size: int = 4) -> torch.UntypedStorage:
    return torch.zeros(size)._typed_storage()


def strides(shape: torch.Size, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice([0, 1, -1, 3, *HUGE]) for _ in shape)


def wrapped(*arguments: Any) -> Forged:
    return Forged(torch._utils._rebuild_parameter, (*arguments, True, OrderedDict()))


def quantized(shape: torch.Size) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.zeros(shape), 1, 0, torch.qint8)


def sparse(size: tuple[int, ...], index: int) -> Forged:
    what = (torch.tensor([[index]] * len(size)), torch.tensor([1.0]), size)
    return Forged(torch._utils._rebuild_sparse_tensor, (torch.sparse_coo, what))


def reverse_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(reversed(range(len(shape))))


TENSORS = {
    "stride 0": lambda shape, rng: torch.zeros(()).expand(shape),
    "stride 0, huge": lambda shape, rng: torch.zeros(1).expand(rng.choice(HUGE[:5])),
    "stride 0, huge bytes": lambda shape, rng: torch.zeros(1, dtype=torch.uint8).expand(2**33),
    "overlapping": lambda shape, rng: torch.zeros(1000).as_strided(shape, [1] * len(shape)),
    "transposed": lambda shape, rng: torch.zeros(shape[::-1]).permute(reverse_order(shape)),
    "storage too small": lambda shape, rng: new_tensor(storage(1), 0, (2**20,), (1,)),
    "huge offset": lambda shape, rng: new_tensor(
        storage(), rng.choice([-1, 5, *HUGE]), tuple(shape), (1,) * len(shape)
    ),
    "any strides": lambda shape, rng: new_tensor(storage(), 0, tuple(shape), strides(shape, rng)),
    "any sizes": lambda shape, rng: new_tensor(
        storage(), 0, tuple(rng.choice([-1, 0, 2, *HUGE]) for _ in shape), (0,) * len(shape)
    ),
    "more strides than sizes": lambda shape, rng: new_tensor(storage(), 0, (2,), (1, 1)),
    "many dimensions": lambda shape, rng: torch.zeros([1] * rng.choice([20, 64])),
    "no storage": lambda shape, rng: new_tensor(None, 0, (2,), (1,)),
    "storage itself": lambda shape, rng: storage(),
    "quantized": lambda shape, rng: quantized(shape),
    "sparse": lambda shape, rng: torch.zeros(shape).to_sparse(),
    "sparse, huge": lambda shape, rng: sparse((rng.choice(HUGE[:5]),), 3),
    "sparse, index outside": lambda shape, rng: sparse(tuple(shape), 2**40),
    "CSR": lambda shape, rng: torch.zeros(3, 3).to_sparse_csr(),
    "nested": lambda shape, rng: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "meta": lambda shape, rng: torch.zeros(shape, device="meta"),
    "meta, huge": lambda shape, rng: torch.zeros(rng.choice(HUGE[:4]), device="meta"),
    "zero dimensions": lambda shape, rng: torch.tensor(1.0),
    "empty": lambda shape, rng: torch.zeros(0),
    "no rows": lambda shape, rng: torch.zeros(0, *shape),
    "parameter": lambda shape, rng: torch.nn.Parameter(torch.zeros(shape)),
    "wrapped parameter": lambda shape, rng: wrapped(torch.zeros(()).expand(shape)),
    "parameter of no tensor": lambda shape, rng: wrapped("x"),
    "NaN": lambda shape, rng: torch.full(shape, float("nan")),
    "infinity": lambda shape, rng: torch.full(shape, float("inf")),
    "needs gradient": lambda shape, rng: torch.zeros(shape).requires_grad_(),
    "conjugate": lambda shape, rng: torch.zeros(shape, dtype=torch.complex64).conj(),
    "negative": lambda shape, rng: torch._neg_view(torch.zeros(shape)),
    **{
        str(dtype): (lambda shape, rng, dtype=dtype: torch.zeros(shape, dtype=dtype))
            for dtype in (
                torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
                torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.uint16,
            )
    },
}  # fmt: skip


def all_shared(content: dict[str, Any], rng: random.Random, place: Place) -> None:
    """All weights are views of the same few numbers."""
    few = torch.zeros(rng.choice([1, 16, 4096]))
    for state in (content["model"], content["optimizers"][0]["state"]):
        for path in everywhere(state):
            old = at(state, path)
            if isinstance(old, torch.Tensor) and old.is_floating_point():
                put(state, path, few[0].expand(old.shape))


def large_model(content: dict[str, Any], rng: random.Random, place: Place) -> None:
    """A config that asks for a large one, and weights of these shapes that are one number each."""
    model = content["config"]["model"]
    model |= {
        "embed_dim": rng.choice([512, 4096, 16384]), "depth": rng.choice([1, 12, 200]),
        "mlp_dim": rng.choice([None, 8, 2**17]), "patch_size": rng.choice([1, 8, 32]),
    }  # fmt: skip
    weights_to_match(content, place)


def many_patches(content: dict[str, Any], rng: random.Random, place: Place) -> None:
    """Tables and masks of the model that no weight stands for grow with the patches squared."""
    content["config"]["model"] |= {
        "positions": rng.choice(["relative", "sincos_2d", "sinusoidal", "learned"]),
        "patch_size": rng.choice([1, 2]),
    }
    if rng.random() < 0.3:
        content["config"]["task"] = {"name": "autoregress", "decoder_depth": 1, "given_rows": 0}
    size = rng.choice([32, 96, 256, 1024, 2**15])
    content["image_shape"] = [3, size, size]
    place.note(f"size {size}")
    weights_to_match(content, place)


def weights_to_match(content: dict[str, Any], place: Place) -> None:
    from vit_train.config import from_checkpoint

    place.note(content["config"]["model"])
    try:
        config = from_checkpoint(content["config"])
        shape = tuple(content["image_shape"])
        with torch.device("meta"):
            model = config.task.make(config.model, shape, len(content["classes"])).build_model()
    except (ValueError, RuntimeError, MemoryError):
        return
    state = model.state_dict()
    content["model"] = {key: torch.zeros(1).expand(each.shape) for key, each in state.items()}
