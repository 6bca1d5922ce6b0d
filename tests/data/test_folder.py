import errno
import multiprocessing
import os
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import posix
from PIL import Image, ImageFile

from vit_train.base import writing
from vit_train.config.augment import AugmentConfig
from vit_train.config.data import (
    MAX_PIXELS,
    Cifar10Config,
    FolderConfig,
    Stl10Config,
)
from vit_train.config.fields import Size
from vit_train.data import decode as module
from vit_train.data.batches import Batch, EvalBatches, Normalize, TrainBatches
from vit_train.data.dataset import (
    ImageSet,
    ImagesOnDisk,
    channel_statistics,
    image_keys,
    load_dataset,
)
from vit_train.data.decode import (
    CROPPED,
    FLAT,
    PADDING,
    BrokenImage,
    Reading,
    decode,
    decode_cached,
    fit_image,
    read_image,
)
from vit_train.data.files import NAMED_FORMATS
from vit_train.data.splits import make_splits

RNG = np.random.default_rng(0)


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, channels), dtype=np.uint8)


def save(path: Path, image: Image.Image | np.ndarray | None = None, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = noise(8, 8) if image is None else image
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(path, **options)
    return path


def tree(
    root: Path, *parts: str, classes: tuple[str, ...] = ("cat", "dog"), count: int = 4
) -> Path:
    for part in parts or ("",):
        for name in classes:
            for i in range(count):
                save(root / part / name / f"{i}.png")
    return root


def pixels_of(path: Path, size: Size, fit: str = "stretch") -> np.ndarray:
    """The pixels (H,W,3) of a file, of which `fit` alone may cut something off."""
    pixels, marks = read_image(path, Reading(size, fit))
    assert (marks == CROPPED) == (fit == "crop") and pixels.dtype == np.uint8
    return pixels.transpose(1, 2, 0)


def config(root: Path, **settings: object) -> FolderConfig:
    return FolderConfig(root=str(root), **({"image_size": 8} | settings))  # type: ignore[arg-type]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vit_train" / "decoded"


def test_train_and_test_folders_come_exactly_and_in_order(tmp_path: Path) -> None:
    data = load_dataset(config(tree(tmp_path, "train", "test", "val")))
    assert data.classes == ("cat", "dog") and data.val is not None and len(data.val) == 8
    for part, images in (("train", data.train), ("test", data.test)):
        assert images.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        paths = sorted((tmp_path / part).rglob("*.png"))
        pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
        assert torch.equal(images.images, torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_a_class_may_have_any_name_and_folders_in_its_own(tmp_path: Path) -> None:
    """Its name is that of a part, or has spaces or control characters, which are escaped."""
    tree(tmp_path, classes=("große Katze", "犬", "a b", "train", "c\x1b[31m"))
    save(tmp_path / "犬" / "more" / "ünter.PNG")
    save(tmp_path / ".hidden" / "0.png")
    save(tmp_path / "犬" / ".hidden.png")
    save(tmp_path / "犬" / ".hidden" / "0.png")
    data = load_dataset(config(tmp_path))
    assert data.classes == ("a b", "c\\x1b[31m", "große Katze", "train", "犬")
    assert len(data.train) + len(data.test) == 21


BROKEN = ["cut.jpg", "empty.png", "ico.png", "text.jpeg", "dangling.jpg", "pipe.jpg"]


def test_broken_files_are_named_and_refused_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tree(tmp_path)
    cut = save(root / "cat" / "cut.jpg", noise(64, 64))
    os.truncate(cut, cut.stat().st_size - 600)
    (root / "cat" / "empty.png").write_bytes(b"")
    save(root / "dog" / "ico.ico", Image.new("RGB", (8, 8))).rename(root / "dog" / "ico.png")
    (root / "dog" / "text.jpeg").write_text("no image", encoding="utf-8")
    (root / "dog" / "dangling.jpg").symlink_to("nowhere")
    os.mkfifo(root / "dog" / "pipe.jpg")
    save(root / "dog" / "real.ico", Image.new("RGB", (8, 8)))
    (root / "dog" / "notes.txt").write_text("hello", encoding="utf-8")
    (root / "nothing here").mkdir()
    with pytest.raises(ValueError, match=r"data\.on_error=skip") as caught:
        load_dataset(config(root))
    data = load_dataset(config(root, on_error="skip"))
    assert data.classes == ("cat", "dog") and len(data.train) + len(data.test) == 8
    reasons = (f"not a {NAMED_FORMATS} image", "there is no such file", "not a regular file")
    for words in (*BROKEN, "6 of 14 image files cannot be decoded", *reasons):
        assert words in str(caught.value) and words in caplog.text
    assert "2 files skipped" in caplog.text and "nothing here" in caplog.text


def test_an_image_bomb_is_refused_by_its_header_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "bomb.png", tmp_path / "larger.png"]
    for path, side in zip(paths, (5_000, 20_000), strict=True):
        Image.new("1", (side, side)).save(path)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    broken = decode(paths, Reading((8, 8), max_pixels=10**7))[1]
    assert "exceed max_pixels" in broken[0] and "exceeds limit" in broken[1]
    monkeypatch.undo()
    path = save(tmp_path / "a.png", noise(8, 8))
    assert decode([path], Reading((8, 8), max_pixels=64))[1] == {}
    assert decode([path], Reading((8, 8), max_pixels=63))[1] == {
        0: "its 8 by 8 pixels exceed max_pixels=63"
    }


@posix
def test_a_file_too_long_for_its_pixels_is_not_read(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "root" / "long.png")
    zero = tmp_path / "root" / "zero.png"
    zero.symlink_to("/dev/zero")
    os.truncate(path, 10**13)  # with holes: it takes no room
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    broken = decode_cached([path, zero], Reading((8, 8)))[1]
    assert broken[0] == f"the file has more bytes than max_pixels={MAX_PIXELS} pixels need"
    assert broken[1] == "not a regular file"


BAD_TREES = {
    "nothing there": ([], {}, "is not a folder"),
    "empty": (["train/"], {}, "has no folders with images"),
    "class only in test": (
        ["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/c/1.png"], {}, "has classes that"
    ),
    "empty test": (["train/a/1.png", "train/b/1.png", "test/a/"], {}, "has no images"),
    "loose training images": (
        ["train/1.png", "train/2.png", "test/1.png"], {}, "no class folders"
    ),
    "images to train on elsewhere": (
        ["learning/a/1.png", "learning/b/1.png", "test/a/1.png"], {}, "no class folders"
    ),
    "one image": (
        ["a/1.png"], {}, "=0.1 of 1 image leaves no image for training: add"
    ),
    "all for testing": (
        ["a/1.png", "b/1.png"], {"test_fraction": 0.9}, "=0.9 of 2 images leaves no image.*smaller"
    ),
    "too large": (["a/1.png", "b/1.png"], {"image_size": 10**7}, "data.image_size=.*: 2 images"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TREES)
def test_a_folder_that_makes_no_sense_is_refused(tmp_path: Path, case: str) -> None:
    names, settings, words = BAD_TREES[case]
    root = tmp_path / "root"
    for name in names:
        if name.endswith("/"):
            (root / name).mkdir(parents=True)
        else:
            save(root / name)
    with pytest.raises(ValueError, match=words):
        load_dataset(config(root, **settings))


@posix
def test_warnings_name_all_files_that_are_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, "train", "valid", "evaluation", classes=("cat",))
    save(root / "train/loose.png")
    (root / "train/notes.txt").write_text("my cats", encoding="utf-8")
    (root / "train/cat/more").symlink_to(root / "evaluation")
    (root / "train/cat/linked.png").symlink_to(root / "evaluation/cat/0.png")
    locked, scandir = save(root / "train/cat/locked/0.png").parent, os.scandir

    def refusing(path: str) -> object:  # root may read every folder
        if Path(path) == locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    data = load_dataset(config(root))
    assert len(data.train) == 5  # links of files are read
    assert len(data.test) == 4 and data.val is None  # valid/ is for testing without test/
    for words in (
        f"next to train/:\n  - {root}/evaluation",
        f"1 file skipped (not in a class folder), such as {root}/train/loose.png",
        f"1 file skipped (no {NAMED_FORMATS} suffix), such as",
        f"ignored links to folders:\n  - {root}/train/cat/more",
        f"skipped the unreadable folder {locked}: Permission denied",
    ):
        assert words in caplog.text


@pytest.mark.parametrize(
    ("dtype", "value", "gray"),
    [
        *((np.uint8, 200, 200), (np.uint16, 51_400, 200), (np.int32, 200, 200)),
        *((np.int32, 51_400, 200), (np.int32, 70_000, None), (np.float32, 0.5, None)),
        *((np.uint16, 804, 200), (np.uint16, 3212, 200), (np.uint16, 7, 7)),
    ],
)
def test_gray_images_of_any_depth_keep_their_brightness_or_are_refused(
    dtype: type, value: float, gray: int | None
) -> None:
    image = Image.fromarray(np.full((8, 8), value, dtype))
    if gray is None:
        with pytest.raises(BrokenImage, match="neither 8-bit nor 16-bit integers"):
            fit_image(image, Reading((4, 4)))
    else:
        assert (fit_image(image, Reading((4, 4)))[0] == gray).all()


@pytest.mark.parametrize("kind", [Cifar10Config, Stl10Config, FolderConfig])
def test_a_tilde_is_the_home_folder_for_every_source(
    monkeypatch: pytest.MonkeyPatch, kind: type[Cifar10Config | Stl10Config | FolderConfig]
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert kind(root="~/data").root == "/home/somebody/data"


def test_a_part_that_loses_all_images_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, "train", "test")
    for path in (tmp_path / "test").rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match="8 of 8 image files cannot be decoded"):
        load_dataset(config(tmp_path, on_error="skip"))


# Pixels.


def solid(mode: str, color: object) -> Image.Image:
    return Image.new(mode, (9, 9), color)  # type: ignore[arg-type]


def palette(transparency: int) -> Image.Image:
    image = solid("P", 1)
    image.putpalette([9, 9, 9, 1, 2, 3])
    image.info["transparency"] = transparency
    return image


MODES = {
    "RGB": (solid("RGB", (10, 20, 30)), (10, 20, 30)),
    "L": (solid("L", 77), (77, 77, 77)),
    "1": (solid("1", 1), (255, 255, 255)),
    "16 bit": (Image.fromarray(np.full((9, 9), 0x4D12, np.uint16)), (0x4D, 0x4D, 0x4D)),
    "opaque": (solid("RGBA", (10, 20, 30, 255)), (10, 20, 30)),
    "transparent": (solid("RGBA", (10, 20, 30, 0)), (255, 255, 255)),
    "half": (solid("LA", (0, 127)), (128, 128, 128)),
    "palette": (palette(transparency=0), (1, 2, 3)),
    "transparent palette": (palette(transparency=1), (255, 255, 255)),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    image, expected = MODES[mode]
    pixels = read_image(save(tmp_path / "a.png", image), Reading((9, 9)))[0]
    assert pixels.shape == (3, 9, 9) and pixels.dtype == np.uint8
    assert (pixels.transpose(1, 2, 0) == np.array(expected)).all()


@pytest.mark.parametrize("suffix", ["png", "webp", "bmp", "tiff"])
def test_lossless_formats_come_exactly(tmp_path: Path, suffix: str) -> None:
    image = noise(12, 12)
    path = save(tmp_path / f"a.{suffix}", image, lossless=True)  # which WebP alone can do without
    assert (pixels_of(path, (12, 12)) == image).all()


def test_of_several_frames_the_first_is_read(tmp_path: Path) -> None:
    first, second = (solid("L", value) for value in (10, 200))
    for suffix in ("gif", "tif"):
        path = save(tmp_path / f"a.{suffix}", first, save_all=True, append_images=[second])
        assert (read_image(path, Reading((9, 9)))[0] == 10).all()


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("bits", [10, 12, 16])
def test_deep_images_are_scaled_by_the_range_of_the_training_images(
    tmp_path: Path, bits: int, suffix: str
) -> None:
    """Every image alike, those that do not use the whole range or exceed it, too."""
    most = 2**bits - 1
    for part, values in (("train", (most, most // 3)), ("test", (most // 3, 65535))):
        for name, value in zip("ab", values, strict=True):
            save(tmp_path / part / name / f"0.{suffix}", np.full((8, 8), value, np.uint16))
    data = load_dataset(config(tmp_path))
    assert data.settings == {"white_level": most}
    assert data.train.images.amax((1, 2, 3)).tolist() == [255, 85]
    assert data.test.images.amax((1, 2, 3)).tolist() == [85, 255]
    darker = load_dataset(config(tmp_path, white_level=2 * most + 1)) if bits < 16 else None
    assert darker is None or darker.train.images.amax().item() == 127


@pytest.mark.parametrize(
    "shape, size, inside",
    [
        ((20, 60), (30, 30), np.s_[10:20, :]),
        ((60, 20), (30, 30), np.s_[:, 10:20]),
        ((20, 60), (20, 30), np.s_[5:15, :]),
        ((60, 20), (30, 40), np.s_[:, 15:25]),
    ],
)
def test_an_image_of_another_shape_is_seen_whole_if_it_is_not_cropped(
    shape: Size, size: Size, inside: tuple[slice, slice], tmp_path: Path
) -> None:
    path = save(tmp_path / "a.png", image := noise(*shape))
    stretched, padded = (pixels_of(path, size, fit) for fit in ("stretch", "pad"))

    def resized(height: int, width: int) -> np.ndarray:
        batch = torch.from_numpy(image).permute(2, 0, 1)[None].float()
        new = F.interpolate(batch, (height, width), mode="bilinear", antialias=True)
        return new[0].permute(1, 2, 0).numpy()

    assert np.abs(stretched - resized(*size)).max() < 1.1
    expected = np.full((*size, 3), PADDING, float)
    expected[inside] = resized(*expected[inside].shape[:2])
    assert np.abs(padded - expected).max() < 1.1
    flat = save(tmp_path / "flat.png", np.zeros((*shape, 3), np.uint8))
    assert read_image(flat, Reading(size, "pad"))[1] == FLAT


def test_the_center_is_cut_out(tmp_path: Path) -> None:
    image = noise(10, 30)
    path = save(tmp_path / "wide.png", image)
    assert (pixels_of(path, (10, 20), "crop") == image[:, 5:25]).all()
    assert pixels_of(path, (30, 15), "crop").shape == (30, 15, 3)
    high = image.swapaxes(0, 1)
    found = pixels_of(save(tmp_path / "high.png", high), (10, 10), "crop")
    assert (found == high[10:20]).all()
    assert read_image(path, Reading((8, 30), "crop"))[1] == 0  # a fifth of the area


# The cache.


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*") if path.suffix != ".lock")


def test_the_cache_gives_the_same_and_decodes_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [save(tmp_path / f"{name}.png", noise(8, 16)) for name in "abc"]
    paths[1].write_bytes(b"no image")
    reading = Reading((8, 8), "crop")
    images, broken = decode(paths, reading)
    assert list(broken) == [1]
    tried: list[Path] = []

    def tried_image(path: Path, reading: Reading) -> tuple[np.ndarray, int]:
        tried.append(path)
        return read_image(path, reading)

    monkeypatch.setattr(module, "read_image", tried_image)
    for expected in (paths, [paths[1]]):  # whose reason is not kept
        tried.clear()
        kept, still_broken = decode_cached(paths, reading)
        assert torch.equal(kept[:], images) and still_broken == broken
        assert len(entries(cache)) == 1
        assert sorted(tried) == sorted(expected)
    # The fault was one of the machine, not of the file.
    monkeypatch.setattr(module, "read_image", lambda *_: read_image(paths[0], reading))
    assert decode_cached(paths, reading)[1] == {}


def test_the_cache_is_off_unless_asked_and_never_inside_the_data(
    tmp_path: Path, cache: Path
) -> None:
    root = tree(tmp_path / "root")
    before = sorted(root.rglob("*"))
    load_dataset(config(root))
    assert entries(cache) == []
    load_dataset(config(root, cache=True))
    assert len(entries(cache)) == 1 and sorted(root.rglob("*")) == before


def test_another_file_order_or_setting_is_another_entry(tmp_path: Path, cache: Path) -> None:
    paths = [save(tmp_path / name) for name in ("a.png", "b.png")]
    forwards, backwards = (
        decode_cached(order, Reading((8, 8)))[0][:] for order in (paths, paths[::-1])
    )
    assert torch.equal(forwards, backwards.flip(0)) and not torch.equal(forwards, backwards)
    decode_cached(paths, Reading((4, 4)))
    decode_cached(paths, Reading((8, 8), max_pixels=MAX_PIXELS - 1))
    decode_cached(paths, Reading((8, 8), "pad"))
    assert len(entries(cache)) == 5
    changed = noise(8, 8)
    save(paths[0], changed)
    os.utime(paths[0], ns=(0, 0))
    images = decode_cached(paths, Reading((8, 8)))[0]
    assert torch.equal(images[0].permute(1, 2, 0), torch.from_numpy(changed))


@pytest.mark.parametrize("damage", ["empty", "cut", "longer"])
def test_a_damaged_entry_is_made_anew(
    tmp_path: Path, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path / "a.png")
    expected = decode_cached([path], Reading((8, 8)))[0][:]
    (entry,) = entries(cache)
    content = entry.read_bytes()
    half = content[: len(content) // 2]
    entry.write_bytes({"empty": b"", "cut": half, "longer": content + b"?"}[damage])
    for _ in range(2):
        assert torch.equal(decode_cached([path], Reading((8, 8)))[0][:], expected)
    assert caplog.text.count("is damaged") == 1


def decode_slowly(paths: list[Path], log: Path, seconds: float) -> None:
    """Note the process and the file for each file that is decoded, which takes `seconds`."""

    def noted(path: Path, reading: Reading) -> tuple[np.ndarray, int]:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {path.name}\n")
        time.sleep(seconds)
        return read_image(path, reading)

    module.read_image = noted
    assert len(decode_cached(paths, Reading((8, 8)))[0][:]) == len(paths)


@posix
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads
def test_one_process_decodes_while_others_wait_and_another_one_if_it_is_killed(
    tmp_path: Path, cache: Path
) -> None:
    paths = [save(tmp_path / f"{number}.png") for number in range(10)]
    log = tmp_path / "log.txt"
    fork = multiprocessing.get_context("fork").Process
    first, *others = (fork(target=decode_slowly, args=(paths, log, each)) for each in (60, 0, 0))
    first.start()
    while first.is_alive() and not log.exists():
        time.sleep(0.01)
    for other in others:
        other.start()
    time.sleep(0.5)
    assert {line.split()[0] for line in log.read_text(encoding="utf-8").splitlines()} == {
        str(first.pid)
    }
    first.kill()
    for other in others:
        other.join()
        assert other.exitcode == 0
    lines = map(str.split, log.read_text(encoding="utf-8").splitlines())
    names = [name for process, name in lines if process != str(first.pid)]
    assert sorted(names) == sorted(path.name for path in paths)
    assert not [*cache.glob("*.partial")]


@posix
def test_processes_decode_side_by_side_where_files_cannot_be_locked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on some cluster file systems: none of them deletes what another one is writing."""
    paths = [save(tmp_path / name) for name in ("a.png", "b.png")]
    reading, others = Reading((8, 8)), []

    def read_by_another_first(path: Path, reading: Reading) -> tuple[np.ndarray, int]:
        monkeypatch.setattr(module, "read_image", read_image)
        others.append(decode_cached(paths, reading))
        return read_image(path, reading)

    no_locks = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(writing, "lock", Mock(side_effect=no_locks))
    monkeypatch.setattr(module, "THREADS", 1)
    monkeypatch.setattr(module, "read_image", read_by_another_first)
    found = [decode_cached(paths, reading), *others]
    assert len(found) == 2 and "could not be cached" not in caplog.text
    assert all(torch.equal(each[0][:], decode(paths, reading)[0]) for each in found)


@pytest.mark.parametrize("full", [True, False])
def test_an_entry_that_cannot_be_written_leaves_nothing(
    tmp_path: Path,
    cache: Path,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = save(tmp_path / "a.png")
    if full:
        no_space = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(os, "fsync", Mock(side_effect=no_space))
    else:
        (tmp_path / "cache").write_text("in the way", encoding="utf-8")
    assert decode_cached([path], Reading((8, 8))) is None and entries(cache) == []
    assert "the decoded images could not be cached: " in caplog.text


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_images_on_disk_are_trained_on_as_if_in_memory(
    tmp_path: Path, cache: Path, device: str
) -> None:
    """They stay in the file, and are split, joined, measured and gathered like others."""
    tree(tmp_path, count=20)
    sets = []
    for cached in (True, False):
        settings = config(tmp_path, cache=cached, val_fraction=0.3)
        data = load_dataset(settings)
        parts = make_splits(data, settings)
        sets.append((data, parts))
    (ours, parts), (theirs, others) = sets
    assert ours.fingerprint == theirs.fingerprint
    cpu, statistics = torch.device("cpu"), channel_statistics(others.train.images)
    assert channel_statistics(parts.train.images) == statistics
    normalize = Normalize(statistics)

    def batches(images: ImageSet) -> list[Batch]:
        drawn = TrainBatches(images, 2, normalize, AugmentConfig(), 5, 0, cpu)
        return [*EvalBatches(images, normalize, 4, cpu), *drawn.epoch(1)]

    for part, other in ((parts.train, others.train), (parts.val, others.val)):
        assert part is not None and other is not None
        assert part.all_names.tolist() == other.all_names.tolist()
        assert isinstance(part.images, ImagesOnDisk) and not isinstance(other.images, ImagesOnDisk)
        assert torch.equal(image_keys(part.images), image_keys(other.images))
        for batch, expected in zip(batches(part), batches(other), strict=True):
            assert all(map(torch.equal, batch, expected))
        assert part.images.to(torch.device(device)).device.type == device
    every = ours.train.with_others(ours.test)
    assert isinstance(every.images, ImagesOnDisk) and len(every) == 40
    nothing = every.subset(torch.zeros(40, dtype=torch.bool)).images.split(8)
    assert [each.shape for each in nothing] == [(0, *every.images.shape[1:])]


def test_what_is_left_after_broken_files_has_its_own_labels(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c")):
        for i in range(3):
            save(tmp_path / "train" / name / f"{i}.png", np.full((8, 8, 3), number, np.uint8))
    for broken in ("a/0.png", "b/1.png"):
        (tmp_path / "train" / broken).write_bytes(b"no image")
    tree(tmp_path, "test", classes=("a", "b", "c"))
    train = load_dataset(config(tmp_path, on_error="skip")).train
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert train.images.amax((1, 2, 3)).tolist() == train.labels.tolist()
