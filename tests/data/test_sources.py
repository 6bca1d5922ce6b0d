import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from vit_train.data.config import Cifar10Config, ShapesConfig
from vit_train.data.sources import load_dataset

NAMES = [f"class {i}" for i in range(10)]


@pytest.fixture
def small_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The official files' format with 20 images a batch; returns all pixels (120,3,32,32)."""
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (120, 3072), dtype=np.uint8)

    def write(name: str, content: object) -> tuple[str, str]:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return name, hashlib.md5(data).hexdigest()

    def batch(name: str, start: int) -> tuple[str, str]:
        labels = [i % 10 for i in range(20)]
        return write(name, {"data": pixels[start : start + 20], "labels": labels})

    train = [batch(f"data_batch_{i + 1}", 20 * i) for i in range(5)]
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [batch("test_batch", 100)])
    name, digest = write("batches.meta", {"label_names": NAMES})
    meta = {"filename": name, "key": "label_names", "md5": digest}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return pixels.reshape(120, 3, 32, 32)


def test_cifar10_comes_as_it_is_in_the_files(tmp_path: Path, small_cifar: np.ndarray) -> None:
    data = load_dataset(Cifar10Config(root=str(tmp_path)))
    assert torch.equal(data.train.images, torch.from_numpy(small_cifar[:100]))
    assert torch.equal(data.test.images, torch.from_numpy(small_cifar[100:]))
    assert data.test.labels.tolist() == [i % 10 for i in range(20)]
    assert data.classes == tuple(NAMES)


def test_cifar10_is_resized_once_at_load(tmp_path: Path, small_cifar: np.ndarray) -> None:
    data = load_dataset(Cifar10Config(root=str(tmp_path), image_size=16))
    assert data.train.images.shape == (100, 3, 16, 16)


def test_missing_data_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        load_dataset(Cifar10Config(root=str(tmp_path / "absent")))
    message = str(caught.value)
    assert str(tmp_path / "absent" / "cifar-10-batches-py") in message
    for remedy in ("data.download=true", "data.root=", "data=shapes"):
        assert remedy in message


def test_shapes_test_images_are_not_training_images() -> None:
    data = load_dataset(ShapesConfig(train_images=50, test_images=50, num_classes=4))
    assert data.classes == ("disc", "ring", "square", "triangle")
    assert data.train.masks is not None and not torch.equal(data.train.images, data.test.images)
