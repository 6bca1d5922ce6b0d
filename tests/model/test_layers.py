"""The hand-derived LayerNorm and GELU against torch's, and stochastic depth."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vit_train.base.rng import per_image_generators
from vit_train.config.model import ViTConfig
from vit_train.model.layers import (
    ACTIVATIONS,
    Dropout,
    DropPath,
    Mlp,
    PatchDropout,
    norms_of,
    scratch_gelu,
    scratch_layer_norm,
)

# How a random (..., 16) tensor lies in memory.
LAYOUTS = {
    "contiguous": lambda draw, lead: draw(*lead, 16),
    "transposed": lambda draw, lead: draw(*lead[:-1], 16, lead[-1]).transpose(-1, -2),
    "strided": lambda draw, lead: draw(*lead, 32)[..., ::2],
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
leads = pytest.mark.parametrize("lead", [(6,), (3, 5)], ids=["2-D", "3-D"])


def torch_layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def drawer(seed):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def value_and_gradients(function, inputs, upstream):
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    y = function(*inputs)
    return y.detach(), *torch.autograd.grad(y, inputs, upstream)


def assert_same(ours, theirs, inputs, upstream, **tolerance):
    torch.testing.assert_close(
        value_and_gradients(ours, inputs, upstream),
        value_and_gradients(theirs, inputs, upstream),
        **tolerance,
    )


@layouts
@leads
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_layer_norm_agrees_with_torch_in_value_and_all_gradients(layout, lead, eps):
    draw = drawer(0)
    x, upstream = (LAYOUTS[layout](draw, lead) for _ in range(2))
    assert x.is_contiguous() == (layout == "contiguous")
    assert_same(
        lambda *inputs: scratch_layer_norm(*inputs, eps),
        lambda *inputs: torch_layer_norm(*inputs, eps),
        (x, draw(16), draw(16)),
        upstream,
        rtol=0,
        atol=1e-10,
    )


@layouts
@leads
def test_gelu_agrees_with_torch_in_value_and_gradient(layout, lead):
    draw = drawer(1)
    x, upstream = (LAYOUTS[layout](draw, lead) for _ in range(2))
    assert_same(scratch_gelu, F.gelu, (x,), upstream, rtol=0, atol=1e-10)


def test_functions_leave_their_inputs_and_the_upstream_gradient_untouched():
    draw = drawer(4)
    tensors = draw(3, 5), draw(5), draw(5), draw(3, 5)
    copies = [t.clone() for t in tensors]
    x, weight, bias, upstream = tensors
    value_and_gradients(lambda *a: scratch_layer_norm(*a, 1e-5), (x, weight, bias), upstream)
    value_and_gradients(scratch_gelu, (x,), upstream)
    assert all(torch.equal(t, copy) for t, copy in zip(tensors, copies, strict=True))


# bfloat16 has 8 significant bits: 2⁻⁸ relative is half a unit in the last place, 2⁻⁷ a whole one.
def test_layer_norm_of_bfloat16_is_torch_float32_result_to_rounding():
    draw = drawer(5)
    x, upstream = draw(3, 5, 16).bfloat16(), draw(3, 5, 16).bfloat16().float()
    parameters = draw(16).float(), draw(16).float()
    ours = value_and_gradients(
        lambda *a: scratch_layer_norm(*a, 1e-5).float(), (x, *parameters), upstream
    )
    theirs = value_and_gradients(
        lambda *a: torch_layer_norm(*a, 1e-5), (x.float(), *parameters), upstream
    )
    assert ours[1].dtype == torch.bfloat16
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.float(), their, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("activation, approximate", [("gelu", "none"), ("gelu_tanh", "tanh")])
def test_gelu_of_bfloat16_stays_bfloat16_and_agrees_with_torch(activation, approximate):
    draw = drawer(6)
    x, upstream = (3 * draw(3, 5, 16)).bfloat16(), draw(3, 5, 16).bfloat16()
    ours = Mlp(ViTConfig(kernels="scratch", activation=activation)).activation
    theirs = partial(F.gelu, approximate=approximate)
    assert_same(ours, theirs, (x,), upstream, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("kernels", ["scratch", "fused"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_activation_is_the_one_of_its_name(activation, kernels):
    mlp = Mlp(ViTConfig(embed_dim=8, mlp_dim=6, activation=activation, kernels=kernels)).double()
    x = drawer(7)(2, 3, 8)
    expected = {
        "gelu": nn.GELU(),
        "gelu_tanh": nn.GELU("tanh"),
        "relu": nn.ReLU(),
        "silu": nn.SiLU(),
        "swiglu": lambda h: h[..., :6] * nn.SiLU()(h[..., 6:]),
    }[activation]
    torch.testing.assert_close(mlp(x), mlp.fc2(expected(mlp.fc1(x))))


@pytest.mark.parametrize("magnitude", [1e3, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layer_norm_of_large_and_of_constant_rows_stays_finite(magnitude, dtype):
    draw = drawer(7)
    spread, shifted = magnitude * draw(4, 16), magnitude + draw(4, 16)
    constant = torch.full((4, 16), magnitude, dtype=torch.float64)
    x = torch.cat((spread, shifted, constant)).to(dtype)
    results = value_and_gradients(
        lambda *a: scratch_layer_norm(*a, 1e-5).float(),
        (x, torch.ones(16), torch.zeros(16)),
        draw(12, 16).float(),
    )
    assert all(result.isfinite().all() for result in results)
    torch.testing.assert_close(results[0][8:], torch.zeros(4, 16))


@pytest.mark.parametrize("magnitude", [1e3, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gelu_of_large_values_is_relu(magnitude, dtype):
    x = torch.tensor([-magnitude, magnitude], dtype=dtype)
    value, slope = value_and_gradients(scratch_gelu, (x,), torch.ones_like(x))
    assert value.tolist() == x.relu().tolist()
    assert slope.tolist() == [0, 1]


@pytest.mark.parametrize("kernels", ["scratch", "fused"])
def test_a_models_layer_norms_have_the_eps_of_its_config(kernels):
    x = drawer(11)(3, 16)
    y = norms_of(ViTConfig(kernels=kernels, norm_eps=0.5))(16).double()(x)
    torch.testing.assert_close(y, F.layer_norm(x, (16,), eps=0.5), rtol=0, atol=1e-10)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_drop_path_drops_whole_samples_and_scales_up_the_others(rate):
    x = drawer(9)(500, 3, 4)
    y = DropPath(rate)(x)
    dropped = (y == 0).all(dim=(1, 2))
    torch.testing.assert_close(y[~dropped], x[~dropped] / (1 - rate))
    assert dropped.double().mean().item() == pytest.approx(rate, abs=0.08)


@pytest.mark.parametrize("layer", [DropPath, Dropout])
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1])
def test_dropping_keeps_the_expectation_in_bf16(layer, rate):
    x = torch.rand(2000, 1, 1, dtype=torch.bfloat16) + 0.5
    with per_image_generators(0, 0, range(2000)):
        y = layer(rate)(x)
    kept = x[y != 0].double().sum()
    assert y.dtype == x.dtype and y.double().sum() / kept == pytest.approx(1 / (1 - rate), rel=1e-3)


@pytest.mark.parametrize("rate, training", [(0.5, False), (0.0, True)])
def test_drop_path_is_the_identity_in_evaluation_and_at_rate_zero(rate, training):
    x = drawer(10)(8, 3, 4)
    assert torch.equal(DropPath(rate).train(training)(x), x)


def test_patch_dropout_keeps_as_many_patches_of_each_image_and_none_more_often():
    drop, patches = PatchDropout(0.25, epochs=2), torch.zeros(4000, 8, 3)
    kept = drop(patches)
    assert kept.shape == (4000, 6) and all(len(set(row)) == 6 for row in kept.tolist())
    shares = kept.flatten().bincount(minlength=8) / 4000
    torch.testing.assert_close(shares, torch.full((8,), 0.75), rtol=0, atol=0.03)
    assert drop.eval()(patches) is None and drop.train()(patches) is not None
    assert [drop.set_epoch(epoch) for epoch in range(4)] == [False, False, True, False]
    assert drop(patches) is None and PatchDropout(0.99, None)(patches).shape == (4000, 1)
