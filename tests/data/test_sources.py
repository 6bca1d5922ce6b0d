import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import loopback as server
import numpy as np
import pytest
import torch
from loopback import Loopback
from PIL import Image
from small_sets import packed, small_cifar, small_mnist, small_stl10
from torchvision.datasets import CIFAR10, CIFAR100, STL10, Imagenette

from vit_train.config.data import (
    TORCHVISION_SETS,
    Cifar10Config,
    Cifar100Config,
    ShapesConfig,
    Stl10Config,
    TorchvisionConfig,
)
from vit_train.data.dataset import load_dataset, resize
from vit_train.data.published import ARCHIVES
from vit_train.data.splits import make_splits


@pytest.mark.parametrize(
    ("kind", "config", "train"), [(CIFAR10, Cifar10Config, 100), (CIFAR100, Cifar100Config, 20)]
)
def test_cifar_is_what_torchvision_reads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[CIFAR10],
    config: type[Cifar10Config],
    train: int,
) -> None:
    pixels = small_cifar(monkeypatch, tmp_path, config.name)
    data = load_dataset(config(root=str(tmp_path)))
    assert torch.equal(data.train.images, torch.from_numpy(pixels[:train]))
    for part, is_train in ((data.train, True), (data.test, False)):
        theirs = kind(tmp_path, train=is_train)
        assert np.array_equal(part.images, theirs.data.transpose(0, 3, 1, 2))
        assert part.labels.tolist() == theirs.targets
        assert list(data.classes) == theirs.classes


@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100, STL10])
def test_the_archives_are_those_of_torchvision(kind: Any) -> None:
    ours = ARCHIVES[kind.__name__.lower()]
    assert ours[1:3] == (kind.filename, kind.tgz_md5) and ours.folder == kind.base_folder
    theirs = dict([*kind.train_list, *kind.test_list])
    assert theirs.items() <= ours.members.items()
    if kind is not STL10:  # of whose texts torchvision states no checksums
        assert [*ours.members.items()][len(theirs) :] == [(kind.meta["filename"], kind.meta["md5"])]


def test_stl10_is_what_torchvision_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stl10(monkeypatch, tmp_path)
    data = load_dataset(Stl10Config(root=str(tmp_path), unlabeled=True))
    assert data.classes == tuple(f"class{i}" for i in range(10))
    for part, split in ((data.train, "train"), (data.test, "test")):
        theirs = STL10(tmp_path, split)
        assert torch.equal(part.images, torch.from_numpy(theirs.data.copy()))
        assert np.array_equal(part.labels, theirs.labels)
    theirs = STL10(tmp_path, "unlabeled")
    assert data.unlabeled is not None
    assert torch.equal(data.unlabeled, torch.from_numpy(theirs.data.copy()))
    for fold in range(10):
        part = load_dataset(Stl10Config(root=str(tmp_path), fold=fold)).train
        images = torch.from_numpy(STL10(tmp_path, "train", folds=fold).data.copy())
        assert len(part) == 6 and torch.equal(part.images, images)


def test_stl10_unlabeled_images_stay_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = small_stl10(monkeypatch, tmp_path) / "unlabeled_X.bin"
    before = file.read_bytes()
    images = load_dataset(Stl10Config(root=str(tmp_path), unlabeled=True)).unlabeled
    assert images is not None and images.shape == (40, 3, 96, 96)
    if sys.platform == "linux":
        assert str(file) in Path("/proc/self/maps").read_text(encoding="utf-8")
    images.zero_()  # a private copy of the pages: the file keeps its bytes
    assert file.read_bytes() == before


def test_only_the_files_of_stl10_that_are_asked_for_are_kept(
    web: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = packed(small_stl10(monkeypatch, tmp_path / "made"))
    urls = [web.url("/stl", server.whole(archive))]
    root = tmp_path / "new"
    data = load_dataset(Stl10Config(root=str(root), download=True, urls=urls))
    assert len(data.train) == 30 and data.unlabeled is None
    kept = {path.name for path in root.rglob("*") if path.suffix in (".bin", ".txt", ".gz")}
    assert "train_X.bin" in kept and not kept & {"unlabeled_X.bin", "stl10_binary.tar.gz"}
    data = load_dataset(Stl10Config(root=str(root), download=True, urls=urls, unlabeled=True))
    assert data.unlabeled is not None and len(web.requests) == 2


def test_a_set_of_torchvision_comes_in_its_own_splits(tmp_path: Path) -> None:
    pixels, labels = small_mnist(tmp_path, "MNIST")
    data = load_dataset(TorchvisionConfig(root=str(tmp_path), image_size=28))
    images = torch.from_numpy(pixels).unsqueeze(1).expand(-1, 3, -1, -1)
    assert torch.equal(data.train.images, images[:20])
    assert torch.equal(data.test.images, images[20:])
    assert np.array_equal(data.test.labels, labels[20:])
    assert data.classes[3] == "3 - three" and data.val is None
    assert load_dataset(TorchvisionConfig(root=str(tmp_path))).image_shape == (3, 32, 32)


def test_the_official_validation_images_of_a_set_of_torchvision_are_used(tmp_path: Path) -> None:
    folder = tmp_path / "dtd/dtd"
    (folder / "labels").mkdir(parents=True)
    for number, split in enumerate(("train", "val", "test")):
        names = [f"{kind}/{split}.jpg" for kind in ("dotted", "woven")]
        (folder / "labels" / f"{split}1.txt").write_text("\n".join(names), encoding="utf-8")
        for name in names:
            (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (40, 30), 60 * number).save(folder / "images" / name)
    data = load_dataset(TorchvisionConfig(root=str(tmp_path), set="DTD"))
    assert data.classes == ("dotted", "woven") and data.val is not None
    assert TorchvisionConfig.fit == "stretch"  # for other images
    means = [part.images.float().mean().item() for part in (data.train, data.val, data.test)]
    assert means == [0, 60, 120] and data.val.labels.tolist() == [0, 1]
    assert data.train.with_others(data.val).all_names.tolist() == [0, 1, 2, 3]


def test_imagenette_has_one_name_a_class(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for number, kind in enumerate(Imagenette._WNID_TO_CLASS):
            image = tmp_path / "imagenette2-160" / split / kind / f"{number}.JPEG"
            image.parent.mkdir(parents=True)
            Image.new("RGB", (20, 20)).save(image)
    config = TorchvisionConfig(root=str(tmp_path), set="Imagenette")
    assert load_dataset(config).classes[:2] == ("tench", "English springer")
    image.write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"cannot read Imagenette from .*identify image file"):
        load_dataset(config)


@pytest.mark.parametrize("name", tuple(TORCHVISION_SETS))
def test_a_missing_set_of_torchvision_is_named_with_the_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"(?s){name} .*data.download=true"):
        load_dataset(TorchvisionConfig(root=str(tmp_path), set=name))


def test_a_source_with_validation_images_of_its_own_uses_them() -> None:
    data = load_dataset(ShapesConfig(train_images=50, test_images=20))
    own = load_dataset(ShapesConfig(train_images=10, test_images=5)).test
    splits = make_splits(replace(data, val=own), ShapesConfig())
    assert splits.val is own and len(splits.train) == 50
    assert make_splits(replace(data, val=own), ShapesConfig(val="none")).val is None


def test_every_part_of_stl10_is_resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stl10(monkeypatch, tmp_path)
    whole, small = (
        load_dataset(Stl10Config(root=str(tmp_path), unlabeled=True, image_size=size))
        for size in (None, 24)
    )
    for one, other in (
        (whole.train.images, small.train.images),
        (whole.test.images, small.test.images),
        (whole.unlabeled, small.unlabeled),
    ):
        assert one is not None and other is not None and torch.equal(resize(one, 24), other)


def test_training_and_test_images_are_all_different() -> None:
    data = load_dataset(ShapesConfig(train_images=30, test_images=30))
    images = torch.cat([data.train.images, data.test.images])
    assert len(images.flatten(1).unique(dim=0)) == 60


def test_an_empty_variable_means_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_TRAIN_DATA", "")
    assert Cifar10Config().root == "data"
    monkeypatch.setenv("VIT_TRAIN_DATA", "/elsewhere")
    assert Cifar10Config().root == "/elsewhere"
