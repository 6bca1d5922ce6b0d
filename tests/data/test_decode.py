"""Image files as they are seen: turned by their orientation, whatever else is in them."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL_MODEL, Run, csv_rows, write_images
from odd_photos import FIELDS, exif
from PIL import Image
from PIL.Image import Transpose

from vit_train.base.reading import read_json
from vit_train.data import decode as module

# How an image is stored that its orientation shows upright.
STORED = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_90, 7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of unusual metadata, as outside tests
def test_each_orientation_of_a_file_is_seen_alike(run: Run) -> None:
    """Uncompressed TIFFs of all modes, and PNGs with any metadata; a damaged TIFF is named once."""
    spots = np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    picture = Image.fromarray(spots).resize((60, 40), Image.Resampling.NEAREST)
    deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    kinds = {mode: picture.convert(mode) for mode in ("L", "P", "CMYK", "RGBA", "RGB")}
    for name in (*kinds, "deep", *FIELDS):
        Path("seen", name).mkdir(parents=True)
        for number in range(1, 9):
            image = kinds.get(name, deep if name == "deep" else picture)
            stored = image.transpose(STORED[number]) if number in STORED else image
            if name in FIELDS:
                stored.save(f"seen/{name}/{number}.png", exif=exif(number, FIELDS[name]))
            else:
                stored.save(f"seen/{name}/{number}.tif", tiffinfo={0x112: number})
    picture.save("seen/RGB/1.png", exif=b"no EXIF")
    picture.save("cut.tif", compression="tiff_lzw")
    content = Path("cut.tif").read_bytes()
    Path("cut.tif").write_bytes(content[:40] + bytes(200) + content[240:])
    model, images = "ckpt=builtin:cifar10", "images=[seen,cut.tif]"
    assert run.succeeds("vit-predict", model, images, "out=o.jsonl").err == ""
    *lines, cut = map(json.loads, Path("o.jsonl").read_text(encoding="utf-8").splitlines())
    assert cut["error"] == "decoder error -2"
    for name in (*kinds, "deep", *FIELDS):
        top = [line["top"] for line in lines if f"/{name}/" in line["image"]]
        assert len({first[0] for first, *_ in top}) == 1, (name, top)
        assert np.ptp([first[1] for first, *_ in top]) < 1e-4, (name, top)
    run.says("60×40 to 60×40 pixels", "vit-data", "data=folder", "data.root=seen")


def test_only_the_images_asked_for_are_decoded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a file was added or altered since training: then all, to know what was trained on."""
    write_images("photos", [f"{name}/{number}.png" for name in "ab" for number in range(40)])
    own, read = ["data=folder", "data.root=photos", "data.image_size=16"], module.read_image
    run.succeeds("vit-train", *own, *SMALL_MODEL, "train.epochs=1", "hydra.run.dir=run")
    splits = Counter(row["split"] for row in csv_rows("run/images.csv"))
    opened: set[Path] = set()
    monkeypatch.setattr(module, "read_image", lambda path, how: opened.add(path) or read(path, how))

    def count(*command: str) -> int:
        opened.clear()
        run.succeeds(*command, "ckpt=run")
        return len(opened)

    assert count("vit-explain", "count=3", "out=maps") == 3
    assert count("vit-eval", "split=val", "out=val") == splits["val"]
    assert count("vit-eval", "out=few") == splits["test"] + splits["val"] < 40
    assert count("vit-eval", "data.root=photos", "out=all") == 80
    few, every = (read_json(Path(folder, "results.json")) for folder in ("few", "all"))
    assert few | {"command": every["command"]} == every
    trained, tested = (
        next(row["path"] for row in csv_rows("run/images.csv") if row["split"] == split)
        for split in ("train", "test")
    )
    content = Path("photos", tested).read_bytes()
    shutil.copy(Path("photos", trained), Path("photos", tested))
    assert count("vit-eval", "out=altered") == 80
    Path("photos", tested).write_bytes(content)
    write_images("photos/b", ["new.png"])
    assert count("vit-explain", "count=3", "out=maps") == 81


def test_without_a_terminal_decoding_logs_its_progress(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(module, "WAITING", 8)
    write_images("photos", [f"{name}/{number}.png" for name in "ab" for number in range(6)])
    run.says("decoded 8 of 12 images", "vit-data", "data=folder", "data.root=photos")
