"""Convolutions: the stem, patches that overlap, and the networks to compare with."""

import copy

import pytest
import torch
import torch.nn.functional as F

from vit_train.config.model import (
    CnnConfig,
    FastCnnConfig,
    ModelConfig,
    ResNetConfig,
    ViTConfig,
)
from vit_train.model.build import build
from vit_train.model.patches import ConvStem, PatchEmbed


@pytest.mark.parametrize(("patch_size", "widths"), [(2, [8]), (4, [64, 8]), (16, [16, 32, 64, 8])])
def test_the_stem_is_convolutions_with_pooling(patch_size: int, widths: list[int]) -> None:
    stem = ConvStem(ViTConfig(stem="conv", patch_size=patch_size, embed_dim=8), 3).double()
    assert [len(weight) for weight in stem.parameters()] == widths
    images = torch.randn(2, 3, 4 * patch_size, 4 * patch_size, dtype=torch.float64)
    x = images
    for weight in stem.parameters():
        patches = F.unfold(x, 3, padding=1)  # (B,9C,HW)
        x = (weight.flatten(1) @ patches).relu().unflatten(2, x.shape[2:])
        windows = F.pad(x, (1, 1, 1, 1), value=-torch.inf).unfold(2, 3, 2).unfold(3, 3, 2)
        x = windows.amax(dim=(4, 5))
    tokens = stem(images)
    assert tokens.shape == (2, 16, 8)
    torch.testing.assert_close(tokens.mT.unflatten(2, (4, 4)), x, rtol=1e-10, atol=1e-12)


def test_normed_patches_have_a_norm_before_and_after_their_map() -> None:
    embed = PatchEmbed(ViTConfig(stem="normed_patches", embed_dim=8), 3).double()
    for parameter in embed.parameters():
        torch.nn.init.normal_(parameter)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    patches = embed.norm_in(F.unfold(images, 4, stride=4).mT)
    expected = embed.norm_out(patches @ embed.proj.weight.flatten(1).T + embed.proj.bias)
    torch.testing.assert_close(embed(images), expected, rtol=1e-10, atol=1e-12)


def test_patches_that_overlap_are_windows_of_the_padded_image() -> None:
    embed = PatchEmbed(ViTConfig(embed_dim=10, num_heads=2, patch_overlap=1), 3).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    windows = F.unfold(images, 6, stride=4, padding=1).mT  # (B,N,C·6·6)
    expected = F.linear(windows, embed.proj.weight.flatten(1), embed.proj.bias)
    torch.testing.assert_close(embed(images), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (ViTConfig(stem="conv", embed_dim=16, depth=1), 32),
        (CnnConfig(), 96),
        (CnnConfig(widths=[4, 8, 16, 32]), 8),  # down to one pixel
        (ResNetConfig(), 96),
        (FastCnnConfig(widths=[8, 16, 8]), 32),
    ],
    ids=str,
)
def test_images_of_any_size_and_number_of_classes(config: ModelConfig, size: int) -> None:
    model = build(config, (3, size, size), 7)
    assert model(torch.randn(2, 3, size, size)).shape == (2, 7)


def test_the_image_is_halved_where_the_width_grows() -> None:
    cnn, resnet = (build(config, (3, 32, 32), 10) for config in (CnnConfig(), ResNetConfig()))
    images = torch.randn(1, 3, 32, 32)
    assert cnn.features(images).shape == (1, 128, 8, 8)
    assert resnet.stages(resnet.stem(images)).shape == (1, 64, 8, 8)


@pytest.mark.parametrize("config", [CnnConfig(widths=[4, 8]), ResNetConfig(widths=[4, 8])], ids=str)
def test_the_gradients_of_few_channels_are_those_of_float64(config: ModelConfig) -> None:
    """They were not, and the process often crashed, for a 1×1 convolution with a stride."""
    model = build(config, (3, 32, 32), 10).eval()
    torch.nn.init.normal_(model.head.weight)
    precise = copy.deepcopy(model).double()
    images = torch.randn(16, 3, 32, 32)
    model(images).square().sum().backward()
    precise(images.double()).square().sum().backward()
    for ours, other in zip(model.parameters(), precise.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), other.grad, rtol=1e-3, atol=1e-3)


def test_the_fast_cnn_is_convolutions_of_whitened_patches() -> None:
    model = build(FastCnnConfig(widths=[40]), (3, 9, 9), 10).double()
    images = torch.randn(50, 3, 9, 9, dtype=torch.float64).cumsum(3)
    model.whiten(images)
    whitened = model.whitening(images) - model.whitening.bias.view(-1, 1, 1)
    positive, negative = whitened.transpose(0, 1).flatten(1).chunk(2)
    torch.testing.assert_close(positive, -negative)
    covariance = positive @ positive.T / positive.shape[1]
    torch.testing.assert_close(covariance, torch.eye(12).double(), rtol=0, atol=0.01)

    # In training, BatchNorm uses the batch's mean and variance.
    def normed(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        return F.gelu((x - mean) / (variance + 1e-5).sqrt() + shift.view(-1, 1, 1))

    first, _, shift1, _, second, shift2, _ = model.blocks[0]
    x = F.gelu(model.whitening(images))  # 8 × 8
    torch.testing.assert_close(first(x)[:, :24], x)  # at first, it passes its inputs on
    torch.nn.init.normal_(shift1.bias)
    torch.nn.init.normal_(shift2.bias)
    x = normed(F.max_pool2d(first(x), 2), shift1.bias)
    x = normed(second(x), shift2.bias)
    torch.testing.assert_close(model(images), model.head(x.amax((2, 3))), rtol=1e-10, atol=1e-12)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert trained == {
        "whitening.bias",
        *(f"blocks.0.{name}" for name in ("0.weight", "2.bias", "4.weight", "5.bias")),
        *("head.weight", "head.bias"),
    }
