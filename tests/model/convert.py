"""Conversion of weights from other implementations' layouts: pure functions on state dicts.

Each returns a new state dict and keeps the keys it does not know. `names` are the names of the
query, key and value layers.
"""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

State = dict[str, Tensor]
Names = tuple[str, str, str]
QKV: Names = ("q", "k", "v")


def fuse_qkv(state: State, names: Names = QKV) -> State:
    """Join the layers `ATTN.q`, `ATTN.k`, `ATTN.v` (D,D) into one `ATTN.qkv` (3D,D)."""
    result = dict(state)
    for prefix, kind in matches(rf"(.*\.|){re.escape(names[0])}\.(weight|bias)", state):
        parts = [result.pop(f"{prefix}{name}.{kind}") for name in names]
        result[f"{prefix}qkv.{kind}"] = torch.cat(parts)
    return result


def fuse_heads(state: State, names: Names = QKV) -> State:
    """Join the layers of each head, such as `ATTN.heads.0.q` (Dh,D), into one `ATTN.qkv` (3D,D)."""
    result = dict(state)
    for prefix, key in dict.fromkeys(matches(r"(.*\.|)heads\.\d+\.(.+)", state)):
        one = re.compile(rf"{re.escape(prefix)}heads\.\d+\.{re.escape(key)}")
        heads = [name for name in state if one.fullmatch(name)]
        result[f"{prefix}{key}"] = torch.cat([result.pop(name) for name in heads])
    return fuse_qkv(result, names)


def matches(pattern: str, state: State) -> Iterable[tuple[str, ...]]:
    return [found.groups() for key in state if (found := re.fullmatch(pattern, key))]


def unfold_to_convolution(state: State, patch_size: int, key: str = "patch_embed.proj") -> State:
    """Reshape a linear patch embedding to a convolution: (D,C·P²) → (D,C,P,P).

    Its patches are flattened channel first, as F.unfold does.
    """
    weight = state[f"{key}.weight"]
    return state | {f"{key}.weight": weight.unflatten(1, (-1, patch_size, patch_size))}


def reshape_to_convolution(state: State, patch_size: int, key: str = "patch_embed.proj") -> State:
    """Reshape a linear patch embedding to a convolution: (D,P²·C) → (D,C,P,P).

    Its patches are flattened channel last.
    """
    weight = state[f"{key}.weight"].unflatten(1, (patch_size, patch_size, -1))
    return state | {f"{key}.weight": weight.permute(0, 3, 1, 2)}
