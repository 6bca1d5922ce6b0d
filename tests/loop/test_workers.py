import threading

import pytest
import torch
from small_trainers import GivenBatches, fit, make_trainer
from torch import nn

from vit_train.config.model import ViTConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.loop import workers as module
from vit_train.loop.device import Precision
from vit_train.loop.workers import Workers, make_workers
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.classify import Classify

CPU = torch.device("cpu")


def test_micro_batches_cover_the_batch_and_come_back_in_order() -> None:
    batch = torch.arange(50)
    first = threading.Event()

    def wait_for_the_others(part: torch.Tensor) -> torch.Tensor:
        if part[0] == 0:
            assert first.wait(5)  # the first part is ready last
        else:
            first.set()
        return part

    with Workers(micro_batch=4, count=3) as workers:
        parts = list(workers.map(wait_for_the_others, batch))
    assert [len(part) for part in parts] == [4] * 12 + [2]
    assert torch.equal(torch.cat(parts), batch)


def test_the_number_of_threads_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CORES", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(3)  # whatever it was
    with Workers(micro_batch=1, count=2) as workers:
        assert set(workers.map(lambda _: torch.get_num_threads(), torch.arange(6))) == {1}
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_which_models_train_in_micro_batches_and_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CORES", 8)
    vit = VisionTransformer(ViTConfig(embed_dim=16, depth=2))
    random = nn.Sequential(nn.Dropout(0.1))
    pooling = nn.Module()
    pooling.p = nn.Parameter(torch.ones(2))  # an exponent, not a rate of dropout

    def shape(
        model: nn.Module, device: torch.device, *arguments: object, precision: str = "fp32"
    ) -> tuple[int | None, int]:
        workers = make_workers(model, Precision(precision, device), *arguments)
        return workers.micro_batch, workers.count

    assert shape(vit, CPU, 256) == (16, 8)
    assert shape(vit, CPU, 40) == (16, 3)
    assert shape(vit, CPU, 256, 128) == (128, 2)
    sizes = {size: shape(vit, CPU, size, precision="bf16") for size in (64, 256, 1024)}
    assert sizes == {64: (16, 4), 256: (32, 8), 1024: (64, 8)}
    dropped = VisionTransformer(ViTConfig(embed_dim=16, depth=2, drop_path=0.1, dropout=0.1))
    assert shape(dropped, CPU, 256) == (16, 8)
    assert shape(dropped, CPU, 256, None, True) == (16, 1)  # compiled, it draws as PyTorch does
    assert shape(random, CPU, 256) == (16, 1)  # threads would draw in any order
    assert shape(random.eval(), CPU, 256) == shape(pooling, CPU, 256) == (16, 8)
    assert shape(nn.BatchNorm2d(3), CPU, 256, 8) == (None, 1)  # needs the whole batch
    assert shape(vit, torch.device("cuda"), 256) == (None, 1)


def test_dropout_depends_on_neither_threads_nor_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two steps of training; other masks would give quite other weights."""
    batch = torch.randn(48, 3, 8, 8, dtype=torch.float64), torch.randint(10, (48,))
    loader = GivenBatches([batch, batch])

    def weights(cores: int, seed: int, micro_batch: int | None = None) -> torch.Tensor:
        monkeypatch.setattr(module, "CORES", cores)
        torch.manual_seed(0)
        dropped = {"dropout": 0.2, "branch_dropout": 0.1, "drop_path": 0.3, "patch_dropout": 0.5}
        config = ViTConfig(embed_dim=16, depth=2, **dropped)
        model = VisionTransformer(config, 8).double()
        task = Classify(ClassifyConfig(), config, (3, 8, 8), 10)
        fit(make_trainer(model, loader, task, seed=seed, epochs=1, micro_batch=micro_batch))
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    one, two, three, other = weights(1, 0), weights(2, 0), weights(3, 0), weights(2, 1)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-9)
    assert torch.equal(two, three)
    for micro_batch in (48, 20):  # which cut the batch elsewhere
        torch.testing.assert_close(two, weights(2, 0, micro_batch), rtol=0, atol=1e-9)
    assert (two - other).abs().max() > 1e-4
