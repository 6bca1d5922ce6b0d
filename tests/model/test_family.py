"""One family: counts that publications state, variants against formulas, initial weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_names import named_as_in_torch

from vit_train.config.model import ViTConfig
from vit_train.config.tasks import ClassifyConfig, ReconstructConfig
from vit_train.model.attention import Attention, init_mimetic
from vit_train.model.build import on_meta
from vit_train.model.vit import Block, Encoder, VisionTransformer
from vit_train.tasks import make_task


@pytest.mark.parametrize("dim", [8, 128])
def test_a_block_with_biases_in_the_mlp_alone_has_12_d_squared_plus_9_d(dim: int) -> None:
    config = ViTConfig(embed_dim=dim, qkv_bias=False, proj_bias=False)
    assert sum(each.numel() for each in Block(config).parameters()) == 12 * dim**2 + 9 * dim


def test_post_ln_is_that_of_torch_transformer_encoder_layer() -> None:
    ours = Block(ViTConfig(embed_dim=24, num_heads=4, pre_norm=False)).double().eval()
    theirs = nn.TransformerEncoderLayer(
        24, 4, 96, 0.0, "gelu", batch_first=True, norm_first=False, dtype=torch.float64
    )
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.3)
    names = {"attn.qkv.": "self_attn.in_proj_", "attn.proj": "self_attn.out_proj"}
    theirs.load_state_dict(named_as_in_torch(ours, names))
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    torch.testing.assert_close(ours(x)[0], theirs(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("head", ["token", "token_mlp", "gap", "gap_norm"])
def test_each_head_reads_its_own_tokens(head: str, registers: int) -> None:
    images = torch.randn(2, 3, 16, 16)
    config = ViTConfig(
        embed_dim=16, depth=2, num_heads=2, head=head, registers=registers, init="torch"
    )
    model = VisionTransformer(config, 16).eval()
    x, _ = model.encode(model.tokens(images), need_weights=True)  # all tokens
    assert x.shape[1] == 16 + registers + ("gap" not in head)
    patches = x[:, -16:]
    y = model.norm(patches).mean(1) if head == "gap" else model.norm(x[:, 0])
    if head == "gap_norm":
        y = model.norm(patches.mean(1))
    if head == "token_mlp":
        y = torch.tanh(model.pre_head[0](y))
    torch.testing.assert_close(model(images), model.head(y))


@pytest.mark.parametrize("field", ["dropout", "branch_dropout"])
def test_dropout_acts_where_the_config_puts_it(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the positions and all dense layers but qkv (C), or on the two branches alone (D)."""
    calls: list[tuple[int, ...]] = []

    monkeypatch.setattr(F, "dropout", lambda x, rate: calls.append(tuple(x.shape[1:])) or x)
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=1, mlp_dim=40, **{field: 0.1}), 8)
    model(torch.randn(2, 3, 8, 8))
    branches = [(1, 16), (1, 16)]
    expected = {"dropout": [(5, 16), (1, 16), (1, 40), (1, 16)], "branch_dropout": branches}
    assert calls == expected[field]
    calls.clear()
    config = ViTConfig(embed_dim=16, depth=1, mlp_dim=40, head="token_mlp", **{field: 0.1})
    VisionTransformer(config, 8)(torch.randn(2, 3, 8, 8))
    assert calls == expected[field] + [(16,)] * (field == "dropout")


def test_a_post_ln_encoder_can_end_with_its_last_block() -> None:
    config = ViTConfig(
        embed_dim=16, depth=2, num_heads=2, pre_norm=False, final_norm=False, init="torch"
    )
    model, images = VisionTransformer(config, 16).eval(), torch.randn(2, 3, 16, 16)
    x, _ = model.encode(model.tokens(images))
    torch.testing.assert_close(model(images), model.head(x[:, 0]))
    assert not [name for name in model.state_dict() if name.startswith("norm.")]


@pytest.mark.parametrize("positions", ["learned", "learned_2d", "relative"])
def test_shapes_alone_are_sketched_without_pytorchs_compiler(
    positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing normal numbers for the meta device loads it, which takes seconds."""
    monkeypatch.setattr(torch.nn.init, "normal_", lambda *_, **__: pytest.fail("drawn"))
    config = ViTConfig(positions=positions, embed_dim=16, depth=2)
    for task in (ClassifyConfig(), ReconstructConfig()):
        if not (positions == "relative" and isinstance(task, ReconstructConfig)):
            on_meta(make_task(task, config, (3, 8, 8), 10).build_model, config)


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


@pytest.mark.parametrize("num_heads", [1, 4])
def test_products_of_mimetic_weights_are_near_multiples_of_the_identity(num_heads: int) -> None:
    w_q, w_k, w_v, w_o = maps(mimetic(num_heads))
    assert_near_identity(w_v @ w_o, -0.4, 0.4)
    if num_heads == 1:
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
