"""vit-data: what it says about the images, and the copies that it finds."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Run, csv_rows, write_images
from PIL import ExifTags, Image, ImageEnhance

from vit_train.data.files import NAMED_FORMATS
from vit_train.run import data_report
from vit_train.run.data_report import ALIKE, RANK, RATIO, SURE, THUMBNAIL, classified, find_copies

SUFFIXES = ("jpe", "jfif", "avif", "jp2", "ppm", "pgm")


def picture(seed: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Spots of random colors, another picture for each seed."""
    spots = np.random.default_rng(seed).integers(0, 200, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize(size, Image.Resampling.BICUBIC)


EDITS = {
    "same.png": lambda image: image,
    "small.jpg": lambda image: image.resize((48, 32)),
    "large.webp": lambda image: image.resize((192, 128)),
    "bright.jpg": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "again.png": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),  # no copy
}


def test_the_faults_of_a_folder_are_found_and_no_others(run: Run) -> None:
    """An edited copy of each of the first pictures lies elsewhere."""
    places = [f"{split}/{name}" for split in ("train", "test") for name in ("cat", "dog")]
    for place, number in product(range(4), range(5)):
        Path("photos", places[place]).mkdir(parents=True, exist_ok=True)
        picture(10 * place + number).save(f"photos/{places[place]}/{number}.png")
    planted = set()
    for number, (name, edit) in enumerate(EDITS.items()):
        place = places[number % 4]
        edit(picture(number)).save(f"photos/{place}/{name}", quality=60)
        kind = ("twice in a split", "with two labels", "in two splits", "with two labels")
        if number < 4:
            pair = {f"train/cat/{number}.png", f"{place}/{name}"}
            planted.add((f"one picture {kind[number]}", frozenset(pair)))
    Path("photos/test/dog/broken.png").write_bytes(b"not an image")
    Image.new("RGB", (60, 40), (7, 7, 9)).save("photos/train/dog/=flat.png")
    own = ["data=folder", "data.root=photos", "data.val=none", "data.fit=pad"]
    outcome = run.succeeds("vit-data", *own)
    rows = csv_rows("data_report.csv")
    pairs = {(row["problem"], frozenset((row["image"], row["copy_image"]))) for row in rows}
    assert pairs == planted | {
        ("files that cannot be decoded", frozenset(("test/dog/broken.png", ""))),
        ("images with almost no contrast", frozenset(("train/dog/=flat.png", ""))),
    }
    table = [line.split() for line in outcome.out.splitlines()]
    for row in (["cat", "7", "6"], ["dog", "7", "6"], ["all", "14", "12"]):
        assert row in table
    for line in (
        "train files: 48×32 to 96×64 pixels, median 96×64; 100.0% are not square",
        "  - test/dog/broken.png: not a",
        "  - train/cat/2.png (train, cat) and test/cat/large.webp (test, cat)",
    ):
        assert line in outcome.out


def test_images_are_measured_as_they_are_seen(run: Run) -> None:
    for folder in ("a", "b"):
        for number in range(10):
            path = Path("phone", folder, f"{number}.{'tif' if number % 2 else 'jpg'}")
            path.parent.mkdir(parents=True, exist_ok=True)
            turned = Image.Exif()
            turned[ExifTags.Base.Orientation] = 6
            picture(number).resize((40, 20)).save(path, exif=turned)
    run.says("train files: 20×40 to 20×40", "vit-data", "data=folder", "data.root=phone")


def test_another_source_has_numbers_for_names(run: Run) -> None:
    shapes = [
        "data.train_images=60",
        "data.test_images=40",
        "data.num_classes=3",
        "out=new/all.csv",
    ]
    outcome = run.says("one picture in two splits: 0", "vit-data", *shapes, "out=new/all.csv")
    assert ["all", "54", "6", "40"] in [line.split() for line in outcome.out.splitlines()]
    assert "files: " not in outcome.out and csv_rows("new/all.csv") == []


def tensor(*images: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def test_an_image_is_paired_with_the_most_similar_earlier_one_of_each_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compared with numpy's correlations of all pairs."""
    rng = np.random.default_rng(0)
    origin = rng.integers(0, 12, 60)
    pixels = tensor(*(picture(seed, (THUMBNAIL, THUMBNAIL)) for seed in origin)).int()
    noise = torch.from_numpy(rng.integers(-6, 7, pixels.shape))
    images, places = (pixels + noise).clamp(0, 255).byte(), rng.integers(0, 3, 60).tolist()
    gray = images.double().mean(1).numpy()
    steps = np.concatenate([np.diff(gray, axis=axis).reshape(60, -1) for axis in (1, 2)], axis=1)
    steps -= steps.sum(axis=0) / 61
    steps /= np.linalg.norm(steps, axis=1)[:, None]
    rest = images.double().numpy() - images.double().sum(0).numpy() / 61
    colors = (rest.mean(1, keepdims=True) + rest) / 2
    likeness, alike = np.corrcoef(colors.reshape(60, -1)), steps @ steps.T
    np.fill_diagonal(alike, 0)
    reach = np.maximum(SURE, RATIO * (1 - np.sort(alike)[:, -RANK]))
    expected = set()
    for image, place in product(range(60), range(3)):
        copies = [
            (likeness[i, image], i)
            for i in range(image)
            if places[i] == place and alike[i, image] > ALIKE
            if 1 - likeness[i, image] <= min(reach[i], reach[image])
        ]
        if copies:
            expected.add((max(copies)[1], image))
    for block in (7, 1000):
        monkeypatch.setattr(data_report, "CHUNK", block)
        found = find_copies(images.split(25), places, [THUMBNAIL] * 60)
        assert {pair[:2] for pair in found} == expected and len(found) == len(expected) > 30
        assert [value for *_, value in found] == sorted((each[2] for each in found), reverse=True)


def test_a_common_frame_makes_no_copies_and_copies_alone_are_found() -> None:
    frame = np.asarray(picture(0, (36, 36)))
    framed = []
    for seed in range(1, 20):
        framed.append(frame.copy())
        framed[-1][12:24, 12:24] = picture(seed, (12, 12))
    images = tensor(*map(Image.fromarray, framed))
    assert find_copies([images], [0] * 19, [36] * 19) == []
    assert [pair[:2] for pair in find_copies([images[[0, 0, 0]]], "aab", [36] * 3)] == [
        (0, 1),
        (1, 2),
    ]
    flat = torch.full((5, 3, 20, 20), 90, dtype=torch.uint8)
    assert find_copies([flat], [0] * 5, [20] * 5) == []


def ring(seed: int) -> Image.Image:
    """A noisy ring of a random color in the middle of another color."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:48, :48] - 24 + rng.normal(0, 2, (2, 1, 1))
    inside = abs(np.hypot(x, y) - 13) < 3
    colors = rng.uniform(0, 255, (2, 3))
    pixels = np.where(inside[..., None], *colors) + rng.normal(0, 12, (48, 48, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.mark.usefixtures("every_figure_is_drawn")
def test_small_copies_are_found_and_different_pictures_of_one_kind_are_none(run: Run) -> None:
    """The copies are saved at half the size, as JPEG of quality 60; the pairs are drawn."""
    for folder in ("a", "b"):
        Path("all", folder).mkdir(parents=True)
    for number in range(40):
        ring(number).save(f"all/a/ring{number}.png")
        image = picture(number, (64, 64))
        image.save(f"all/a/{number}.png")
        image.resize((32, 32)).save(f"all/b/{number}.jpg", quality=60)
    run.says(
        "written to found/all_copies.png",
        "vit-data",
        "data=folder",
        "data.root=all",
        "out=found/all.csv",
    )
    pairs = [
        {Path(row[key]).stem for key in ("image", "copy_image")}
        for row in csv_rows("found/all.csv")
    ]
    assert len(pairs) >= 38 and all(len(names) == 1 for names in pairs), pairs
    with Image.open("found/all_copies.png") as sheet:
        assert sheet.width > 1000
    run.succeeds("vit-data", "data.train_images=20", "data.test_images=10", "out=found/all.csv")
    assert not Path("found/all_copies.png").exists()
    twice = [("train", "a.png", label) for label in "xy"]  # by several rows of a table
    assert classified([(0, 1, 1.0)], twice) == []


def test_skipped_files_are_counted_once_and_listed(run: Run) -> None:
    names = [f"{number}.{suffix}" for number, suffix in enumerate(SUFFIXES)]
    write_images("root", [f"{split}/{name}" for split in ("train/a", "test/a") for name in names])
    heic = b"\0\0\0\x18ftypheic" + bytes(64)
    for name, content in {
        **{"train/a/x.heic": heic, "test/a/y.HEIC": heic, "test/a/z.jpg": heic},
        **{"train/a/Thumbs.db": b"x", "test/a/Thumbs.db": b"x", "test/a/readme": b""},
    }.items():
        Path("root", name).write_bytes(content)
    Path("root/train/a/0.jpe").rename("root/train/a/0.jpg_large")
    said = run.says("all 5 6", "vit-data", "data=folder", "data.root=root", "data.val=none").said
    skipped = f"6 files skipped (no {NAMED_FORMATS} suffix; convert HEIC photos to JPEG), such as "
    assert said.count(f"{skipped}root/train/a/0.jpg_large") == 1, said
    listed = {row["image"]: row["detail"] for row in csv_rows("data_report.csv")}
    assert listed["test/a/z.jpg"].startswith("a HEIC photo")
    assert "vit-train refuses these" in said and "set data.on_error=skip" in said
    assert {"train/a/Thumbs.db", "test/a/readme", "train/a/0.jpg_large"} < listed.keys()
