"""The textbook formulas of functional.py against torch, and the modules against the formulas."""

import functools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, sampled_from
from torch import nn

from vit_train.config.model import ViTConfig
from vit_train.model import functional
from vit_train.model.vit import Block

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


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    batch=integers(1, 3),
    tokens=integers(1, 20),
    heads=integers(1, 4),
    head_dim=integers(1, 8),
    hidden=integers(1, 40),
    kernels=sampled_from(["scratch", "fused"]),
    bare=booleans(),
    seed=integers(0, 1000),
)
def test_block_is_the_formula_whatever_the_sizes(
    batch, tokens, heads, head_dim, hidden, kernels, bare, seed
):
    """Value and gradients; without biases, or with zeros."""
    dim, has = heads * head_dim, not bare
    biases = {"qkv_bias": has, "proj_bias": has, "mlp_bias": has}
    config = ViTConfig(
        embed_dim=dim,
        num_heads=heads,
        mlp_dim=hidden,
        activation="gelu_tanh",
        kernels=kernels,
        **biases,
    )
    torch.manual_seed(seed)
    block = Block(config).double()
    linear = [block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2]
    for layer in linear:
        nn.init.normal_(layer.weight, std=0.5)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    qkv, *others = [layer.weight for layer in linear]
    x = random(batch, tokens, dim, seed=seed).requires_grad_()
    upstream = random(batch, tokens, dim, seed=seed + 1)

    ours = block(x)[0]
    weights = [weight.t() for weight in (*qkv.split(dim), *others)]
    formula = functional.encoder_block(x, *weights, heads)
    torch.testing.assert_close(ours, formula, rtol=1e-9, atol=1e-9)
    inputs = [x, qkv, *others]
    ours = torch.autograd.grad(ours, inputs, upstream)
    torch.testing.assert_close(
        ours, torch.autograd.grad(formula, inputs, upstream), rtol=1e-8, atol=1e-8
    )
