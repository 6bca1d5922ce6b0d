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
from torchvision.datasets import CIFAR10, STL10

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


def small_cifar(
    monkeypatch: pytest.MonkeyPatch, root: Path, kind: type[CIFAR10], labels_key: str = "labels"
) -> np.ndarray:
    """Write the files that `kind` reads below root: 20 images each, two of each of ten classes.

    Returns all pixels (N,3,32,32), training batches first, and patches the archive's MD5, too.
    """
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    names = [name for name, _ in [*kind.train_list, *kind.test_list]]
    shape = (len(names), PER_BATCH, 3072)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def write(name: str, content: object) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, md5(pickle.dumps(content))]

    train = len(kind.train_list)
    # Over all training batches the labels ascend, as the files of a folder do.
    ascending = np.sort(np.arange(train * PER_BATCH) % 10).reshape(train, PER_BATCH).tolist()
    labels = [*ascending, sorted(i % 10 for i in range(PER_BATCH))]
    written = [
        write(name, {"data": batch, labels_key: own})
        for name, batch, own in zip(names, pixels, labels, strict=True)
    ]
    monkeypatch.setattr(kind, "train_list", written[:train])
    monkeypatch.setattr(kind, "test_list", written[train:])
    name, digest = write(
        kind.meta["filename"], {kind.meta["key"]: [f"class {i}" for i in range(10)]}
    )
    monkeypatch.setattr(kind, "meta", kind.meta | {"filename": name, "md5": digest})
    monkeypatch.setattr(kind, "tgz_md5", md5(packed(folder)))
    return pixels.reshape(-1, 3, 32, 32)


def small_stl10(monkeypatch: pytest.MonkeyPatch, root: Path) -> Path:
    """Write all official files below root: 30 training, 20 test and 40 unlabeled images."""
    from vit_train.data import published

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
    digests = {name: md5(content) for name, content in contents.items()}
    monkeypatch.setattr(published, "TEXTS", {name: digests[name] for name in published.TEXTS})
    for known in ("train_list", "test_list"):
        patched_list = [[name, digests[name]] for name, _ in getattr(STL10, known)]
        monkeypatch.setattr(STL10, known, patched_list)
    monkeypatch.setattr(STL10, "tgz_md5", md5(packed(folder)))
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
