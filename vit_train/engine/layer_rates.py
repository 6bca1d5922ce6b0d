"""Learning rates by layer: fine-tuning changes the first layers least, the head perhaps most.

From Bao et al. 2022 (BEiT, arXiv:2106.08254) and He et al. 2022 (MAE, appendix A.1): layer 0 is the
embedding of patches with class token and positions, the blocks are layers 1 to N, and all after
them is layer N + 1. The learning rate of layer n is scaled by decay^(N + 1 − n).
"""

import re

from torch import nn

from vit_train.engine.config import OptimConfig

# Where an encoder's parts are, in a model that is one or has one.
BLOCK = re.compile(r"(?:encoder\.)?blocks\.(\d+)\.")
FIRST = re.compile(r"(?:encoder\.)?(?:cls_token|pos_embed|patch_embed)\b")
HEAD = re.compile(r"(?:pre_)?head\.")


def rate_scales(model: nn.Module, config: OptimConfig) -> dict[nn.Parameter, float]:
    """Return the scale of each parameter's learning rate; empty if all have the same.

    Raise ValueError if the model has no such layers.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    scales = dict.fromkeys(named, 1.0)
    if config.layer_decay is not None:
        last = last_layer(model)
        for name in named:
            scales[name] = config.layer_decay ** (last - layer_of(name, last))
    if config.head_lr_scale != 1:
        heads = [name for name in named if HEAD.match(name)]
        if not heads:
            raise ValueError(
                f"optim.head_lr_scale={config.head_lr_scale} needs a model with a head"
            )
        for name in heads:
            scales[name] *= config.head_lr_scale
    return {} if set(scales.values()) == {1.0} else {named[name]: s for name, s in scales.items()}


def last_layer(model: nn.Module) -> int:
    """Return N + 1, for a model of N blocks; raise ValueError if it has none."""
    blocks = {int(found[1]) for name, _ in model.named_parameters() if (found := BLOCK.match(name))}
    if not blocks:
        raise ValueError("optim.layer_decay needs a Vision Transformer")
    return max(blocks) + 2


def layer_of(name: str, last: int) -> int:
    """Return the layer of a parameter."""
    if found := BLOCK.match(name):
        return int(found[1]) + 1
    return 0 if FIRST.match(name) else last
