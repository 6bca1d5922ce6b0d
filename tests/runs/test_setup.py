import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from vit_train.base import memory as limits
from vit_train.data.config import ShapesConfig
from vit_train.data.dataset import Dataset
from vit_train.data.shapes import load_shapes
from vit_train.data.sources import LOADERS, load_dataset
from vit_train.engine import precision
from vit_train.engine.distributed import ALONE, Processes
from vit_train.model.build import build
from vit_train.model.config import ViTConfig
from vit_train.runs.config import TrainConfig
from vit_train.tasks.config import ClassifyConfig, ReconstructConfig, TaskConfig
from vit_train.training import setup
from vit_train.training.first_model import freeze_encoder
from vit_train.training.setup import Setup, set_up


def parts(
    seed: int = 0,
    task: TaskConfig | None = None,
    processes: Processes = ALONE,
    **data: object,
) -> Setup:
    config = TrainConfig(
        model=ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=8),
        task=task or ClassifyConfig(),
        data=ShapesConfig(train_images=60, test_images=20, image_size=16, **data),
        seed=seed,
    )
    return set_up(config, torch.device("cpu"), processes)


@pytest.mark.parametrize("data", [{}, {"train_subset": 12}, {"val": "none"}])
def test_the_statistics_are_those_of_what_is_trained_on_alone(data: dict[str, object]) -> None:
    """Neither validation nor test images have a part in them."""
    run = parts(**data)
    pixels = run.splits.train.images.numpy() / 255
    assert len(pixels) == data.get("train_subset", 60 if data else 54)
    np.testing.assert_allclose(run.statistics.mean, pixels.mean((0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(run.statistics.std, pixels.std((0, 2, 3)), rtol=1e-9)
    images, _ = next(iter(run.unaugmented(run.splits.test)))
    own = (run.splits.test.images.numpy() / 255 - pixels.mean((0, 2, 3), keepdims=True)) / (
        pixels.std((0, 2, 3), keepdims=True)
    )
    np.testing.assert_allclose(images, own, rtol=0, atol=1e-5)


def test_arithmetic_is_not_counted_where_that_would_take_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counting keeps the attention of all layers, which fused kernels never store."""
    assert parts().flops is not None
    monkeypatch.setattr(setup, "memory_bytes", lambda: 1000.0)
    small = parts()
    assert small.flops is None and small.training_tflop(100) is None


def test_a_step_has_an_image_for_each_process() -> None:
    with pytest.raises(
        ValueError, match=r"batch_size=54 is smaller than the number of processes \(55\)"
    ):
        parts(processes=Processes(rank=0, count=55))


def test_several_processes_agree_on_one_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the main process, also where another one's CPU is as fast in the other."""
    said: list[object] = []

    class Several(Processes):
        def broadcast(self, content: object) -> object:
            said.append(content)
            return "bf16"

    for rank, own in ((0, "bf16"), (1, "auto")):
        monkeypatch.setattr(precision, "product_speedup", lambda *_, threads, r=rank: 2 - 1.5 * r)
        run = parts(processes=Several(rank, count=2))
        assert (run.precision.name, run.config.precision, said.pop()) == ("bf16", "bf16", own)


def test_the_training_images_are_held_once() -> None:
    run = parts()
    (own,) = (value for value in vars(run.image_loader.cropper).values() if torch.is_tensor(value))
    assert own.data_ptr() == run.splits.train.images.data_ptr()


def test_the_images_that_were_split_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left are the parts, which are copies."""
    sources = []

    def loaded(config: ShapesConfig) -> Dataset:
        data = load_shapes(config)
        assert data.train.masks is None  # which nothing would look at
        sources.append(weakref.ref(data.train.images))
        return data

    monkeypatch.setitem(LOADERS, ShapesConfig, loaded)
    monkeypatch.setattr(setup, "chosen_statistics", lambda *_: pytest.fail(str(sources[0]())))
    with pytest.raises(pytest.fail.Exception, match="None"):
        parts()


def test_the_copy_of_a_split_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_bytes", lambda: 2 * 80 * 3 * 16**2 - 1)
    with pytest.raises(ValueError, match="80 images of 16 by 16 would take"):
        parts()


def test_a_frozen_encoder_gives_the_head_the_same_features_every_time() -> None:
    config = ViTConfig(embed_dim=8, depth=2, num_heads=1, patch_size=8, dropout=0.3, drop_path=0.3)
    model = build(config, (3, 16, 16), 10).train()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(4, 3, 16, 16)
    assert not torch.equal(model(images), model(images))
    freeze_encoder(model, TrainConfig(model=config, init_from="RUN", seed=0))
    assert torch.equal(model(images), model(images))


def test_each_split_is_what_it_is_called() -> None:
    run, data = parts(), load_dataset(ShapesConfig(train_images=60, test_images=20, image_size=16))
    assert torch.equal(run.splits.test.images, data.test.images)
    seen = torch.cat([labels for _, labels in run.val_loader or []])
    assert run.splits.val is not None and torch.equal(seen, run.splits.val.labels)
    shown = next(iter(run.shown_loader))[1]
    assert torch.equal(shown, run.splits.val.labels)
    without = parts(val="none")
    assert without.val_loader is None
    assert torch.equal(next(iter(without.shown_loader))[1], without.splits.train.labels)


def test_the_seed_draws_the_weights_and_the_order_but_not_the_splits() -> None:
    one, same, other = parts(), parts(), parts(seed=1)

    def weights(run: Setup) -> torch.Tensor:
        return torch.cat([parameter.flatten() for parameter in run.model.parameters()])

    def labels(run: Setup) -> list[int]:
        return torch.cat([labels for _, labels in run.train_loader.epoch(0)]).tolist()

    assert torch.equal(weights(one), weights(same)) and not torch.equal(
        weights(one), weights(other)
    )
    assert labels(one) == labels(same) != labels(other)
    assert torch.equal(one.splits.train.images, other.splits.train.images)


def test_images_without_labels_are_trained_on_and_have_a_part_in_the_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = load_dataset(ShapesConfig(train_images=60, test_images=20, image_size=16))
    unlabeled = torch.full((30, 3, 16, 16), 250, dtype=torch.uint8)
    more = replace(data, unlabeled=unlabeled)
    monkeypatch.setitem(LOADERS, ShapesConfig, lambda _: more)
    for task, count in ((ReconstructConfig(), 84), (ClassifyConfig(), 54)):
        run = parts(task=task)
        images = run.splits.train.images
        images = torch.cat((images, unlabeled)) if count == 84 else images
        assert torch.equal(run.train_set.images, images) and len(images) == count
        assert (run.train_set.labels[54:] == -1).all()
        mean = (images / 255).double().mean((0, 2, 3))
        np.testing.assert_allclose(run.statistics.mean, mean, rtol=1e-6)
