import pytest
import torch

from vit_train.model.build import build
from vit_train.model.config import CnnConfig, ResNetConfig

CONFIGS = {"cnn": (CnnConfig(), 141_354), "resnet": (ResNetConfig(), 175_258)}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_number_of_parameters_is_the_published_one(name: str) -> None:
    config, expected = CONFIGS[name]
    model = build(config, (3, 32, 32), 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [32, 96])
def test_images_of_any_size_and_number_of_classes(name: str, size: int) -> None:
    model = build(CONFIGS[name][0], (3, size, size), 7)
    assert model(torch.randn(2, 3, size, size)).shape == (2, 7)


def test_the_image_is_halved_where_the_width_grows() -> None:
    cnn, resnet = (build(config, (3, 32, 32), 10) for config, _ in CONFIGS.values())
    images = torch.randn(1, 3, 32, 32)
    assert cnn.features(images).shape == (1, 128, 8, 8)
    assert resnet.stages(resnet.stem(images)).shape == (1, 64, 8, 8)


def test_bad_widths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model.widths=\[\]"):
        CnnConfig(widths=[])
    with pytest.raises(ValueError, match=r"model\.blocks=0"):
        ResNetConfig(blocks=0)


def test_more_halvings_than_the_image_allows_are_refused() -> None:
    config = CnnConfig(widths=[4, 8, 16, 32])
    assert build(config, (3, 8, 8), 10)(torch.randn(2, 3, 8, 8)).shape == (2, 10)
    with pytest.raises(ValueError, match="halve the image more often than its size allows"):
        build(config, (3, 7, 7), 10)
