"""What is drawn of a trained model is what the model has."""

import numpy as np
import pytest
import torch
from conftest import SMALL, Run

from vit_train.config.model import ViTConfig
from vit_train.figures.images import draw_positions, mosaic
from vit_train.model.vit import VisionTransformer


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
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=1, num_heads=2, head=head), 12)
    table = model.pos_embed[0].weight.detach()[0]
    patches = table[-9:]
    values, places, *_ = draw_positions(model).axes
    assert (values.get_xlabel(), values.get_ylabel()) == ("value", "token")
    np.testing.assert_allclose(values.images[0].get_array(), table)
    np.testing.assert_allclose(places.images[0].get_array(), mosaic(patches, (3, 3)))
