import threading

import pytest
import torch
from torch import nn

from vit_train.engine import lanes as module
from vit_train.engine.lanes import Lanes, make_lanes
from vit_train.model.config import ViTConfig
from vit_train.model.vit import VisionTransformer

CPU = torch.device("cpu")


def test_pieces_cover_the_batch_and_come_back_in_order() -> None:
    batch = torch.arange(50)
    first = threading.Event()

    def wait_for_the_others(piece: torch.Tensor) -> torch.Tensor:
        if piece[0] == 0:
            first.wait(5)  # the first piece is ready last
        else:
            first.set()
        return piece

    with Lanes(piece=4, count=3) as lanes:
        pieces = list(lanes.over(wait_for_the_others, batch))
    assert [len(piece) for piece in pieces] == [4] * 12 + [2]
    assert torch.equal(torch.cat(pieces), batch)


def test_an_error_in_a_lane_reaches_the_caller() -> None:
    def fail(piece: torch.Tensor) -> None:
        raise ValueError(f"piece {piece[0]}")

    with Lanes(piece=1, count=2) as lanes, pytest.raises(ValueError, match="piece 0"):
        list(lanes.over(fail, torch.arange(9)))


def test_the_number_of_threads_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CORES", 2)
    before = torch.get_num_threads()
    with Lanes(piece=1, count=2) as lanes:
        assert set(lanes.over(lambda _: torch.get_num_threads(), torch.arange(6))) == {1}
    assert torch.get_num_threads() == before


def test_gradients_do_not_depend_on_the_number_of_lanes() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=2)).double()
    nn.init.normal_(model.head.weight)
    images = torch.randn(40, 3, 32, 32, dtype=torch.float64)

    def gradient(piece: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(model(piece).square().sum(), list(model.parameters()))

    results = []
    for count in (1, 2, 4):
        with Lanes(piece=16, count=count) as lanes:
            total = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for part in lanes.over(gradient, images):
                torch._foreach_add_(total, part)
        results.append(total)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-9, atol=1e-9)
    assert all(map(torch.equal, results[1], results[2]))


def test_which_models_are_cut_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CORES", 8)
    vit = VisionTransformer(ViTConfig(embed_dim=16, depth=2))
    random = VisionTransformer(ViTConfig(embed_dim=16, depth=2, drop_path=0.1))

    def shape(model: nn.Module, *arguments: object) -> tuple[int | None, int]:
        lanes = make_lanes(model, *arguments)
        return lanes.piece, lanes.count

    assert shape(vit, CPU, 256) == (16, 8)
    assert shape(vit, CPU, 40) == (16, 3)
    assert shape(vit, CPU, 256, 128) == (128, 2)
    assert shape(random, CPU, 256) == (16, 1)  # threads would draw in any order
    assert shape(random.eval(), CPU, 256) == (16, 8)
    assert shape(nn.BatchNorm2d(3), CPU, 256, 8) == (None, 1)  # needs the whole batch
    assert shape(vit, torch.device("cuda"), 256) == (None, 1)
