"""Conversion of weights from other implementations' layouts: pure functions on state dicts.

Each returns a new state dict and keeps the keys it does not know. `names` are the names of the
query, key and value layers. A layout of which some keys are missing raises KeyError.
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
    """Join one module per head into one `ATTN.qkv` (3D,D).

    A head is either three layers, such as `ATTN.heads.0.q` (Dh,D), or a single one,
    `ATTN.heads.0.qkv` (3·Dh,D), whose rows are q, then k, then v. Raise ValueError, naming what
    does not fit, if a head holds anything else or if the heads of one attention differ.
    """
    result = dict(state)
    attentions: dict[str, dict[int, State]] = {}
    for prefix, number, key in matches(r"(.*\.|)heads\.(\d+)\.(.+)", state):
        heads = attentions.setdefault(prefix, {})
        heads.setdefault(int(number), {})[key] = result.pop(f"{prefix}heads.{number}.{key}")
    for prefix, heads in attentions.items():
        require_same_layers(prefix, heads, names)
        for key in heads[0]:
            split = 3 if key.startswith("qkv.") else 1  # q of all heads, then k, then v
            parts = [heads[number][key].unflatten(0, (split, -1)) for number in range(len(heads))]
            result[f"{prefix}{key}"] = torch.stack(parts, dim=1).flatten(0, 2)
    return fuse_qkv(result, names)


def require_same_layers(prefix: str, heads: dict[int, State], names: Names) -> None:
    """Raise ValueError unless all heads of an attention have the same known layers and shapes."""
    layouts = [
        {f"{layer}.{kind}" for layer in layers for kind in kinds}
        for layers in (names, ("qkv",))
        for kinds in (("weight",), ("weight", "bias"))
    ]
    for number in range(max(heads) + 1):
        head, where = heads.get(number, {}), f"{prefix}heads.{number}"
        if head.keys() not in layouts:
            raise ValueError(
                f"cannot join {where}: it has {', '.join(head) or 'no weights'}, but a head has "
                f"the layers {', '.join(names)}, or qkv"
            )
        shapes, first = (
            {key: tuple(part.shape) for key, part in each.items()} for each in (head, heads[0])
        )
        if shapes != first:
            raise ValueError(f"cannot join {where}: it has {shapes}, but head 0 has {first}")
        if "qkv.weight" in head and len(head["qkv.weight"]) % 3:
            raise ValueError(f"cannot join {where}.qkv: its rows are not three equal parts")


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
