"""Attribution, positions and filters against hand-computed cases and naive implementations."""

import math

import numpy as np
import pytest
import torch
from conftest import SMALL, Run
from sklearn.decomposition import PCA

from vit_train.config.model import ViTConfig
from vit_train.explain.attribution import (
    attention_distances,
    even_distance,
    patch_maps,
    prediction_maps,
    principal_filters,
    rollout,
)
from vit_train.figures.images import draw_positions, mosaic
from vit_train.model.vit import VisionTransformer


def test_rollout_of_a_case_computed_by_hand() -> None:
    """Token 0 looks at 1 in layer 1, and in layer 2 at 1 with one head and at itself with another.

    Token 1 looks at itself in layer 1, and at 0 in layer 2. Layer 1: ½ (A + I) = [[½ ½] [0 1]].
    Layer 2, heads averaged: [[¾ ¼] [½ ½]]. The second times the first is [[⅜ ⅝] [¼ ¾]].
    """
    first = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    second = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])
    layers = [torch.stack([first, first])[None], second[None]]
    assert rollout(layers)[0].tolist() == [[0.375, 0.625], [0.25, 0.75]]


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
    """One head looks at itself, one to its right, one everywhere, and one at the first patch."""
    tokens = 6 + has_class
    weights = torch.zeros(1, 4, tokens, tokens, dtype=torch.float64)
    if has_class:
        weights[:, :, :, 0] = 0.5  # which has no place
    patches = weights[:, :, has_class:, has_class:]
    for row in range(2):
        for column in range(3):
            here = 3 * row + column
            patches[0, 0, here, here] = 0.5
            patches[0, 1, here, 3 * row + (column + 1) % 3] = 0.5
    patches[0, 2] = 0.5 / 6
    patches[0, 3, :, 0] = 0.5
    corner = [math.hypot(*divmod(patch, 3)) for patch in range(6)]
    everywhere = [math.dist(divmod(a, 3), divmod(b, 3)) for a in range(6) for b in range(6)]
    far = attention_distances(weights, (2, 3), has_class, patch_size=4)
    expected = [0, 4 * (1 + 1 + 2) / 3, 4 * sum(everywhere) / 36, 4 * sum(corner) / 6]
    assert far.tolist() == pytest.approx(expected)
    assert even_distance(grid=(2, 3), patch_size=4) == pytest.approx(expected[2])


def test_filters_are_the_principal_components_of_scikit_learn() -> None:
    weight = 5 + torch.randn(20, 3, 2, 2)
    filters, shares = principal_filters(weight, 4)
    theirs = PCA(4).fit(weight.flatten(1).double().numpy())
    assert filters.shape == (4, 3, 2, 2)
    assert shares == pytest.approx(theirs.explained_variance_ratio_.tolist())
    cosines = (filters.flatten(1) * torch.from_numpy(theirs.components_)).sum(1)
    torch.testing.assert_close(cosines.abs(), torch.ones(4).double())  # the sign is arbitrary


def test_places_are_as_alike_as_their_vectors_and_shown_where_they_are() -> None:
    table = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.cosine_similarity(table[5], table[7], dim=0)
    picture = mosaic(table, (3, 3))  # 3 × 3 maps of 3 × 3 cells, with lines between
    assert picture.shape == (11, 11)
    assert picture[3].isnan().all() and picture[:, 7].isnan().all()
    # The patch in row 1, column 2 is number 5; that in row 2, column 1 number 7.
    torch.testing.assert_close(picture[1 * 4 + 2, 2 * 4 + 1], expected)


def test_vit_eval_draws_heads_and_positions(run: Run) -> None:
    for name, arguments in {
        "learned": [],
        "gap": ["model.head=gap", "model.positions=sincos_2d"],
        "relative": ["model.positions=relative"],
        "mae": ["task=reconstruct", "model.positions=sinusoidal"],
    }.items():
        quick = [*SMALL, "data.train_images=40", "train.max_minutes=1e-9", f"hydra.run.dir={name}"]
        run.succeeds("vit-train", *quick, *arguments)
        size = ["data.image_size=48"] * (name != "relative")
        outcome = run.succeeds("vit-eval", f"ckpt={name}", *size)
        (written,) = (line for line in outcome.out.splitlines() if "written to" in line)
        assert ("positions.png" in written) == (name != "relative")
        assert ("pictures.png" in written) == (name != "gap")
    run.fails("another image size", "vit-eval", "ckpt=relative", "data.image_size=48")


@pytest.mark.parametrize("head", ["token", "gap"])
def test_the_drawn_places_are_those_of_the_patches(head: str) -> None:
    """And not of the class token, which has a place in the table before them."""
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=1, num_heads=2, head=head), 12)
    table = model.pos_embed[0].weight.detach()[0]
    patches = table[-9:]
    values, places, *_ = draw_positions(model).axes
    assert (values.get_xlabel(), values.get_ylabel()) == ("value", "token")
    np.testing.assert_allclose(values.images[0].get_array(), table)
    np.testing.assert_allclose(places.images[0].get_array(), mosaic(patches, (3, 3)))
