"""The written attention against PyTorch's, and masks: True where a token may attend."""

import copy

import pytest
import torch
import torch.nn.functional as F

from vit_train.config.model import ViTConfig
from vit_train.model import attention as attention_module
from vit_train.model.attention import Attention, attend, causal
from vit_train.model.positions import RelativeKeys

kernels = pytest.mark.parametrize("kernels", ["scratch", "fused"])


def build(kernels, dim=24, heads=4):
    torch.manual_seed(0)
    return Attention(
        ViTConfig(embed_dim=dim, num_heads=heads, kernels=kernels)
    ).double(), torch.randn(2, 9, dim).double()


@kernels
def test_attention_agrees_with_torch_multi_head_attention(kernels):
    attention, x = build(kernels)
    reference = torch.nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    reference.load_state_dict(
        {
            "in_proj_weight": attention.qkv.weight,
            "in_proj_bias": attention.qkv.bias,
            "out_proj.weight": attention.proj.weight,
            "out_proj.bias": attention.proj.bias,
        }
    )
    expected = reference(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(attention(x)[0], expected[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(attention(x, True), expected, rtol=0, atol=1e-10)


@kernels
@pytest.mark.parametrize("queries", [1, 4])
def test_fewer_queries_give_the_first_rows_and_their_gradients(kernels, queries):
    attention, x = build(kernels)
    direction = torch.randn(2, queries, 24, dtype=torch.float64)
    inputs = [x.requires_grad_(), *attention.parameters()]
    whole = attention(x)[0][:, :queries]
    few = attention(x, num_queries=queries)[0]
    torch.testing.assert_close(few, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad((few * direction).sum(), inputs),
        torch.autograd.grad((whole * direction).sum(), inputs),
        rtol=0,
        atol=1e-11,
    )


@kernels
@pytest.mark.parametrize("relative, mask", [(False, None), (True, None), (False, "causal")])
def test_in_bf16_results_and_gradients_are_those_of_float64(kernels, relative, mask):
    attention, x = build(kernels)
    if relative:
        attention.relative = RelativeKeys((3, 3), 6, 0).double()
        torch.nn.init.normal_(attention.relative.weight, std=0.3)

    def gradients(module, x):
        x = x.requires_grad_()
        result = module(x, mask=mask)[0].float()
        return (result, *torch.autograd.grad(result.square().sum(), [x, *module.parameters()]))

    exact = gradients(attention, x.clone())
    with torch.autocast("cpu", torch.bfloat16):
        rounded = gradients(copy.deepcopy(attention).float(), x.float())
    for ours, theirs in zip(rounded, exact, strict=True):
        # bf16 has 8 bits; the error of a sum is a few roundings (4e-3) of the whole.
        assert (ours - theirs).norm() < 0.03 * theirs.norm()


def test_training_in_bf16_on_a_cpu_uses_no_slow_backward(monkeypatch):
    """PyTorch's attention is fast in float32 and in inference, but not in bf16's backward."""
    called = []
    sdpa = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: (called.append(1), sdpa(*a, **k))[1]
    )
    attention, x = build("fused")
    attention(x)
    attention, x = attention.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        attention(x)
        assert len(called) == 1
        with torch.no_grad():
            attention(x)
        assert len(called) == 2
        monkeypatch.setattr(attention_module, "WRITTEN_TOKENS", x.shape[1] - 1)  # too much memory
        attention(x)
        assert len(called) == 3


@pytest.mark.parametrize("queries, keys", [(1, 7), (7, 1), (1, 1)])
def test_a_single_query_or_key_on_a_gpu_gets_the_same_without_matrix_products(
    queries, keys, monkeypatch
):
    q, k, v = (
        torch.randn(2, 3, count, 5).double().requires_grad_() for count in (queries, keys, keys)
    )
    results = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(attention_module, "OUTER_BY_SUM", devices)
        result, weights = attend(q, k, v)
        gradients = torch.autograd.grad(result.square().sum() + weights[..., 0].sum(), (q, k, v))
        results.append((result, weights, *gradients))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


@kernels
def test_masked_tokens_get_no_attention(kernels):
    attention, x = build(kernels)
    mask = torch.rand(9, 9, generator=torch.Generator().manual_seed(3)) < 0.5
    mask.fill_diagonal_(True)
    result, weights = attention(x, need_weights=True, mask=mask)
    torch.testing.assert_close(attention(x, mask=mask)[0], result, rtol=0, atol=1e-12)
    heads = F.scaled_dot_product_attention(*attention.project(x), attn_mask=mask)
    torch.testing.assert_close(result, attention.merge_heads(heads))
    assert (weights[:, :, ~mask] == 0).all() and (weights[:, :, mask] > 0).all()


@kernels
def test_a_token_that_may_attend_to_none_gets_zeros(kernels):
    """System D: zeros, never NaN, in the results and in the gradients."""
    attention, x = build(kernels)
    mask = torch.eye(9, dtype=torch.bool)
    mask[4] = False
    for need_weights in (False, True):
        result, weights = attention(x.requires_grad_(), need_weights, mask=mask)
        (gradient,) = torch.autograd.grad(result.square().sum(), x)
        for found in (result, gradient):
            assert (found[:, 4] == 0).all() and found[:, [0, 8]].all() and found.isfinite().all()
    assert (weights[:, :, 4] == 0).all() and weights.isfinite().all()


@kernels
@pytest.mark.parametrize("queries", [None, 2])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_causal_mask_can_be_asked_for_by_its_name(kernels, queries, need_weights):
    attention, x = build(kernels)
    x.requires_grad_()
    results = [attention(x, need_weights, queries, mask)[0] for mask in ("causal", causal(9))]
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(result.square().sum(), x)[0] for result in results]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
