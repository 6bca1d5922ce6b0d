"""Convolutions: the stem, patches that overlap, and the networks to compare with."""

import pytest
import torch
import torch.nn.functional as F

from vit_train.model.build import build
from vit_train.model.config import CnnConfig, ResNetConfig, ViTConfig
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


def test_normed_patches_have_a_norm_before_and_after_their_map() -> None:
    torch.manual_seed(0)
    embed = PatchEmbed(ViTConfig(stem="normed_patches", embed_dim=8), 3).double()
    for parameter in embed.parameters():
        torch.nn.init.normal_(parameter)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    patches = embed.norm_in(F.unfold(images, 4, stride=4).mT)
    expected = embed.norm_out(patches @ embed.proj.weight.flatten(1).T + embed.proj.bias)
    torch.testing.assert_close(embed(images), expected, rtol=1e-10, atol=1e-12)


def test_a_model_has_it_instead_of_patches() -> None:
    model = VisionTransformer(ViTConfig(stem="conv", embed_dim=16, depth=1))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in model.patch_embed.parameters()) == 27 * 64 + 9 * 64 * 16


def test_patches_that_overlap_are_windows_of_the_padded_image() -> None:
    torch.manual_seed(0)
    embed = PatchEmbed(ViTConfig(embed_dim=10, num_heads=2, patch_overlap=1), 3).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    windows = F.unfold(images, 6, stride=4, padding=1).mT  # (B,N,C·6·6)
    expected = F.linear(windows, embed.proj.weight.flatten(1), embed.proj.bias)
    torch.testing.assert_close(embed(images), expected, rtol=0, atol=1e-12)


CONFIGS = {"cnn": CnnConfig(), "resnet": ResNetConfig()}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [32, 96])
def test_images_of_any_size_and_number_of_classes(name: str, size: int) -> None:
    model = build(CONFIGS[name], (3, size, size), 7)
    assert model(torch.randn(2, 3, size, size)).shape == (2, 7)


def test_the_image_is_halved_where_the_width_grows() -> None:
    cnn, resnet = (build(config, (3, 32, 32), 10) for config in CONFIGS.values())
    images = torch.randn(1, 3, 32, 32)
    assert cnn.features(images).shape == (1, 128, 8, 8)
    assert resnet.stages(resnet.stem(images)).shape == (1, 64, 8, 8)


def test_the_image_may_be_halved_down_to_one_pixel() -> None:
    model = build(CnnConfig(widths=[4, 8, 16, 32]), (3, 8, 8), 10)
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 10)
