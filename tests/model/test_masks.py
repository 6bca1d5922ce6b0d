"""Masks, True = may look: causality in values and gradients."""

import pytest
import torch

from vit_train.model.attention import Attention, causal
from vit_train.model.config import ViTConfig
from vit_train.model.functional import softmax
from vit_train.model.pos_embed import RelativeKeys
from vit_train.model.vit import Block

kernels = pytest.mark.parametrize("kernels", ["scratch", "fused"])
TOKENS, DIM = 6, 12
CAUSAL = causal(TOKENS)


def build(kernels: str) -> tuple[Attention, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64, requires_grad=True)
    return Attention(ViTConfig(embed_dim=DIM, num_heads=3, kernels=kernels)).double(), x


@kernels
def test_a_masked_row_is_the_attention_over_what_it_may_see(kernels: str) -> None:
    attention, x = build(kernels)
    mask = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)) < 0.5
    mask.fill_diagonal_(True)
    result, weights = attention(x, need_weights=True, mask=mask)
    torch.testing.assert_close(attention(x, mask=mask)[0], result, rtol=0, atol=1e-12)
    q, k, v = attention.project(x, None)
    for row in range(TOKENS):
        seen = mask[row]
        logits = q[:, :, row : row + 1] @ k[:, :, seen].transpose(2, 3) / 2
        share = softmax(logits)
        torch.testing.assert_close(weights[:, :, row][:, :, seen], share.squeeze(2))
        heads = (share @ v[:, :, seen]).transpose(1, 2).flatten(2)
        torch.testing.assert_close(result[:, row], attention.proj(heads)[:, 0])
        assert (weights[:, :, row][:, :, ~seen] == 0).all()


@kernels
@pytest.mark.parametrize("pre_norm", [True, False])
def test_causal_tokens_do_not_see_later_ones_in_value_or_gradient(
    kernels: str, pre_norm: bool
) -> None:
    torch.manual_seed(0)
    config = ViTConfig(embed_dim=DIM, num_heads=3, kernels=kernels, pre_norm=pre_norm)
    block = Block(config).double()
    x = torch.randn(2, TOKENS, DIM, dtype=torch.float64, requires_grad=True)
    changed = x.detach().clone()
    changed[:, 4:] += 1
    before, after = block(x, mask=CAUSAL)[0], block(changed, mask=CAUSAL)[0]
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.equal(before[:, 4], after[:, 4])
    (gradient,) = torch.autograd.grad(before[:, 2].sum(), x)
    assert (gradient[:, 3:] == 0).all() and (gradient[:, :3] != 0).any()


@kernels
@pytest.mark.parametrize("queries", [None, 2])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_a_causal_mask_can_be_asked_for_by_its_name(
    kernels: str, queries: int | None, need_weights: bool, positions: bool
) -> None:
    attention, x = build(kernels)
    if positions:
        attention.relative = RelativeKeys(2, DIM // 3, has_class=True).double()
        torch.nn.init.normal_(attention.relative.weight)
        x = x[:, :5]
    results = [
        attention(x, need_weights, queries, mask)[0] for mask in ("causal", causal(x.shape[1]))
    ]
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(result.square().sum(), x)[0] for result in results]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_causal_is_the_lower_triangle() -> None:
    assert causal(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


@kernels
def test_fewer_queries_take_the_first_rows_of_the_mask(kernels: str) -> None:
    attention, x = build(kernels)
    whole = attention(x, mask=CAUSAL)[0]
    few = attention(x, num_queries=2, mask=CAUSAL)[0]
    torch.testing.assert_close(few, whole[:, :2], rtol=0, atol=1e-12)
