"""The convolutional stem: what it computes, and what it cannot be combined with."""

import pytest
import torch
import torch.nn.functional as F

from vit_train.model.autoencoder import Autoregressor, MaskedAutoencoder
from vit_train.model.config import ViTConfig
from vit_train.model.patches import ConvStem, PatchEmbed
from vit_train.model.vit import VisionTransformer

CONV = ViTConfig(stem="conv", embed_dim=8)


def test_it_is_two_convolutions_with_pooling() -> None:
    torch.manual_seed(0)
    stem = ConvStem(CONV, 3).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x = images
    for weight in (stem.conv1.weight, stem.conv2.weight):
        patches = F.unfold(x, 3, padding=1)  # (B,9C,HW)
        x = (weight.flatten(1) @ patches).relu().unflatten(2, x.shape[2:])
        windows = F.pad(x, (1, 1, 1, 1), value=-torch.inf).unfold(2, 3, 2).unfold(3, 3, 2)
        x = windows.amax(dim=(4, 5))
    tokens = stem(images)
    assert tokens.shape == (2, 16, 8)
    torch.testing.assert_close(tokens.mT.unflatten(2, (4, 4)), x, rtol=1e-10, atol=1e-12)


def test_a_token_sees_its_neighborhood_alone() -> None:
    stem = ConvStem(CONV, 3)
    images = torch.randn(1, 3, 32, 32, requires_grad=True)
    (gradient,) = torch.autograd.grad(stem(images)[0, 8 * 4 + 4].sum(), images)
    rows = gradient.abs().sum(dim=(0, 1, 3)).nonzero().flatten()
    assert rows.min() >= 10 and rows.max() <= 26  # patch 4 is rows 16 to 19


def test_a_model_has_it_instead_of_patches() -> None:
    model = VisionTransformer(ViTConfig(stem="conv", embed_dim=16, depth=1))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in model.patch_embed.parameters()) == 27 * 64 + 9 * 64 * 16


@pytest.mark.parametrize("change", [{"patch_size": 8}, {"stem": "other"}])
def test_what_cannot_be_is_refused(change: dict) -> None:
    with pytest.raises(ValueError, match=r"model\.stem="):
        ViTConfig(**{"stem": "conv"} | change)


def test_tasks_that_hide_patches_refuse_it() -> None:
    config = ViTConfig(stem="conv", embed_dim=16, depth=1)
    with pytest.raises(ValueError, match=r"set model\.stem=patches"):
        MaskedAutoencoder(config, 1, 32, 3)
    with pytest.raises(ValueError, match=r"set model\.stem=patches"):
        Autoregressor(config, 1, 32, 3, 4)


def test_patches_that_overlap_are_windows_of_the_padded_image() -> None:
    torch.manual_seed(0)
    embed = PatchEmbed(ViTConfig(embed_dim=10, num_heads=2, patch_overlap=1), 3).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    windows = F.unfold(images, 6, stride=4, padding=1).mT  # (B,N,C·6·6)
    expected = F.linear(windows, embed.proj.weight.flatten(1), embed.proj.bias)
    torch.testing.assert_close(embed(images), expected, rtol=0, atol=1e-12)
