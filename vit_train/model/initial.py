"""The weights before training."""

from torch import nn

from vit_train.model.config import ViTConfig
from vit_train.model.positions import LearnedTable, LearnedTable2D, RelativeKeys


def draw_weights(module: nn.Module, config: ViTConfig) -> None:
    """Draw all weights in `module` as the config's `init` says.

    xavier: Xavier-uniform linear maps with zero biases, as the paper's code has them; but query,
    key and value are one map, as in PyTorch's MultiheadAttention, and patches are flattened first,
    so their fan-in is P²·C. torch: PyTorch's default for linear maps, which they have already.
    Positions are normal.
    """
    for each in module.modules():
        if isinstance(each, nn.Linear | nn.Conv2d) and config.init == "xavier":
            nn.init.xavier_uniform_(each.weight.flatten(1))
            if each.bias is not None:
                nn.init.zeros_(each.bias)
        if isinstance(each, LearnedTable | LearnedTable2D | RelativeKeys):
            for parameter in each.parameters():
                draw_normal(parameter, config.pos_std)


def draw_normal(parameter: nn.Parameter, std: float) -> None:
    """Draw from N(0, std²), in place.

    On the meta device, where a model is shapes alone, there is nothing to draw, and asking PyTorch
    for it would load its compiler, which takes two seconds.
    """
    if not parameter.is_meta:
        nn.init.normal_(parameter, std=std)
