"""Attribution against hand-computed cases and naive implementations."""

import math

import pytest
import torch

from vit_train.config.model import ViTConfig
from vit_train.explain.attribution import (
    attention_distances,
    even_distance,
    patch_maps,
    prediction_maps,
    rollout,
)
from vit_train.model.vit import VisionTransformer


def test_rollout_of_a_case_computed_by_hand() -> None:
    """Token 0 looks at 1 in layer 1, and in layer 2 at 1 with one head and at itself with another.

    Layer 1: ½ (A + I) = [[½ ½] [0 1]]. Layer 2, heads averaged: [[¾ ¼] [0 1]]. Their product is
    [[⅜ ⅜+¼] [0 1]].
    """
    first = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    itself = torch.eye(2)
    layers = [torch.stack([first, first])[None], torch.stack([first, itself])[None]]
    assert rollout(layers)[0].tolist() == [[0.375, 0.625], [0.0, 1.0]]


def test_what_is_classified_is_the_class_token_or_the_mean_of_the_others() -> None:
    matrix = torch.arange(25.0).view(1, 5, 5)
    assert patch_maps(matrix, (2, 2), has_class=True).tolist() == [[[1, 2], [3, 4]]]
    patches = matrix[:, 1:, 1:]
    expected = [
        sum(patches[0, row, column].item() for row in range(4) if row != column) / 4
        for column in range(4)
    ]
    assert patch_maps(patches, (2, 2), has_class=False).flatten().tolist() == pytest.approx(
        expected
    )


@pytest.mark.parametrize("has_class", [True, False])
def test_registers_have_no_place_in_a_map(has_class: bool) -> None:
    between = torch.rand(1, 6 + has_class, 6 + has_class)
    kept = [n for n in range(6 + has_class) if n - has_class not in (0, 1)]
    expected = patch_maps(between[:, kept][:, :, kept], (2, 2), has_class)
    torch.testing.assert_close(patch_maps(between, (2, 2), has_class, registers=2), expected)


def test_one_layers_attention_is_the_mean_of_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = list(torch.randn(2, 2, 3, 5, 5, dtype=torch.float64).softmax(-1))
    model = VisionTransformer(ViTConfig(), image_size=8)
    monkeypatch.setattr(model, "forward", lambda images, attention: (torch.eye(2), layers))
    maps, _ = prediction_maps(model, torch.zeros(2, 3, 8, 8), "attention", 0)
    torch.testing.assert_close(maps.flatten(1), layers[0].sum(1)[:, 0, 1:] / 3)


@pytest.mark.parametrize("has_class", [True, False])
def test_how_far_heads_look(has_class: bool) -> None:
    """One head looks at itself, one at the neighbor to the right, one everywhere."""
    tokens = 6 + has_class
    weights = torch.zeros(1, 3, tokens, tokens, dtype=torch.float64)
    if has_class:
        weights[:, :, :, 0] = 0.5  # which has no place
    patches = weights[:, :, has_class:, has_class:]
    for row in range(2):
        for column in range(3):
            here = 3 * row + column
            patches[0, 0, here, here] = 0.5
            patches[0, 1, here, 3 * row + (column + 1) % 3] = 0.5
    patches[0, 2] = 0.5 / 6
    everywhere = [math.dist(divmod(a, 3), divmod(b, 3)) for a in range(6) for b in range(6)]
    far = attention_distances(weights, (2, 3), has_class, patch_size=4)
    expected = [0, 4 * (1 + 1 + 2) / 3, 4 * sum(everywhere) / 36]
    assert far.tolist() == pytest.approx(expected)
    assert even_distance(grid=(2, 3), patch_size=4) == pytest.approx(expected[2])
