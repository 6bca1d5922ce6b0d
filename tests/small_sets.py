"""The official files' formats, holding a few random images; the checksums are patched to match."""

import gzip
import hashlib
import io
import pickle
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import STL10, cifar

PER_BATCH = 20


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def tar_gz(members: Iterable[tuple[tarfile.TarInfo | str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    compressed = gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)  # the same bytes every time
    with compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        for info, content in members:
            info = tarfile.TarInfo(info) if isinstance(info, str) else info
            if info.isreg():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def packed(folder: Path) -> bytes:
    """The folder as an archive, its files in alphabetical order."""
    return tar_gz((f"{folder.name}/{p.name}", p.read_bytes()) for p in sorted(folder.iterdir()))


def with_content(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    """Let the published archive be that of the files in `folder`, also for torchvision."""
    from vit_train.data.published import ARCHIVES

    members = {each: md5((folder / each).read_bytes()) for each in ARCHIVES[name].members}
    changed = ARCHIVES[name]._replace(md5=md5(packed(folder)), members=members)
    monkeypatch.setitem(ARCHIVES, name, changed)
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5: True)
    for kind in (cifar.CIFAR10, STL10):
        monkeypatch.setattr(kind, "_check_integrity", lambda self: True)


def small_cifar(monkeypatch: pytest.MonkeyPatch, root: Path, name: str = "cifar10") -> np.ndarray:
    """Write the files of a CIFAR below root, and patch the checksums; return `write_cifar`'s."""
    from vit_train.data.published import ARCHIVES

    folder = root / ARCHIVES[name].folder
    pixels = write_cifar(folder, [*ARCHIVES[name].members], "" if name == "cifar10" else "fine_")
    with_content(monkeypatch, folder, name)
    return pixels


def write_cifar(folder: Path, names: list[str], fine: str = "") -> np.ndarray:
    """Write these files: 20 images each, two of each of ten classes, and the names of the classes.

    Returns all pixels (N,3,32,32), training batches first.
    """
    folder.mkdir(parents=True)
    *batches, meta = names
    shape = (len(batches), PER_BATCH, 3072)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    train = len(batches) - 1
    # Over all training batches the labels ascend, as the files of a folder do.
    ascending = np.sort(np.arange(train * PER_BATCH) % 10).reshape(train, PER_BATCH).tolist()
    labels = [*ascending, sorted(i % 10 for i in range(PER_BATCH))]
    for batch, images, own in zip(batches, pixels, labels, strict=True):
        (folder / batch).write_bytes(pickle.dumps({"data": images, f"{fine}labels": own}))
    classes = {f"{fine}label_names": [f"class {i}" for i in range(10)]}
    (folder / meta).write_bytes(pickle.dumps(classes))
    return pixels.reshape(-1, 3, 32, 32)


def small_stl10(monkeypatch: pytest.MonkeyPatch, root: Path) -> Path:
    """Write all official files below root: 30 training, 20 test and 40 unlabeled images."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    contents = {
        "class_names.txt": b"\n".join(b"class%d" % i for i in range(10)) + b"\n",
        "fold_indices.txt": b"\n".join(
            b" ".join(b"%d" % i for i in random.permutation(30)[:6]) for _ in range(10)
        ),
        "train_y.bin": bytes(1 + i % 10 for i in range(30)),
        "test_y.bin": bytes(1 + i % 10 for i in range(20)),
    }
    for part, count in (("train", 30), ("test", 20), ("unlabeled", 40)):
        contents[f"{part}_X.bin"] = random.bytes(count * 3 * 96 * 96)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with_content(monkeypatch, folder, "stl10")
    return folder


def small_mnist(root: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Write 20 training and 10 test images as files of MNIST; return all pixels and labels."""
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(256, size=(30, 28, 28), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10
    for part, rows in (("train", slice(20)), ("t10k", slice(20, None))):
        for kind, values in (("images-idx3", pixels[rows]), ("labels-idx1", labels[rows])):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (raw / f"{part}-{kind}-ubyte").write_bytes(header + values.tobytes())
    return pixels, labels
