"""Learning rates by layer: which layer a weight belongs to, and what the optimizers make of it."""

import copy

import pytest
import torch

from vit_train.engine.config import AdamWConfig, MuonConfig, OptimConfig
from vit_train.engine.optimizers import make_optimizers
from vit_train.engine.stepping import Optimizers, rate_scales
from vit_train.model.autoencoder import MaskedAutoencoder
from vit_train.model.cnn import SimpleCnn
from vit_train.model.config import CnnConfig, ViTConfig
from vit_train.model.vit import VisionTransformer

TINY = ViTConfig(embed_dim=8, depth=3, num_heads=2, head="token_mlp")


def scales(config: OptimConfig) -> dict[str, float]:
    model = VisionTransformer(TINY)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: scale for parameter, scale in rate_scales(model, config).items()}


def test_layers_are_those_of_beit_and_mae() -> None:
    found = scales(AdamWConfig(layer_decay=0.5, head_lr_scale=10))
    for name, scale in found.items():
        first = name.split(".")[0]
        layer = int(name.split(".")[1]) + 1 if first == "blocks" else 0
        if first in ("norm", "head", "pre_head"):
            layer = 4
        assert scale == 0.5 ** (4 - layer) * (10 if "head" in first else 1), name
    assert len(found) == len(list(VisionTransformer(TINY).parameters()))
    assert set(scales(AdamWConfig(layer_decay=1)).values()) == {1}
    with_decoder = MaskedAutoencoder(TINY, 2, 32, 3)
    rates = rate_scales(with_decoder, AdamWConfig(layer_decay=0.5))
    assert rates[with_decoder.encoder.blocks[0].norm1.weight] == 0.125
    assert rates[with_decoder.decoder.blocks[0].norm1.weight] == 1


@pytest.mark.parametrize("config", [AdamWConfig(weight_decay=0.1), MuonConfig(weight_decay=0.1)])
def test_a_scaled_weight_takes_the_step_of_another_learning_rate(config: OptimConfig) -> None:
    """Each weight as if its own rate had been that of all."""
    model = VisionTransformer(TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
        parameter.grad = torch.randn_like(parameter)
    config.layer_decay = 0.5

    def stepped(scaled: bool, lr: float) -> VisionTransformer:
        twin = copy.deepcopy(model)
        for own, other in zip(twin.parameters(), model.parameters(), strict=True):
            own.grad = other.grad
        chosen = rate_scales(twin, config) if scaled else {}
        optimizers = Optimizers(make_optimizers(twin, config), twin.parameters(), chosen)
        optimizers.set_lr(torch.tensor(lr))
        optimizers.step(torch.tensor(True))
        return twin

    together = dict(stepped(True, 0.1).named_parameters())
    for part, scale in (
        ("patch_embed", 2**-4),
        ("blocks.0", 2**-3),
        ("blocks.2", 0.5),
        ("head", 1),
    ):
        for name, value in stepped(False, 0.1 * scale).named_parameters():
            if name.startswith(part):
                torch.testing.assert_close(together[name], value, rtol=1e-5, atol=1e-6)


def test_a_model_without_layers_or_head_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optim\.layer_decay needs a Vision Transformer"):
        rate_scales(SimpleCnn(CnnConfig(), 32, 3, 10), AdamWConfig(layer_decay=0.5))
    with pytest.raises(ValueError, match="head_lr_scale=2 needs a model with a head"):
        rate_scales(MaskedAutoencoder(TINY, 1, 32, 3), AdamWConfig(head_lr_scale=2))
