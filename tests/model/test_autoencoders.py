"""The decoder and the two autoencoders: what each patch depends on, and generation."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_names import named_as_in_torch

from vit_train.config.model import ViTConfig
from vit_train.model.autoencoder import Autoregressor, Decoder, MaskedAutoencoder
from vit_train.model.patches import patchify, unpatchify

kernels = pytest.mark.parametrize("kernels", ["scratch", "fused"])
rows = pytest.mark.parametrize("given_rows", [0, 1, 3])
CONFIG = ViTConfig(patch_size=4, embed_dim=16, depth=2, num_heads=2)


def images(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, 16, 16, generator=generator, dtype=torch.float64)


def drawn(model: nn.Module) -> nn.Module:
    """Weights that make every path count, in float64."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double()


def autoregressor(given_rows: int, **config: object) -> Autoregressor:
    return drawn(Autoregressor(replace(CONFIG, **config), 2, (3, 16, 16), given_rows))


def masked_autoencoder(**config: object) -> MaskedAutoencoder:
    return drawn(MaskedAutoencoder(replace(CONFIG, **config), 1, (3, 16, 16)))


def test_joining_is_the_inverse_of_cutting() -> None:
    patches = patchify(images(), 4)
    assert patches.shape == (2, 16, 48)
    assert torch.equal(unpatchify(patches, 4, (16, 16)), images())
    # The second patch lies to the right of the first, and a patch's channels one after another.
    assert torch.equal(patches[0, 1], images()[0, :, :4, 4:8].flatten())


# masked autoencoder -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [{}, {"head": "gap"}, {"positions_at": "layers"}, {"stem": "conv"}, {"patch_overlap": 2}],
)
def test_hidden_patches_change_nothing_in_value_and_gradient(config: dict[str, str]) -> None:
    model, visible = masked_autoencoder(**config), torch.tensor([[3, 0, 7], [1, 2, 15]])
    pixels = images().requires_grad_()
    predicted = model(pixels, visible)
    assert predicted.shape == (2, 16, 48)
    (gradient,) = torch.autograd.grad(predicted.sum(), pixels)
    seen = patchify(gradient, 4).abs().sum(2) > 0  # (B,N)
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0, 3, 7], [1, 2, 15]]


@pytest.mark.parametrize("config", [{}, {"positions": "sincos_2d"}, {"positions_at": "layers"}])
def test_the_order_of_the_visible_patches_does_not_matter(config: dict[str, str]) -> None:
    """Each carries its own position, wherever it stands."""
    model = masked_autoencoder(**config)
    one = model(images(), torch.tensor([[3, 0, 7], [1, 2, 15]]))
    other = model(images(), torch.tensor([[7, 3, 0], [2, 15, 1]]))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


# autoregressor ----------------------------------------------------------------------------------


@rows
@kernels
@pytest.mark.parametrize("head", ["token", "gap"])
def test_a_patch_is_predicted_from_earlier_ones_alone(
    head: str, kernels: str, given_rows: int
) -> None:
    """Through the whole model, in values and in gradients, for every patch."""
    model, given = autoregressor(given_rows, kernels=kernels, head=head), 4 * given_rows
    before = model(images())
    assert before.shape == (2, 16 - given, 48) and before.isfinite().all()
    for patch in range(given, 16):
        patches = patchify(images(), 4)
        patches[:, patch:] += 1
        changed = unpatchify(patches, 4, (16, 16))
        assert torch.equal(model(changed)[:, : patch - given + 1], before[:, : patch - given + 1])
        pixels = images().requires_grad_()
        (gradient,) = torch.autograd.grad(model(pixels)[:, patch - given].sum(), pixels)
        touched = patchify(gradient, 4).abs().sum(2) > 0
        assert touched[:, :patch].all() and not touched[:, patch:].any()


def test_generation_looks_at_nothing_but_the_given_rows() -> None:
    model = autoregressor(1)
    other = images()
    other[:, :, 4:] = 0
    assert torch.equal(model.generate(other), model.generate(images()))
    generated = model.generate(images())
    assert torch.equal(generated[:, :, :4], images()[:, :, :4])
    # Each patch is the one predicted from the given ones and the generated ones before it.
    torch.testing.assert_close(patchify(generated, 4)[:, 4:], model(generated))


# attention --------------------------------------------------------------------------------------


@kernels
def test_both_autoencoders_pass_the_decoders_attention_through(kernels: str) -> None:
    visible = torch.tensor([[3, 0, 7], [1, 2, 15]])
    model = masked_autoencoder(kernels=kernels)
    predicted, attention = model(images(), visible, return_attention=True)
    torch.testing.assert_close(predicted, model(images(), visible), rtol=0, atol=1e-12)
    shapes = [(own.shape[1:], cross.shape[1:]) for own, cross in attention]
    assert shapes == [((2, 16, 16), (2, 16, 4))]  # of one layer; the encoder has a class token
    model = autoregressor(1, kernels=kernels)
    predicted, attention = model(images(), return_attention=True)
    torch.testing.assert_close(predicted, model(images()), rtol=0, atol=1e-12)
    shapes = [(own.shape[1:], cross.shape[1:]) for own, cross in attention]
    assert shapes == [((2, 12, 12), (2, 12, 5))] * 2
    assert not any(own.triu(1).any() for own, _ in attention)  # causal


def test_a_decoder_begins_with_the_weights_of_the_config() -> None:
    decoder = Decoder(ViTConfig(embed_dim=96, depth=1, num_heads=2, pos_std=0.05), grid=(8, 8))
    assert decoder.pos_embed.weight.std().item() == pytest.approx(0.05, rel=0.1)
    assert decoder.mask_token.std().item() == pytest.approx(0.05, rel=0.3)
    for layer in decoder.modules():
        if isinstance(layer, nn.Linear):  # Xavier, uniform
            bound = (6 / (layer.in_features + layer.out_features)) ** 0.5
            assert layer.weight.abs().max() <= bound and (layer.bias == 0).all()
            assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


@pytest.mark.parametrize("mask_std", [0.0, 1.0])
def test_the_mask_token_has_its_own_standard_deviation(mask_std: float) -> None:
    token = Decoder(ViTConfig(depth=1, mask_std=mask_std), grid=(2, 2)).mask_token
    assert token.std().item() == pytest.approx(mask_std, rel=0.3)


@kernels
def test_blocks_are_those_of_torch_transformer_decoder_layer(kernels: str) -> None:
    config = ViTConfig(embed_dim=12, depth=2, num_heads=3, kernels=kernels)
    decoder = drawn(Decoder(config, grid=(3, 3)))
    x, memory = torch.randn(2, 9, 12).double(), torch.randn(2, 5, 12).double()
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

    monkeypatch.setattr(F, "dropout", lambda x, rate: calls.append(tuple(x.shape[1:])) or x)
    config = ViTConfig(embed_dim=12, depth=1, num_heads=3, mlp_dim=40, **{field: 0.1})
    Decoder(config, grid=(3, 3))(torch.randn(2, 5, 12))
    assert calls == expected
