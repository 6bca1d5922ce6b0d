"""Every kind of position: its formula, its shape, and what it does to the symmetry of attention."""

import math

import pytest
import torch
from torch import nn

from vit_train.config.fields import Size
from vit_train.config.model import ViTConfig
from vit_train.model.attention import Attention
from vit_train.model.positions import POSITIONS, RelativeKeys, resize_positions, sinusoids
from vit_train.model.vit import VisionTransformer

ABSOLUTE = ["learned", "learned_2d", "sinusoidal", "sincos_2d"]


def build(size: int | Size = 16, **config: object) -> VisionTransformer:
    """16×16 images, 16 patches, unless told otherwise; every parameter random, float64."""
    defaults = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    model = VisionTransformer(ViTConfig(**(defaults | config)), size)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.double().eval()


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("dim", [2, 8, 64])
def test_the_sinusoidal_table_is_its_formula(dim: int) -> None:
    table = sinusoids(torch.arange(50), dim)
    for position in range(50):
        for i in range(dim // 2):
            angle = position / 10000 ** (2 * i / dim)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-4)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-4)


@pytest.mark.parametrize("has_class", [True, False])
def test_the_two_dimensional_table_is_that_formula_for_column_and_row(has_class: bool) -> None:
    table = POSITIONS["sincos_2d"]((2, 3), 8, has_class)()[0]
    assert (table[: int(has_class)] == 0).all()
    for row in range(2):
        for column in range(3):
            expected = []
            for place in (column, row):
                for angle in (place, place / 100):  # 10000^(2i/4)
                    expected += [math.sin(angle), math.cos(angle)]
            got = table[has_class + 3 * row + column].tolist()
            assert got == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("head", ["token", "gap"])
@pytest.mark.parametrize("positions", ["none", "relative", "rotary_2d", *ABSOLUTE])
def test_only_without_positions_the_order_of_the_patches_is_nothing(
    positions: str, head: str
) -> None:
    model = build(positions=positions, head=head)
    batch = images()
    patches = batch.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)  # (B,C,16,4,4)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    patches = patches[:, :, order].unflatten(2, (4, 4))
    permuted = patches.permute(0, 1, 2, 4, 3, 5).reshape(batch.shape)
    before, after = model(batch), model(permuted)
    unchanged = torch.allclose(before, after, rtol=0, atol=1e-10)
    # In one layer, relative keys are equivariant for the class token; in two they are not.
    assert unchanged == (positions == "none")


@pytest.mark.parametrize("has_class", [True, False])
def test_rotary_logits_are_those_of_complex_numbers_turned_by_column_and_row(
    has_class: bool,
) -> None:
    q, k = torch.randn(2, 1, 1, 6 + has_class, 8, dtype=torch.float64)
    ours = POSITIONS["rotary_2d"]((2, 3), 8, has_class).double().rotate(q, k)
    place, frequency = torch.arange(6).unsqueeze(1), torch.tensor([1.0, 0.1]).double()
    angle = torch.cat((place % 3 * frequency, place // 3 * frequency), dim=1)  # column, row
    angle = nn.functional.pad(angle, (0, 0, int(has_class), 0))
    turn = torch.polar(torch.ones_like(angle), angle)
    a, b = (torch.complex(x[..., :4], x[..., 4:]) * turn for x in (q, k))
    expected = (a @ b.mH).real
    torch.testing.assert_close(ours[0] @ ours[1].mT, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_queries", [None, 1, 4])
@pytest.mark.parametrize("kernels", ["scratch", "fused"])
def test_relative_attention_adds_its_keys_to_those_of_the_contents(
    kernels: str, num_queries: int | None
) -> None:
    """softmax(qᵢ·(kⱼ + rᵢ₋ⱼ)/√Dh), and no r where either of the two is the class token."""
    relative = RelativeKeys((3, 3), 6, 1)
    nn.init.normal_(relative.weight)
    attention = Attention(ViTConfig(embed_dim=12, num_heads=2, kernels=kernels), relative).double()
    x = torch.randn(2, 10, 12, dtype=torch.float64)
    q, k, v = attention.project(x)
    keys = k.unsqueeze(2).repeat(1, 1, 10, 1, 1)  # (B,H,i,j,Dh)
    for i in range(9):
        for j in range(9):
            keys[:, :, 1 + i, 1 + j] += relative.weight[i - j + 8]
    logits = torch.einsum("bhid,bhijd->bhij", q, keys) / 6**0.5
    expected = attention.merge_heads(logits.softmax(-1) @ v)[:, :num_queries]
    got, _ = attention(x, num_queries=num_queries)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions_at, tables", [("stem", 1), ("shared", 1), ("layers", 2)])
def test_where_tables_are_added(positions_at: str, tables: int) -> None:
    model = build(positions_at=positions_at)
    assert len(model.pos_embed) == tables
    # The same function by hand: blocks between additions.
    x = model.tokens(images())
    for number, block in enumerate(model.blocks):
        if positions_at != "stem" or number == 0:
            x = x + model.pos_embed[number % tables]()
        x, _ = block(x)
    expected = model.head(model.norm(x[:, 0]))
    torch.testing.assert_close(model(images()), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["sinusoidal", "sincos_2d"])
def test_fixed_tables_are_not_learned(kind: str) -> None:
    assert not list(build(positions=kind).pos_embed.parameters())


@pytest.mark.parametrize("head", ["token", "gap"])
@pytest.mark.parametrize("kind", ABSOLUTE)
def test_resized_positions_are_the_same_at_the_same_size(kind: str, head: str) -> None:
    model = build(positions=kind, head=head)
    same = resize_positions(model.state_dict(), model.grid, model)
    assert all(torch.equal(value, same[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("kind", ABSOLUTE)
def test_positions_stored_in_half_precision_are_resized(kind: str) -> None:
    state = build(positions=kind).half().state_dict()
    larger = build(32, positions=kind)
    half, single = (
        resize_positions(each, (4, 4), larger)
        for each in (state, {key: value.float() for key, value in state.items()})
    )
    assert all(torch.allclose(half[key].float(), single[key]) for key in single)


@pytest.mark.parametrize("head", ["token", "gap"])
@pytest.mark.parametrize("kind", ABSOLUTE)
def test_resized_positions_keep_their_place_in_the_picture(kind: str, head: str) -> None:
    """A table that says its own column and row says them between the old patches, too."""
    model = build((16, 24), positions=kind, head=head)
    extra, half = int(head == "token"), model.config.embed_dim // 2
    rows, columns = (torch.arange(n).double().unsqueeze(1).expand(-1, half) for n in (4, 6))
    for table in model.pos_embed:
        for name, value in table.state_dict().items():
            if name == "columns":
                value.copy_(columns)
            elif name == "rows":
                value.copy_(rows)
            else:
                value[..., :extra, :] = 9.0  # the class token
            if name == "weight":
                halves = columns.repeat(4, 1), rows.repeat_interleave(6, 0)
                value[0, extra:] = torch.cat(halves, dim=1)
    larger = VisionTransformer(model.config, (32, 48)).double()
    larger.load_state_dict(resize_positions(model.state_dict(), model.grid, larger))
    for table in larger.pos_embed:
        assert torch.equal(table()[0, :extra], torch.full((extra, 2 * half), 9.0).double())
        grid = table()[0, extra:].unflatten(0, (8, 12))[3:5, 3:5]  # away from the border
        between = torch.tensor([1.25, 1.75], dtype=torch.float64)
        assert (grid[..., :half] - between.view(1, 2, 1)).abs().max() < 1e-12
        assert (grid[..., half:] - between.view(2, 1, 1)).abs().max() < 1e-12
    assert larger(torch.zeros(1, 3, 32, 48, dtype=torch.float64)).shape == (1, 10)


@pytest.mark.parametrize("size", [8, 12, 24])
def test_resized_positions_are_interpolated_bicubically(size: int) -> None:
    """By the formula of Keys 1981 with a = −0.5, a line at a time.

    Of fewer cells each looks as much further as they are larger; none looks beyond the border.
    """

    def weight(distance: float) -> float:
        x, a = abs(distance), -0.5
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    new = size // 4
    line = torch.zeros(new, 4, dtype=torch.float64)
    for cell in range(new):
        place = (cell + 0.5) * 4 / new - 0.5
        for neighbor in range(4):
            line[cell, neighbor] = weight((place - neighbor) / max(1, 4 / new))
    line /= line.sum(dim=1, keepdim=True)
    model = build()
    old = model.pos_embed[0].weight[0, 1:].unflatten(0, (4, 4))
    expected = torch.einsum("yi,xj,ijd->yxd", line, line, old)
    resized = resize_positions(
        model.state_dict(), model.grid, VisionTransformer(model.config, size)
    )
    torch.testing.assert_close(resized["pos_embed.0.weight"][0, 1:], expected.flatten(0, 1))


def test_distances_between_patches_hold_for_one_grid_alone() -> None:
    model, turned = (build(size, positions="relative") for size in ((16, 24), (24, 16)))
    assert (
        resize_positions(model.state_dict(), model.grid, model).keys() == model.state_dict().keys()
    )
    with pytest.raises(ValueError, match="cannot be resized"):
        resize_positions(model.state_dict(), model.grid, turned)
