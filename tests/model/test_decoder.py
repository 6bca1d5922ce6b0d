import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_names import named_as_in_torch

from vit_train.model.autoencoder import Decoder
from vit_train.model.config import ViTConfig

kernels = pytest.mark.parametrize("kernels", ["scratch", "fused"])


def build(kernels: str = "scratch") -> tuple[Decoder, torch.Tensor, torch.Tensor]:
    """A decoder of 9 patches, an encoder's 5 tokens, the patches' embeddings."""
    torch.manual_seed(0)
    config = ViTConfig(embed_dim=12, depth=2, num_heads=3, kernels=kernels)
    decoder = Decoder(config, grid=3).double()
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.3)
    memory = torch.randn(2, 5, 12, dtype=torch.float64)
    return decoder, memory, torch.randn(2, 9, 12, dtype=torch.float64)


def test_a_decoder_begins_with_the_weights_of_the_config() -> None:
    decoder = Decoder(ViTConfig(embed_dim=96, depth=1, num_heads=2, pos_std=0.05), grid=8)
    assert decoder.pos_embed.weight.std().item() == pytest.approx(0.05, rel=0.1)
    assert decoder.mask_token.std().item() == pytest.approx(0.05, rel=0.3)
    for layer in decoder.modules():
        if isinstance(layer, nn.Linear):  # Xavier, uniform
            bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
            assert layer.weight.abs().max() <= bound and (layer.bias == 0).all()
            assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


@pytest.mark.parametrize("mask_std", [0.0, 1.0])
def test_the_mask_token_has_its_own_standard_deviation(mask_std: float) -> None:
    token = Decoder(ViTConfig(depth=1, mask_std=mask_std), grid=2).mask_token
    assert token.std().item() == pytest.approx(mask_std, rel=0.3)


@kernels
def test_blocks_are_those_of_torch_transformer_decoder_layer(kernels: str) -> None:
    decoder, memory, _ = build(kernels)
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    ours = decoder.blocks[0]
    theirs = nn.TransformerDecoderLayer(
        12, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    names = {"self_attn.qkv.": "self_attn.in_proj_", "cross_attn.qkv.": "multihead_attn.in_proj_"}
    names |= {"self_attn.proj": "self_attn.out_proj", "cross_attn.proj": "multihead_attn.out_proj"}
    theirs.load_state_dict(named_as_in_torch(ours, names))
    expected = theirs(x, memory, tgt_mask=~mask)  # there True = may not look
    torch.testing.assert_close(ours(x, memory, mask)[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "field, expected",
    [("branch_dropout", [(9, 12)] * 3), ("dropout", [(9, 12), (9, 12), (9, 40), (9, 12)])],
)
def test_dropout_acts_on_each_branch_or_after_each_dense_layer(
    field: str, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two attentions and the MLP; of the second kind the MLP has two layers."""
    calls: list[tuple[int, ...]] = []

    def note(x: torch.Tensor, rate: float) -> torch.Tensor:
        calls.append(tuple(x.shape[1:]))
        return x

    monkeypatch.setattr(F, "dropout", note)
    config = ViTConfig(embed_dim=12, depth=1, num_heads=3, mlp_dim=40, **{field: 0.1})
    Decoder(config, grid=3)(torch.randn(2, 5, 12))
    assert calls == expected


@kernels
def test_a_patch_depends_on_earlier_ones_alone_in_value_and_gradient(kernels: str) -> None:
    decoder, memory, patches = build(kernels)
    patches.requires_grad_()
    before, _ = decoder(memory, patches)
    changed = patches.detach().clone()
    changed[:, 4:] += 1
    after, _ = decoder(memory, changed)
    assert torch.equal(before[:, :5], after[:, :5])  # patch 4 is the input of prediction 5
    assert not torch.equal(before[:, 5], after[:, 5])
    (gradient,) = torch.autograd.grad(before[:, 3].sum(), patches)
    assert (gradient[:, 3:] == 0).all() and (gradient[:, :3] != 0).all()


def test_all_at_once_every_patch_sees_every_token_of_the_encoder() -> None:
    decoder, memory, _ = build()
    memory.requires_grad_()
    result, _ = decoder(memory)
    assert result.shape == (2, 9, 12)
    for patch in range(9):
        (gradient,) = torch.autograd.grad(result[0, patch].sum(), memory, retain_graph=True)
        assert (gradient[0] != 0).all() and (gradient[1] == 0).all()


@kernels
@pytest.mark.parametrize("count", [None, 7])
def test_the_attention_is_returned_on_request_and_changes_nothing(
    kernels: str, count: int | None
) -> None:
    decoder, memory, patches = build(kernels)
    inputs = None if count is None else patches[:, :count]
    tokens = count or 9
    result, attention = decoder(memory, inputs, need_weights=True)
    torch.testing.assert_close(result, decoder(memory, inputs)[0], rtol=0, atol=1e-12)
    assert len(attention) == 2
    for own, cross in attention:
        assert own.shape == (2, 3, tokens, tokens) and cross.shape == (2, 3, tokens, 5)
        for weights in (own, cross):
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert (count is None) == bool(own.triu(1).any())  # causal: nothing above the diagonal
