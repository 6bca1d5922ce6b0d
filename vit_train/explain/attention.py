"""The attention of one layer: which layer, and what its class token attends to."""


def layer_index(layer: int, depth: int, owner: str) -> int:
    """Return the index of a `layer` counted from 1, or from the end if it is negative.

    Raise ValueError for a layer that the `owner` does not have.
    """
    if not 1 <= abs(layer) <= depth:
        raise ValueError(f"layer={layer}: the {owner} has the layers 1 to {depth}")
    return layer - 1 if layer > 0 else depth + layer
