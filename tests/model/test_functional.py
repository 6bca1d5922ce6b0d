"""The textbook formulas of functional.py against torch, and the modules against the formulas."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vit_train.model import functional
from vit_train.model.blocks import Block
from vit_train.model.config import ViTConfig

PAIRS = {
    "gelu_tanh": (functional.gelu_tanh, functools.partial(F.gelu, approximate="tanh")),
    "layer_norm": (functional.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
    "softmax": (functional.softmax, functools.partial(F.softmax, dim=-1)),
}


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def value_and_gradient(function, x):
    """function(x) and the gradient with respect to x for one fixed random upstream gradient."""
    x = x.clone().requires_grad_()
    y = function(x)
    y.backward(random(*y.shape, seed=1))
    return y.detach(), x.grad


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("scale", [1, 10])
@pytest.mark.parametrize("shape", [(7, 16), (2, 3, 33)])
def test_formula_agrees_with_torch_in_value_and_gradient(name, scale, shape):
    ours, theirs = PAIRS[name]
    x = scale * random(*shape)
    torch.testing.assert_close(
        value_and_gradient(ours, x), value_and_gradient(theirs, x), rtol=0, atol=1e-10
    )


def test_softmax_of_huge_logits_does_not_overflow():
    probabilities = functional.softmax(torch.tensor([1e4, -1e4, 1e4], dtype=torch.float64))
    assert probabilities.tolist() == [0.5, 0.0, 0.5]


def test_layer_norm_gives_zero_mean_and_unit_population_variance():
    y = functional.layer_norm(3 + 5 * random(4, 64), eps=0)
    torch.testing.assert_close(y.mean(-1), torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("kernels", ["scratch", "fused"])
@pytest.mark.parametrize(
    "batch, tokens, dim, heads", [(1, 1, 8, 1), (2, 5, 16, 2), (3, 17, 24, 4), (2, 9, 12, 12)]
)
def test_block_computes_the_encoder_block_formula(batch, tokens, dim, heads, kernels):
    torch.manual_seed(0)
    block = Block(ViTConfig(embed_dim=dim, num_heads=heads, kernels=kernels), 0.0).double()
    for module in block.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.5)
            nn.init.zeros_(module.bias)
    block.mlp.gelu = functools.partial(F.gelu, approximate="tanh")
    w_q, w_k, w_v = (w.t() for w in block.attn.qkv.weight.detach().split(dim))
    w_o, w_mlp1, w_mlp2 = (
        layer.weight.detach().t() for layer in (block.attn.proj, block.mlp.fc1, block.mlp.fc2)
    )

    def formula(x):
        return functional.encoder_block(x, w_q, w_k, w_v, w_o, w_mlp1, w_mlp2, heads)

    x = random(batch, tokens, dim)
    torch.testing.assert_close(
        value_and_gradient(lambda x: block(x)[0], x),
        value_and_gradient(formula, x),
        rtol=1e-10,
        atol=1e-10,
    )
