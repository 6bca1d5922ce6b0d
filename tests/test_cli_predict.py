"""vit-predict, and the same in Python: files of every kind, told as they are."""

import contextlib
import errno
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import (
    SMALL,
    SMALL_MODEL,
    Run,
    SmallRun,
    csv_rows,
    measured,
    posix,
    write_images,
)
from matplotlib.figure import Figure
from PIL import Image
from torch.testing import assert_close

import vit_train
from vit_train.base.reading import read_json
from vit_train.base.writing import write_json
from vit_train.data.files import NAMED_FORMATS
from vit_train.evaluate import measuring
from vit_train.evaluate.predict import calibration_line
from vit_train.figures.images import Labeled
from vit_train.loop import device
from vit_train.loop.device import Precision
from vit_train.trained.model import Trained

CLASSES = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}
TRAINED: list[Path] = []


@pytest.fixture
def colors(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make run/, which has learned colors from a folder; its test images are photos/test/CLASS/*.

    It is trained once; each test has a copy.
    """
    if not TRAINED:
        for name, color in CLASSES.items():
            for number in range(24):
                images = [f"{'train' if number < 16 else 'test'}/{name}/{number}.png"]
                write_images("photos", images, color, size=(20 + number, 40 - number))
        data = ["data=folder", "data.root=photos", "data.image_size=16", "hydra.run.dir=run"]
        more = ["train.epochs=6", "train.batch_size=16", "optim.lr=3e-3"]
        run.succeeds("vit-train", *SMALL_MODEL, *data, *more)
        TRAINED.append(tmp_path_factory.mktemp("colors"))
        shutil.copytree(".", TRAINED[0], dirs_exist_ok=True)
    shutil.copytree(TRAINED[0], ".", dirs_exist_ok=True)


@pytest.mark.usefixtures("colors", "every_figure_is_drawn")
def test_vit_predict_agrees_with_vit_eval_on_a_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = ["vit-predict", "ckpt=run", "images=photos/test"]
    run.says("vit-eval ckpt=run", *predict, "out=before.csv")
    # All of them are right, so that no temperature is too cold.
    words = "no temperature is fitted: 5 of the 5 validation images are classified correctly"
    run.says(words, "vit-eval", "ckpt=run")
    monkeypatch.setattr("vit_train.evaluate.measuring.temperature", lambda validation: 0.1)
    monkeypatch.setattr(measuring, "TARGETS", (0.5, 0.95))  # 5 images are too few for 0.95
    run.succeeds("vit-eval", "ckpt=run")
    evaluated = csv_rows("run/eval-test/predictions.csv")
    result = read_json(Path("run/eval-test/results.json"))
    assert result["focus"]["images"] == len(evaluated)
    temperature = result["calibration"]["temperature"]
    run.says(f"calibrated with a temperature of {temperature:.3g}", *predict, "out=after.csv")
    said = {name: csv_rows(f"{name}.csv") for name in ("before", "after")}
    for rows in said.values():
        assert [row["image"] for row in rows] == [f"photos/{row['image']}" for row in evaluated]
        for column in ("predicted", "predicted_3"):
            assert [row[column] for row in rows] == [row[column] for row in evaluated]
    for row, plain in zip(said["before"], evaluated, strict=True):
        assert float(row["probability"]) == pytest.approx(float(plain["probability"]), abs=1e-5)
    right = [row["image"].split("/")[2] == row["predicted"] for row in said["after"]]
    assert np.mean(right) == result["result"]["acc"]
    trained = vit_train.load("run")
    assert trained.meta.temperature == temperature
    low, high = result["abstention"]
    assert trained.meta.thresholds == {"0.5": low["threshold"], "0.95": None}
    sure = [float(row["probability"]) >= low["threshold"] for row in said["after"]]
    assert np.mean(sure) == low["test"]["share"] and high["test"] is None
    assert low["val"] == {"share": 1.0, "acc": 1.0, "acc_lower_95": pytest.approx(0.05**0.2)}
    logits = trained.model(trained.preprocess("photos/test/red/20.png").unsqueeze(0))
    chances = (logits / temperature).softmax(1)
    (row,) = (row for row in said["after"] if row["image"] == "photos/test/red/20.png")
    assert float(row["probability"]) == pytest.approx(chances.max().item(), abs=1e-5)


@pytest.mark.usefixtures("colors")
def test_a_mistake_leads_to_its_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    captions: list[str] = []

    def drawn(sections: Mapping[str, Sequence[Labeled]], *columns: int) -> Figure:
        if not columns:  # as in grids of training images
            captions.extend(lines[-1][0] for part in sections.values() for _, lines in part)
        return Figure(figsize=(2, 2))

    monkeypatch.setattr("vit_train.figures.images.draw_sheet", drawn)
    run.succeeds("vit-eval", "ckpt=run")
    assert captions and all(Path("photos", each).is_file() for each in captions), captions
    captions.clear()
    run.succeeds("vit-train", *SMALL, "train.epochs=1")
    begins = ("model: ", "second: ")
    assert captions and all(each.startswith(begins) for each in captions), captions


@pytest.mark.usefixtures("colors")
@pytest.mark.parametrize("more, count", [([], 3), (["topk=2"], 2)])
def test_an_unreadable_image_is_a_row_and_stops_nothing(
    run: Run, more: list[str], count: int
) -> None:
    Path("photos/test/red/broken.png").write_bytes(b"not an image")
    Path("photos/test/red/empty.jpg").touch()
    predict = ["vit-predict", "ckpt=run"]
    words = "2 of 10 images cannot be read (the first: photos/test/red/broken.png: not a"
    outcome = run.says(words, *predict, "images=photos/test/red", *more, "out=red.jsonl")
    assert "predictions for 8 images written to red.jsonl" in outcome.out
    text = Path("red.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    errors = {Path(line["image"]).name: line["error"] for line in lines if "error" in line}
    assert errors.keys() == {"broken.png", "empty.jpg"}
    assert errors["broken.png"].startswith(f"not a {NAMED_FORMATS} image that Pillow can read")
    assert all(len(line["top"]) == count for line in lines if "top" in line)
    for words, images in (
        ("images=nowhere.png: there is no such", "[photos/test/red/20.png,nowhere.png]"),
        (
            "cannot read any of the images: photos/test/red/broken.png: not a",
            "photos/test/red/broken.png",
        ),
    ):
        run.fails(words, *predict, f"images={images}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_standard_output_is_an_error(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run("finished")
    for arguments in (["vit-inspect"], ["vit-results", "run"]):
        with monkeypatch.context() as patch, open("/dev/full", "w", encoding="utf-8") as full:
            patch.setattr("sys.stdout", full)
            run.fails(f"{arguments[0]}: standard output: No space left on device\n", *arguments)


@posix
@pytest.mark.usefixtures("colors")
def test_names_on_standard_input_end_with_their_line_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(text: bytes) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BytesIO(text), encoding="utf-8")

    photo, *odd = ["photos/test/red/20.png", "a\u2028b.png", "caf\udce9.png"]
    for name in odd:
        shutil.copy(photo, name)
    text = b"\n".join(map(os.fsencode, [photo, "", *odd, "gone.png", ""]))
    predict = ["vit-predict", "ckpt=run", "images=-"]
    monkeypatch.setattr("sys.stdin", typed(text))
    run.says("1 of 4 images cannot be read", *predict, "out=all.csv")
    rows = csv_rows("all.csv")
    assert [row["error"] for row in rows] == [*[""] * 3, "there is no such file"]
    assert len({row["probability"] for row in rows[:3]}) == 1 and rows[3]["image"] == "gone.png"
    for nothing in (None, typed(b"")):
        monkeypatch.setattr("sys.stdin", nothing)
        run.fails("images=- names no file", *predict)


@pytest.mark.usefixtures("colors")
def test_a_photo_has_the_same_prediction_in_any_form() -> None:
    trained = vit_train.load("run")
    model, meta = trained
    assert meta.classes == list(CLASSES) and model is trained.model
    count = sum(each.numel() for each in model.parameters())
    assert repr(trained) == f"Trained('{meta.path}', {count:,} parameters, 3 classes)"
    path = Path("photos/test/green/20.png")
    image = Image.open(path)
    pixels = np.asarray(image)
    opaque = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    forms = [path, str(path), image, pixels, opaque]
    said, alone = trained.predict(forms), trained.predict(path)
    assert {each.label for each in said} == {"green"} == {alone.label}
    assert [each.probability for each in said] == pytest.approx([alone.probability] * len(forms))
    assert sum(chance for _, chance in said[0].top) == pytest.approx(1)
    for form in forms:
        assert_close(trained.preprocess(form), trained.preprocess(path))
    assert trained.preprocess(image.convert("L")).shape == (3, 16, 16)
    assert trained.predict(each for each in forms) == said
    for bad, why in (
        ("nowhere.png", "cannot read nowhere.png: there is no such file"),
        ("photos", "cannot read photos: not a regular file"),
        (np.zeros((3, 4, 5, 6), np.uint8), "cannot read the ndarray"),
    ):
        with pytest.raises(ValueError, match=why):
            trained.predict(bad)
    with pytest.raises(ValueError, match="auto, ema"):
        vit_train.load("run", weights="best")


IMPLAUSIBLE = ["-1.0", "1e999", "NaN", "1e-7", "1e7", "1e-300", '"hot"', "[]", "{", "null"]


def test_an_implausible_temperature_is_ignored(small_run: SmallRun) -> None:
    small_run("finished")
    note = Path("run/calibration.json")
    key = json.dumps(vit_train.load("run").meta.key)
    for value in IMPLAUSIBLE:
        for text in (value, f'{{"temperatures": {{{key}: {value}}}}}'):
            note.write_text(text, encoding="utf-8")
            assert vit_train.load("run").meta.temperature is None, text
    note.write_text(f'{{"temperatures": {{{key}: 1.5}}}}', encoding="utf-8")
    Path("run/summary.json").write_text("[]", encoding="utf-8")
    assert vit_train.load("run").meta.temperature == 1.5


def test_each_checkpoint_has_its_own_temperature(run: Run, small_run: SmallRun) -> None:
    small_run("averaged")
    last = "run/checkpoints/last.safetensors"
    found = []
    for ckpt, weights in (("run", "auto"), ("run", "raw"), (last, "auto")):
        run.succeeds("vit-eval", f"ckpt={ckpt}", f"weights={weights}")
        found.append(vit_train.load(ckpt, weights=weights).meta.temperature)
    noted = read_json(Path("run/calibration.json"))["temperatures"]
    assert list(noted.values()) == found and None not in found
    assert [(key.split()[0], key.split(", ")[1]) for key in noted] == [
        ("best.safetensors", "ema weights"), ("best.safetensors", "raw weights"),
        ("last.safetensors", "ema weights"),
    ]  # fmt: skip
    assert vit_train.load(last, weights="raw").meta.temperature is None
    Path(last).replace("run/checkpoints/best.safetensors")  # other weights, same name
    assert vit_train.load("run/checkpoints/best.safetensors").meta.temperature is None


def test_a_temperature_that_cannot_be_saved_gives_a_warning(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meta = vit_train.load(small_run("finished")).meta
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(measuring, "write_json", Mock(side_effect=full))
    measuring.save_calibration(meta, {"calibration": {"temperature": 1.5}})
    words = "the calibration is not saved: run/calibration.json: No space left on device"
    assert words in caplog.text
    Path("broken.png").touch()
    with pytest.raises(ValueError, match=r"cannot read broken\.png: not a JPEG"):
        vit_train.load("run").preprocess("broken.png")


def test_the_calibration_of_a_checkpoint_outside_a_run_is_beside_it(
    run: Run, small_run: SmallRun
) -> None:
    """Another program's file there is left alone."""
    small_run("finished")
    shutil.copy("run/checkpoints/best.safetensors", "mine.pt")
    note = Path("calibration.json")
    for text in ('{"mine": 1}', "[]"):
        note.write_text(text, encoding="utf-8")
        run.says("the calibration is not saved", "vit-eval", "ckpt=mine.pt", "out=refused")
        assert not read_json(Path("refused/results.json"))["calibration_saved"]
        assert note.read_text(encoding="utf-8") == text
    note.unlink()
    run.succeeds("vit-eval", "ckpt=mine.pt")
    assert vit_train.load("mine.pt").meta.temperature is not None


def test_a_temperature_in_another_precision_is_not_saved(run: Run, small_run: SmallRun) -> None:
    note = small_run("finished") / "calibration.json"
    run.succeeds("vit-eval", "ckpt=run")
    noted = note.read_text(encoding="utf-8")
    run.succeeds("vit-eval", "ckpt=run", "precision=bf16")
    (page,) = Path("run").glob("eval-test-*/report.html")
    assert "which vit-predict applies" not in page.read_text(encoding="utf-8")
    assert note.read_text(encoding="utf-8") == noted
    assert len(list(Path("run").glob("eval-*"))) == 2
    with contextlib.chdir("run/checkpoints"):
        known = vit_train.load("best.safetensors").meta.temperature
    assert known is not None and known in json.loads(noted)["temperatures"].values()
    assert vit_train.load("run", image_size=48).meta.temperature is None


def test_the_advice_on_calibration_can_be_followed() -> None:
    known = vit_train.load("builtin:cifar10").meta
    unfit, data = replace(known, temperature=None), replace(known.config.data, val="none")
    unknown = replace(unfit, thresholds={})
    never = replace(unknown, config=replace(known.config, data=data))
    for meta, words in (
        (known, f"calibrated with a temperature of {known.temperature:.3g}"),
        (unknown, "run: vit-eval 'ckpt=my run' weights=raw"),
        (never, "the run held out no validation images"),
        (unfit, "vit-eval could not fit a temperature"),
    ):
        assert words in calibration_line("my run", replace(meta, weights="raw"))


@pytest.mark.usefixtures("colors")
def test_predictions_below_the_threshold_are_withheld(run: Run) -> None:
    predict = ["vit-predict", "ckpt=run", "images=photos/test/r*/*.png"]
    run.succeeds(*predict, "out=all.csv")
    every = csv_rows("all.csv")
    chances = [float(row["probability"]) for row in every]
    threshold = float(np.median(chances))
    meta = vit_train.load("run").meta
    run.fails("to calibrate the model on the run's validation images", *predict, "abstain=0.95")
    thresholds = {meta.key: {"0.95": threshold, "0.99": None}}
    write_json(Path("run/calibration.json"), {"temperatures": {}, "thresholds": thresholds})
    run.fails("abstain=0.97 must be one of: 0.8, 0.9", *predict, "abstain=0.97")
    words = "(reached: 0.95); this needs at least 299 validation images"
    run.fails(words, *predict, "abstain=0.99")
    unsure = [chance < threshold for chance in chances]
    assert 0 < sum(unsure) < len(unsure)
    words = f"unsure: {sum(unsure)} of 8 images, with a confidence below {threshold:.2%}"
    lines = run.says(words, *predict, "abstain=0.95").out.splitlines()
    assert ["unsure: " in line for line in lines[: len(unsure)]] == unsure
    for name in ("sure.csv", "sure.jsonl"):
        run.succeeds(*predict, "abstain=0.95", f"out={name}")
    rows, text = csv_rows("sure.csv"), Path("sure.jsonl").read_text(encoding="utf-8")
    dicts = map(json.loads, text.splitlines())
    for before, row, each, withheld in zip(every, rows, dicts, unsure, strict=True):
        label = before["predicted"]
        assert row["predicted"] == ("" if withheld else label)
        assert each["predicted"] == (None if withheld else label)
        assert (row["predicted_1"], each["top"][0][0]) == (label, label)
        assert row["probability"] == row["probability_1"] == before["probability"]
        assert row["predicted_3"] == before["predicted_3"]


@pytest.mark.usefixtures("colors")
def test_foreign_images_are_recognized_by_their_confidence(run: Run) -> None:
    write_images("gray", [f"{number}.png" for number in range(9)])
    Path("gray/broken.png").write_bytes(b"not an image")
    run.says("foreign images: 9 of 10 read", "vit-eval", "ckpt=run", "foreign=gray", "out=told")
    found = read_json(Path("told/results.json"))["foreign"]
    trained = vit_train.load("run")
    own, others = (
        [each.probability for each in trained.predict(sorted(map(str, Path(folder).glob(files))))]
        for folder, files in (("photos/test", "*/*.png"), ("gray", "[0-9].png"))
    )
    pairs = [(a > b) + (a == b) / 2 for a in own for b in others]
    assert found["auroc"] == pytest.approx(np.mean(pairs)) and found["images"] == 9
    run.fails("foreign=nowhere: there is no such", "vit-eval", "ckpt=run", "foreign=nowhere")
    run.fails(
        "cannot read any of the foreign images", "vit-eval", "ckpt=run", "foreign=gray/broken.png"
    )


@pytest.mark.usefixtures("colors")
def test_a_labeled_folder_is_evaluated_whole(run: Run) -> None:
    """All images below its classes, whose names the model knows; and only these files are read."""
    run.succeeds("vit-eval", "ckpt=run")
    Path("photos/train/red/broken.png").write_bytes(b"not an image")
    Path("photos/test").rename("elsewhere")
    where = ["vit-eval", "ckpt=run", "data.root=elsewhere"]
    run.succeeds(*where)
    (folder,) = Path("run").glob("eval-test-*")
    assert len(csv_rows(f"{folder}/predictions.csv")) == 24
    own, found = (read_json(Path(each, "results.json")) for each in ("run/eval-test", folder))
    assert found["result"] == own["result"] and found["root"] == "elsewhere"
    Path("elsewhere/green/broken.png").write_bytes(b"not an image")
    run.fails("data.on_error=skip", *where)
    run.succeeds(*where, "data.on_error=skip")
    Path("elsewhere/green").rename("elsewhere/violet")
    outcome = run.fails("classes that are not classes of the model: violet", *where)
    assert "name one that knows these classes last" in outcome.err


@pytest.mark.usefixtures("colors")
def test_results_on_mirrored_and_corrupted_images_are_separate(run: Run) -> None:
    worse = ["vit-eval", "ckpt=run", "tta=flip", "robustness=true", "data.test_subset=9"]
    run.says("gaussian noise: ", *worse, "out=worse")
    folder = Path("worse")
    results = read_json(folder / "results.json")
    assert results["tta_flip"]["loss"] != results["result"]["loss"]
    found = results["robustness"]
    assert len(csv_rows("worse/predictions.csv")) == 9
    by_severity = list(found["acc_by_severity"].values())
    assert np.shape(by_severity) == (8, 5)
    assert found["mean_acc"] == pytest.approx(np.mean(by_severity))
    assert (folder / "robustness.png").exists()
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Accuracy on corrupted images" in page


@pytest.mark.parametrize(
    "stored, speedup, used",
    [
        ("bf16", 1.9, "bf16"),
        ("bf16", 0.5, "fp32"),
        ("fp32", 1.9, "fp32"),
    ],
)
def test_predictions_have_the_precision_of_training_where_the_cpu_is_fast_in_it(
    monkeypatch: pytest.MonkeyPatch, stored: str, speedup: float, used: str
) -> None:
    model, meta = vit_train.load("builtin:cifar10")
    trained = Trained(model, replace(meta, config=replace(meta.config, precision=stored)))
    monkeypatch.setattr(device, "image_seconds", lambda *_: measured(speedup))
    assert trained.precision == Precision(used, torch.device("cpu"))
