"""The weights that a model begins with."""

import math

import pytest
import torch
from torch import Tensor, nn

from vit_train.model.attention import Attention
from vit_train.model.config import ViTConfig
from vit_train.model.vit import Encoder, VisionTransformer, init_mimetic

DIM = 96


def mimetic(num_heads: int, seed: int = 0) -> Attention:
    torch.manual_seed(seed)
    attention = Attention(ViTConfig(embed_dim=DIM, num_heads=num_heads, kernels="scratch"))
    init_mimetic(attention)
    return attention


def maps(attention: Attention) -> tuple[Tensor, ...]:
    """W_q, W_k, W_v and W_o of row vectors, x W, as Trockman & Kolter write them."""
    return *(each.T for each in attention.qkv.weight.detach().chunk(3)), attention.proj.weight.T


def assert_near_identity(product: Tensor, identity: float, noise: float) -> None:
    assert product.diagonal().mean().item() == pytest.approx(identity, abs=0.05)
    rest = product - identity * torch.eye(DIM)
    assert rest.std().item() == pytest.approx(noise / math.sqrt(DIM), rel=0.05)


def test_values_and_output_are_near_a_negative_identity() -> None:
    _, _, w_v, w_o = maps(mimetic(num_heads=4))
    assert_near_identity(w_v @ w_o, -0.4, 0.4)


def test_queries_and_keys_of_one_head_are_near_the_identity() -> None:
    w_q, w_k, _, _ = maps(mimetic(num_heads=1))
    assert_near_identity(w_q @ w_k.T, 0.7, 0.7)


def test_each_head_has_its_own_best_approximation() -> None:
    """Of its rank: the singular values are the largest of such a matrix, shared by both factors."""
    w_q, w_k, _, _ = maps(mimetic(num_heads=4))
    products = [q @ k.T for q, k in zip(w_q.chunk(4, dim=1), w_k.chunk(4, dim=1), strict=True)]
    for product in products:
        assert torch.linalg.matrix_rank(product) == DIM // 4
        assert product.diagonal().mean() > 0.15  # a quarter of the dimensions
    assert not torch.allclose(products[0], products[1], atol=0.1)
    for q, k in zip(w_q.chunk(4, dim=1), w_k.chunk(4, dim=1), strict=True):
        torch.testing.assert_close(q.norm(dim=0), k.norm(dim=0), rtol=1e-4, atol=0)


def test_the_rest_is_as_with_xavier() -> None:
    def weights(init: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        config = ViTConfig(embed_dim=16, depth=2, head="gap", init=init)
        return VisionTransformer(config).state_dict()

    xavier, other = weights("xavier"), weights("mimetic")
    differing = {key for key in xavier if not torch.equal(xavier[key], other[key])}
    assert differing == {
        f"blocks.{block}.attn.{layer}.weight" for block in range(2) for layer in ("qkv", "proj")
    }
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=2, init="mimetic"))
    assert model(torch.randn(2, 3, 32, 32)).abs().max() == 0  # all classes are equally likely


@pytest.mark.parametrize("head", ["token", "gap"])
def test_the_head_is_drawn_right_after_the_encoder(head: str) -> None:
    """A part that a model lacks draws no numbers, or the same seed would give other weights."""
    config = ViTConfig(embed_dim=16, depth=1, head=head, init="torch")
    torch.manual_seed(0)
    model = VisionTransformer(config, 8, 3, 10)
    torch.manual_seed(0)
    Encoder(config, 8, 3)
    assert torch.equal(model.head.weight, nn.Linear(16, 10).weight)


@pytest.mark.parametrize("init", ["xavier", "mimetic", "torch"])
def test_zero_branches_give_zero_whatever_the_other_weights(init: str) -> None:
    config = ViTConfig(embed_dim=16, depth=1, init=init, zero_branches=True)
    model = VisionTransformer(config, 8, 3, 10).eval()
    x = torch.randn(2, 5, 16)
    assert torch.equal(model.blocks[0](x)[0], x)
