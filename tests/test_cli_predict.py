"""vit-predict, and the same in Python: files of every kind, told as they are."""

import contextlib
import io
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, SMALL_MODEL, Run, SmallRun, csv_rows, posix
from matplotlib.figure import Figure
from PIL import Image
from torch.testing import assert_close

import vit_train
from vit_train.base.reading import read_json
from vit_train.data.image_files import image_files
from vit_train.engine import precision
from vit_train.engine.precision import Precision
from vit_train.evaluation import evaluator, predict
from vit_train.figures.sheet import Labeled
from vit_train.runs.load import temperature_key
from vit_train.runs.paths import FOLDER
from vit_train.runs.settings import PredictConfig
from vit_train.runs.trained import Trained

CLASSES = ("blue", "green", "red")


def write_photo(path: Path, color: tuple[int, int, int], seed: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 90, (*size[::-1], 3))
    pixels = (0.6 * np.array(color) + noise).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


TRAINED: list[Path] = []


@pytest.fixture
def colors(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make run/, which has learned colors from a folder; its test images are photos/test/CLASS/*.

    It is trained once; each test has a copy.
    """
    if not TRAINED:
        learn_colors(run)
        TRAINED.append(tmp_path_factory.mktemp("colors"))
        shutil.copytree(".", TRAINED[0], dirs_exist_ok=True)
    shutil.copytree(TRAINED[0], ".", dirs_exist_ok=True)


def learn_colors(run: Run) -> None:
    for label, name in enumerate(CLASSES):
        color = tuple(255 * (2 - label == channel) for channel in range(3))
        for number in range(24):
            part = "train" if number < 16 else "test"
            size = (20 + number, 40 - number)
            write_photo(Path(f"photos/{part}/{name}/{number}.png"), color, 9 * label + number, size)
    data = ["data=folder", "data.root=photos", "data.image_size=16"]
    more = ["train.epochs=6", "train.batch_size=16", "optim.lr=3e-3", "hydra.run.dir=run"]
    outcome = run("vit-train", *data, *SMALL_MODEL, *more)
    assert outcome.status == 0, outcome.err


@pytest.mark.usefixtures("colors", "every_figure_is_drawn")
def test_a_folder_of_photos_is_told_as_vit_eval_tells_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run("vit-predict", "ckpt=run", "images=photos/test", "out=before.csv")
    assert before.status == 0 and "vit-eval ckpt=run" in before.out
    # All of them are right, so that no temperature is too cold.
    few = run("vit-eval", "ckpt=run")
    assert "no temperature is fitted: too few validation images (5)" in few.out, few.err
    monkeypatch.setattr(evaluator, "COLDEST", 0.0)
    assert run("vit-eval", "ckpt=run").status == 0
    evaluated = csv_rows("run/eval-test/predictions.csv")
    result = read_json(Path("run/eval-test/results.json"))
    assert result["focus"]["images"] == len(evaluated) and 0 < result["focus"]["middle"] < 1
    outcome = run("vit-predict", "ckpt=run", "images=photos/test", "out=after.csv")
    assert outcome.status == 0, outcome.err
    temperature = result["calibration"]["temperature"]
    assert f"calibrated with a temperature of {temperature:.2f}" in outcome.out
    for path in ("before.csv", "after.csv"):
        said = csv_rows(path)
        assert [row["image"] for row in said] == [f"photos/{row['image']}" for row in evaluated]
        assert [row["predicted"] for row in said] == [row["predicted"] for row in evaluated]
        assert [row["predicted_3"] for row in said] == [row["predicted_3"] for row in evaluated]
    right = [row["image"].split("/")[2] == row["predicted"] for row in csv_rows("after.csv")]
    assert np.mean(right) == result["result"]["acc"]
    overlaid = run("vit-predict", "ckpt=run", "images=photos/test", "overlay=true")
    assert overlaid.status == 0 and "predicted class: run/predicted.png" in overlaid.out, (
        overlaid.err
    )
    with Image.open("run/predicted.png") as picture:
        assert min(picture.size) > 300
    for row, plain in zip(csv_rows("before.csv"), evaluated, strict=True):
        assert float(row["probability"]) == pytest.approx(float(plain["probability"]), abs=1e-5)
    trained = vit_train.load("run")
    assert trained.meta.temperature == temperature
    logits = trained.model(trained.preprocess("photos/test/red/20.png").unsqueeze(0))
    chances = (logits / temperature).softmax(1)
    (row,) = (row for row in csv_rows("after.csv") if row["image"] == "photos/test/red/20.png")
    assert float(row["probability"]) == pytest.approx(chances.max().item(), abs=1e-5)


@pytest.mark.usefixtures("colors", "every_figure_is_drawn")
def test_a_mistake_leads_to_its_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    captions: list[str] = []

    def drawn(sections: Mapping[str, Sequence[Labeled]], *columns: int) -> Figure:
        if not columns:  # as in grids of training images
            captions.extend(each.lines[-1][0] for part in sections.values() for each in part)
        return Figure(figsize=(2, 2))

    monkeypatch.setattr("vit_train.figures.sheet.draw_sheet", drawn)
    assert run("vit-eval", "ckpt=run").status == 0
    assert captions and all(Path("photos", each).is_file() for each in captions), captions
    captions.clear()
    assert run("vit-train", *SMALL, "train.epochs=1").status == 0
    assert captions and all(each.startswith("model: ") for each in captions), captions


@pytest.mark.usefixtures("colors")
def test_what_cannot_be_read_is_a_row_and_stops_nothing(run: Run) -> None:
    Path("photos/test/red/broken.png").write_bytes(b"not an image")
    Path("photos/test/red/empty.jpg").touch()
    outcome = run("vit-predict", "ckpt=run", "images=photos/test/red", "out=red.jsonl")
    assert outcome.status == 0 and "2 of 10 images cannot be read" in outcome.err + outcome.out
    lines = [
        json.loads(line) for line in Path("red.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    errors = {Path(line["image"]).name: line["error"] for line in lines if "error" in line}
    assert errors.keys() == {"broken.png", "empty.jpg"}
    assert errors["broken.png"] == "not a JPEG, PNG, WebP or BMP image"
    assert all(len(line["top"]) == 3 for line in lines if "top" in line)
    named = "images=[photos/test/red/20.png,nowhere.png,photos/test/blue/2*.png]"
    outcome = run("vit-predict", "ckpt=run", named)
    assert (
        outcome.status == 1 and "images=nowhere.png: there is no such file or folder" in outcome.err
    )
    outcome = run("vit-predict", "ckpt=run", "images=photos/test/red/broken.png")
    assert outcome.status == 1 and "the image cannot be read" in outcome.err
    assert "Traceback" not in outcome.err


@posix
@pytest.mark.usefixtures("colors")
def test_output_that_is_lost_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    predicting = ["vit-predict", "ckpt=run", "images=photos/test/red"]
    for arguments in (predicting, ["vit-results", "run"], ["vit-inspect"]):
        with monkeypatch.context() as patch, open("/dev/full", "w", encoding="utf-8") as full:
            patch.setattr("sys.stdout", full)
            outcome = run(*arguments)
        said = f"{arguments[0]}: standard output: No space left on device\n"
        assert outcome.status == 1 and outcome.err.endswith(said), outcome


@posix
@pytest.mark.usefixtures("colors")
def test_names_on_standard_input_end_with_their_line_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo, *odd = ["photos/test/red/20.png", "a\u2028b.png", "caf\udce9.png", "c\r.png"]
    for name in odd:
        shutil.copy(photo, name)
    text = b"\n".join(map(os.fsencode, [photo, "", *odd, "gone.png", ""]))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    outcome = run("vit-predict", "ckpt=run", "images=-", "out=all.csv")
    assert outcome.status == 0 and "1 of 5 images cannot be read" in outcome.err + outcome.out
    rows = csv_rows("all.csv")
    assert [row["error"] for row in rows] == [*[""] * 4, "there is no such file"]
    assert len({row["probability"] for row in rows[:4]}) == 1 and rows[4]["image"] == "gone.png"
    empty = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    for nothing, words in ((None, "which is closed"), (empty, "no path")):
        monkeypatch.setattr("sys.stdin", nothing)
        outcome = run("vit-predict", "ckpt=run", "images=-")
        assert outcome.status == 1 and words in outcome.err and "Traceback" not in outcome.err


@pytest.mark.usefixtures("colors")
def test_one_photo_in_any_form_is_the_same_photo() -> None:
    trained = vit_train.load("run")
    model, meta = trained
    assert meta.classes == list(CLASSES) and model is trained.model
    count = sum(each.numel() for each in model.parameters())
    assert repr(trained) == f"Trained('{meta.path}', {count:,} parameters, 3 classes)"
    path = Path("photos/test/green/20.png")
    image = Image.open(path)
    pixels = np.asarray(image)
    forms = [path, str(path), image, pixels, np.dstack([pixels, np.full(pixels.shape[:2], 255)])]
    forms[-1] = forms[-1].astype(np.uint8)
    said = trained.predict(forms)
    alone = trained.predict(path)
    assert {each.label for each in said} == {"green"} == {alone.label}
    assert [each.probability for each in said] == pytest.approx([alone.probability] * len(forms))
    assert sum(chance for _, chance in said[0].top) == pytest.approx(1)
    for form in forms:
        assert_close(trained.preprocess(form), trained.preprocess(path))
    assert trained.preprocess(image.convert("L")).shape == (3, 16, 16)
    for bad, why in {
        "nowhere.png": "cannot read nowhere.png: there is no such file",
        "photos": "cannot read photos: it is a folder: name a file, or a list of files",
    }.items():
        with pytest.raises(ValueError, match=why):
            trained.predict(bad)
    with pytest.raises(ValueError, match="cannot read the ndarray"):
        trained.predict(np.zeros((3, 4, 5, 6), np.uint8))
    assert trained.predict(each for each in forms) == said
    with pytest.raises(ValueError, match="topk=0 must be at least 1"):
        trained.predict(path, topk=0)


@pytest.mark.usefixtures("colors")
def test_a_turned_photo_is_turned_back() -> None:
    image = Image.open("photos/test/green/20.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° to see it upright
    image.save("turned.png", exif=exif)
    trained = vit_train.load("run")
    expected = trained.preprocess(image.rotate(-90, expand=True))
    assert_close(trained.preprocess("turned.png"), expected)


def test_what_does_not_classify_is_refused(run: Run, small_run: SmallRun) -> None:
    small_run("reconstruct")
    Image.new("RGB", (5, 5)).save("a.png")
    outcome = run("vit-predict", "ckpt=run", "images=a.png")
    assert outcome.status == 1 and "task=reconstruct does not classify images" in outcome.err
    outcome = run("vit-predict", "ckpt=run", "images=a.png", "out=a.txt")
    assert outcome.status == 1 and "must end in .csv or .jsonl" in outcome.err


@pytest.mark.parametrize(
    "value", ["-1.0", "1e999", "1e-4", "1e4", "1e-300", '"hot"', "[]", "{", "null"]
)
def test_a_strangers_temperature_is_believed_only_if_it_is_one(
    value: str, small_run: SmallRun
) -> None:
    small_run("finished")
    note = Path("run/calibration.json")
    key = json.dumps(temperature_key(vit_train.load("run").meta))
    for text in (value, f'{{"temperatures": {{{key}: {value}}}}}'):
        note.write_text(text, encoding="utf-8")
        assert vit_train.load("run").meta.temperature is None
    note.write_text(f'{{"temperatures": {{{key}: 1.5}}}}', encoding="utf-8")
    assert vit_train.load("run").meta.temperature == 1.5


def test_each_checkpoint_has_its_own_temperature(run: Run, small_run: SmallRun) -> None:
    small_run("averaged")
    for more in (
        ["ckpt=run"],
        ["ckpt=run", "weights=raw"],
        ["ckpt=run/checkpoints/last.safetensors"],
    ):
        assert run("vit-eval", *more).status == 0
    found = [
        vit_train.load("run").meta.temperature,
        vit_train.load("run", weights="raw").meta.temperature,
        vit_train.load("run/checkpoints/last.safetensors").meta.temperature,
    ]
    assert None not in found
    noted = read_json(Path("run/calibration.json"))["temperatures"]
    assert list(noted.values()) == found
    told = [(key.split()[0], key.split(", ")[1]) for key in noted]
    assert told == [
        ("best.safetensors", "ema weights"), ("best.safetensors", "raw weights"),
        ("last.safetensors", "ema weights"),
    ]  # fmt: skip
    assert (
        vit_train.load("run/checkpoints/last.safetensors", weights="raw").meta.temperature is None
    )
    Path("run/checkpoints/last.safetensors").replace(
        "run/checkpoints/best.safetensors"
    )  # other weights, same name
    assert vit_train.load("run/checkpoints/best.safetensors").meta.temperature is None


def test_a_file_named_after_no_user_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"images=~photo\.jpg: there is no such file"):
        image_files("~photo.jpg")
    write_photo(Path("~photo.jpg"), (200, 30, 30), 0, (40, 30))
    assert image_files("~photo.jpg") == [Path("~photo.jpg")]


def test_another_programs_calibration_json_is_left_alone(run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    Path("run/calibration.json").write_text('{"mine": 1}', encoding="utf-8")
    outcome = run("vit-eval", "ckpt=run")
    assert outcome.status == 0 and "the temperature is not noted" in outcome.err + outcome.out
    assert Path("run/calibration.json").read_text(encoding="utf-8") == '{"mine": 1}'
    shutil.copy("run/checkpoints/best.safetensors", "mine.pt")
    Path("calibration.json").write_text("{}", encoding="utf-8")
    assert run("vit-eval", "ckpt=mine.pt").status == 0
    assert Path("calibration.json").read_text(encoding="utf-8") == "{}"
    assert vit_train.load("mine.pt").meta.temperature is not None


def test_a_temperature_of_a_part_of_the_images_is_not_noted(run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    assert run("vit-eval", "ckpt=run").status == 0
    noted = Path("run/calibration.json").read_text(encoding="utf-8")
    assert run("vit-eval", "ckpt=run", "data.val_subset=10").status == 0
    assert Path("run/calibration.json").read_text(encoding="utf-8") == noted
    assert {each.name for each in Path("run").glob("eval-*")} == {"eval-test", "eval-test-10val"}
    with contextlib.chdir("run/checkpoints"):
        known = vit_train.load("best.safetensors").meta.temperature
        assert known is not None and known in json.loads(noted)["temperatures"].values()
    assert vit_train.load("run", image_size=48).meta.temperature is None


def test_the_advice_on_calibration_can_be_followed(caplog: pytest.LogCaptureFixture) -> None:
    known = vit_train.load("builtin:cifar10").meta
    unknown = replace(known, temperature=None)
    data = replace(known.config.data, val="none")
    never = replace(unknown, config=replace(known.config, data=data))
    config = PredictConfig(ckpt="my run", images="x.png", weights="raw")
    with caplog.at_level(logging.INFO):
        for meta in (known, unknown, never):
            predict.report(config, 1, 0, meta)
    assert [message.split(":", 1)[-1].strip() for message in caplog.messages] == [
        f"probabilities are calibrated with a temperature of {known.temperature:.2f}",
        "vit-eval 'ckpt=my run' weights=raw calibrates them once, from the run's validation images",
        "the run held out no validation images",
    ]


@pytest.mark.usefixtures("colors")
def test_a_labeled_folder_is_scored_whole(run: Run) -> None:
    """All images below its classes, whose names the model knows; and only these files are read."""
    Path("photos/train/red/broken.png").write_bytes(b"not an image")
    outcome = run("vit-eval", "ckpt=run")
    assert outcome.status == 0 and "only the test images are read" in outcome.err + outcome.out
    Path("photos/test").rename("elsewhere")
    where = ["data.root=elsewhere"]
    outcome = run("vit-eval", "ckpt=run", *where)
    assert outcome.status == 0, outcome.err
    (folder,) = Path("run").glob("eval-test-elsewhere-*")
    assert len(csv_rows(f"{folder}/predictions.csv")) == 24
    own = read_json(Path("run/eval-test/results.json"))
    found = read_json(folder / "results.json")
    assert found["result"] == own["result"] and found["root"] == "elsewhere"
    Path("elsewhere/green/broken.png").write_bytes(b"not an image")
    outcome = run("vit-eval", "ckpt=run", *where)
    assert outcome.status == 1 and "data.on_error=skip" in outcome.err
    assert run("vit-eval", "ckpt=run", *where, "data.on_error=skip").status == 0
    Path("elsewhere/green").rename("elsewhere/violet")
    outcome = run("vit-eval", "ckpt=run", *where)
    assert outcome.status == 1 and "classes that the model does not know: violet" in outcome.err
    outcome = run("vit-eval", "ckpt=run", "data.name=cifar10", "data.on_error=skip")
    assert outcome.status == 1 and "is not a setting of data.name=cifar10" in outcome.err


@pytest.mark.usefixtures("colors")
def test_mirror_images_are_reported_apart(run: Run) -> None:
    assert run("vit-eval", "ckpt=run", "tta=flip").status == 0
    found = read_json(Path("run/eval-test-flip/results.json"))
    trained = vit_train.load("run")
    chances = []
    for row in csv_rows("run/eval-test-flip/predictions.csv"):
        image = trained.preprocess(f"photos/{row['image']}")
        both = trained.model(torch.stack([image, image.flip(2)])).softmax(1)
        chances.append(both.mean(0)[CLASSES.index(row["true"])].item())
    assert found["tta_flip"]["loss"] == pytest.approx(-np.log(chances).mean(), rel=1e-4)
    assert found["tta_flip"]["loss"] != found["result"]["loss"]


@pytest.mark.usefixtures("colors")
def test_robustness_is_the_accuracy_on_worse_images(run: Run) -> None:
    outcome = run("vit-eval", "ckpt=run", "robustness=true", "data.test_subset=9")
    assert outcome.status == 0 and "gaussian noise: " in outcome.out, outcome.err
    folder = Path("run/eval-test-9images-robustness")
    content = read_json(folder / "results.json")
    found = content["robustness"]
    by_severity = found["acc_by_severity"]
    assert len(by_severity) == 8 and all(len(each) == 5 for each in by_severity.values())
    assert found["mean_acc"] == pytest.approx(np.mean(list(by_severity.values())))
    assert (folder / "robustness.png").exists()
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Accuracy on corrupted images" in page


def test_overlays_never_replace_an_image_and_bad_weights_are_said(run: Run) -> None:
    """NaN in a table would be no number, and in JSON lines no JSON."""
    write_photo(Path("photo.png"), (200, 30, 30), 0, (40, 30))
    before = Path("photo.png").read_bytes()
    arguments = ("ckpt=builtin:cifar10", "images=photo.png", "overlay=true")
    outcome = run("vit-predict", *arguments, "out=new/photo.csv")
    assert outcome.status == 0 and Path("new/photo-maps.png").exists(), outcome.err
    assert run("vit-predict", *arguments, "out=photo.csv").status == 0
    assert Path("photo.png").read_bytes() == before
    shutil.copy(FOLDER / "cifar10.safetensors", "model.safetensors")
    Path("predicted.png").write_bytes(before)
    outcome = run("vit-predict", "ckpt=model.safetensors", "images=.", "overlay=true")
    assert outcome.status == 1 and "overlay=true would replace the image" in outcome.err
    Path("predicted.png").unlink()
    Path("photo-maps.png").write_bytes(before)
    outcome = run("vit-predict", *arguments[:1], "images='*.png'", "overlay=true", "out=photo.csv")
    assert outcome.status == 1 and "would replace the image photo-maps.png" in outcome.err
    assert Path("photo-maps.png").read_bytes() == before
    trained = vit_train.load("builtin:cifar10")
    trained.model.head.bias.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="answers with NaN: its weights are damaged"):
        trained.predict("photo.png")


@pytest.mark.parametrize(
    "stored, speedup, used",
    [
        ("bf16", 1.9, "bf16"),
        ("bf16", 0.5, "fp32"),
        ("fp32", 1.9, "fp32"),
        ("auto", 1.9, "fp32"),  # of a version in which that was fp32 on every CPU
    ],
)
def test_predictions_have_the_precision_of_training_where_the_cpu_is_fast_in_it(
    monkeypatch: pytest.MonkeyPatch, stored: str, speedup: float, used: str
) -> None:
    model, meta = vit_train.load("builtin:cifar10")
    trained = Trained(model, replace(meta, config=replace(meta.config, precision=stored)))
    monkeypatch.setattr(precision, "product_speedup", lambda *sides, threads: speedup)
    assert trained.precision == Precision(used, torch.device("cpu"))
