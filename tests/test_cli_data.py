"""Each source as its user meets it: through the command line."""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import loopback as server
import numpy as np
import pytest
import torch
from conftest import SMALL_MODEL, Run, csv_rows, write_images
from filelock import FileLock
from PIL import Image
from small_sets import packed, small_cifar

import vit_train
from vit_train.base.reading import read_json
from vit_train.config.data import FIT, MAX_PIXELS, ArchiveConfig, Cifar10Config, Cifar100Config
from vit_train.config.run import portable
from vit_train.config.tools import EvalDataConfig
from vit_train.data.decode import Reading, read_image
from vit_train.data.files import NAMED_FORMATS
from vit_train.data.published import load_cifar
from vit_train.trained.images import configured

TRAIN = ["vit-train", *SMALL_MODEL, "hydra.run.dir=run"]


def test_download_train_evaluate(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cifar(monkeypatch, tmp_path / "made")
    content = packed(tmp_path / "made" / "cifar-10-batches-py")
    with server.serve() as web:
        down, up = web.url("/down", server.failing(503)), web.url("/up", server.whole(content))
        fetching = [*TRAIN, "train.epochs=1", "data=cifar10", "data.download=true"]
        error = run.fails("could not download", *fetching, f"data.urls=[{down}]").err
        assert f"{down}: HTTP Error 503" in error and "download the file yourself" in error
        run.succeeds(*fetching, f"data.urls=[{down},{up}]", "data.root=new")
    assert Path("new", "cifar-10-batches-py", "test_batch").exists()
    # The data is found again without a download, and elsewhere if it is said where.
    run.succeeds("vit-eval", "ckpt=run")
    Path("new").rename("moved")
    run.fails("data.root=FOLDER", "vit-eval", "ckpt=run")
    run.succeeds("vit-eval", "ckpt=run", "data.root=moved")


def test_a_strangers_run_downloads_nothing_from_its_own_addresses(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_cifar(monkeypatch, tmp_path / "data")
    load, ours = Mock(wraps=load_cifar), Cifar10Config().urls
    monkeypatch.setattr(Cifar10Config, "builds", load)
    fetching = ["data=cifar10", "data.download=true"]
    evil, mine = ["https://evil.example/x.tar.gz"], ["https://my.example/x.tar.gz"]
    extending = ["vit-train", "extend=run", "train.epochs=1"]
    for command in (
        [*TRAIN, *fetching, f"data.urls={evil}", "train.max_minutes=1e-9"],
        ["vit-train", "resume=run", "train.max_minutes=null"],
        [*extending, "hydra.run.dir=new"],
        [*extending, *fetching, f"data.urls={mine}", "hydra.run.dir=mine"],
        ["vit-eval", "ckpt=run"],
    ):
        run.succeeds(*command)
    asked = [call.args[0] for call in load.call_args_list]
    assert ours and [(config.download, config.urls) for config in asked] == [
        (True, evil), (False, ours), (False, ours), (True, mine), (False, ours),
    ]  # fmt: skip
    other = configured(EvalDataConfig(name="cifar100", download=True), vit_train.load("run").meta)
    assert isinstance(other, ArchiveConfig) and other.urls == Cifar100Config().urls != []


def test_a_strangers_run_raises_no_limit_of_an_images_pixels(run: Run) -> None:
    """Such a limit keeps a small file from taking all memory; this command line may raise it."""
    parts = product(("train", "test"), "ab", range(4))
    write_images("files", [f"{part}/{name}/{number}.png" for part, name, number in parts])
    own = [
        *("data=folder", f"data.max_pixels={MAX_PIXELS + 1}", "data.image_size=8"),
        *("data.root=files", "data.val_fraction=0.3"),
    ]
    run.succeeds(*TRAIN, *own, "train.max_minutes=1e-9")
    config = Path("run/config.yaml")
    text = config.read_text(encoding="utf-8")
    for limit in (f"'{MAX_PIXELS + 1}'", f"{MAX_PIXELS + 1}"):  # OmegaConf accepts quoted numbers
        config.write_text(text.replace(f"{MAX_PIXELS + 1}", limit), encoding="utf-8")
        run.fails(f"add data=folder {own[1]}", "vit-train", "resume=run")
    run.succeeds("vit-train", "resume=run", *own, "train.max_minutes=null")
    meta = vit_train.load("run").meta
    for given, allowed in ((None, MAX_PIXELS), (MAX_PIXELS + 1, MAX_PIXELS + 1)):
        assert configured(EvalDataConfig(max_pixels=given), meta).max_pixels == allowed


WARNINGS = (
    "2 images with almost no contrast, such as scans/a/dark.png",
    "2 images cropped to the center, by more than a fifth of the area, such as scans/a/wide.png",
    f"2 files skipped (no {NAMED_FORMATS} suffix), such as scans/a/scan.ico",
)


def test_every_command_warns_once_of_flat_cropped_and_skipped_images(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dark and wide images and icons, among good images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for root, name in product(("scans", "good"), "ab"):
        write_images(f"{root}/{name}", [f"{number}.png" for number in range(10)])
    for name in "ab":
        dark = np.random.default_rng(0).integers(0, 15, (24, 24)).astype(np.uint8)
        Image.fromarray(dark).save(f"scans/{name}/dark.png")
        write_images(f"scans/{name}", ["wide.png", "scan.ico"], size=(128, 64))
    quick = ["data.image_size=16", "data.fit=crop", "train.epochs=1", "train.batch_size=8"]
    said = run.succeeds(*TRAIN, "data=folder", *quick, "data.root=good").said
    assert not any(words[1:15] in said for words in WARNINGS)
    scans = ["data=folder", *quick, "data.root=scans", "data.cache=true"]
    for command in (
        [*TRAIN, *scans, "hydra.run.dir=first"],
        [*TRAIN, *scans, "hydra.run.dir=second"],  # whose images come from the cache
        ["vit-eval", "ckpt=run", "data.root=scans"],
        ["vit-predict", "ckpt=run", "images=scans"],
        ["vit-explain", "ckpt=run", "images=scans", "count=24"],
    ):
        said = run.succeeds(*command).said
        assert [said.count(words) for words in WARNINGS] == [1] * 3, (command, said)
    single = ["vit-predict", "ckpt=run", "images=scans/a/dark.png"]
    run.says("1 image with almost no contrast, such as scans/a/dark.png", *single)


@pytest.mark.parametrize("fit", FIT)
def test_a_prediction_fits_an_image_as_training_did(run: Run, fit: str) -> None:
    write_images("wide", [f"{name}/{number}.png" for name in "ab" for number in range(10)])
    gradient = np.linspace(0, 255, 3 * 40 * 80).reshape(40, 80, 3).astype(np.uint8)
    Image.fromarray(gradient).save("wide/a/0.png")
    quick = ["data=folder", "data.root=wide", "data.image_size=16", "train.max_minutes=1e-9"]
    run.succeeds(*TRAIN, *quick, f"data.fit={fit}")
    expected, _ = read_image(Path("wide/a/0.png"), Reading((16, 16), fit))
    trained = vit_train.load("run/checkpoints/last.safetensors")
    for image in ("wide/a/0.png", gradient):
        assert np.array_equal(trained.pixels(image), expected)


def test_images_that_are_higher_than_wide_are_used_like_square_ones(run: Run) -> None:
    write_images("bright", [f"a/{number}.png" for number in range(30)], (150, 150, 150), (20, 40))
    write_images("bright", [f"b/{number}.png" for number in range(30)], (60, 60, 60), (20, 40))
    augmented = [
        *("augment.policy=autoaugment", "augment.erase_prob=0.5", "augment.cutmix_alpha=1"),
        *("augment.crop_scale=0.5", "augment.crop_padding=2"),
    ]
    own = ["data=folder", "data.root=bright", "data.image_size=[32,16]"]
    run.says("32×16 (height × width)", *TRAIN, *own, *augmented, "train.batch_size=8")
    run.succeeds("vit-eval", "ckpt=run", "robustness=true", "out=worse")
    report = Path("worse/report.html").read_text(encoding="utf-8")
    assert "32 by 16 pixels (height by width)" in report
    run.succeeds("vit-eval", "ckpt=run", "data.image_size=[48,32]")
    run.fails("one number of at least 16", "vit-eval", "ckpt=run", "data.name=shapes")
    trained = vit_train.load("run")
    image = Image.open("bright/a/0.png")
    assert trained.predict(image) == trained.predict("bright/a/0.png")
    assert trained.pixels(image).shape == (3, 32, 16)
    run.succeeds("vit-explain", "ckpt=run", "images=bright/a/0.png", "out=maps.png")
    run.succeeds("vit-explain", "ckpt=run", "method=all")
    run.succeeds("vit-export", "ckpt=run", "out=exported.safetensors", "format=safetensors")
    run.fails("that are not square", "vit-export", "ckpt=run", "format=timm", "out=timm")
    run.fails(
        "html= does not support images that are not square",
        "vit-explain",
        "ckpt=run",
        "html=demo.html",
    )
    # Fine-tuning takes the shape of the images, too, and may change it.
    again = ["vit-train", "data=folder", "data.root=bright", "init_from=exported.safetensors"]
    once = ["train.epochs=1", "train.batch_size=8"]
    run.says("data.image_size=[32,16]", *again, *once, "hydra.run.dir=again")
    run.succeeds(*again, *once, "data.image_size=[16,32]", "hydra.run.dir=turned")
    for task in ("reconstruct", "autoregress"):
        small = ["train.epochs=1", "task.decoder_depth=1", f"task={task}", f"hydra.run.dir={task}"]
        run.succeeds(*TRAIN, *own, *small)
        run.succeeds("vit-explain", f"ckpt={task}")
    wrong = ["vit-train", *own[:2]]
    run.succeeds("vit-train", "config=run", "data.image_size=[16,16]", "hydra.run.dir=square")
    run.succeeds("vit-results", "run", "square", "--out=out", "--baseline=image_size=[32,16]")
    for size in ("[32,16,8]", "[32,0]", "wide"):
        words = "a positive number of pixels, or two for [height,width]"
        run.fails(words, *wrong, f"data.image_size={size}")
    run.fails("must divide the image size [32, 18]", *wrong, "data.image_size=[32,18]")


def test_scans_of_12_bits_are_read_alike_in_training_evaluation_and_prediction(run: Run) -> None:
    rng = np.random.default_rng(0)
    for name, number in product(("dim", "lit"), range(20)):
        pixels = rng.integers(0, 1200, (16, 16)) + 2800 * (name == "lit")
        Path("scans", name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint16)).save(f"scans/{name}/{number}.tif")
    said = run.says(
        "4,095 is shown as white", *TRAIN, "data=folder", "data.root=scans", "data.image_size=16",
        "train.epochs=4", "train.batch_size=8",
    ).said  # fmt: skip
    assert "no contrast" not in said
    run.says("100.00%", "vit-eval", "ckpt=run", "data.root=scans")
    Image.fromarray(np.full((16, 16), 60_000, np.uint16)).save("scans/dim/faulty.tif")
    Path("decisions.csv").write_text("path,what\ndim/faulty.tif,leave out\n", encoding="utf-8")
    own = ["data=folder", "data.root=scans", "data.decisions=decisions.csv"]
    run.says("4,095 is shown as white", "vit-data", *own)
    trained = vit_train.load("run")
    assert trained.meta.white_level == 4095
    # A scan of few bits alone would be brighter.
    assert trained.pixels("scans/dim/0.tif").max() < 80 < trained.pixels("scans/lit/0.tif").min()


def test_a_table_is_trained_on_evaluated_and_compared_with_another(run: Run) -> None:
    names = [f"{name}{number}.png" for name in "ab" for number in range(12)]
    write_images("files", names, size=(16, 16))
    lines = [f"files/{name};{name[0]};{name[1:-4]}" for name in names]
    Path("mine.csv").write_text("\n".join(["path;label;group", *lines]), encoding="utf-8")
    own = ["data=table", "data.file=mine.csv", "data.image_size=16", "data.val_fraction=0.3"]
    run.succeeds(*TRAIN, *own, "train.epochs=1")
    run.says("mine, test:", "vit-eval", "ckpt=run")
    settings = asdict(vit_train.load("run").meta.config) | {"data": {"file": "/home/me/mine.csv"}}
    assert portable(settings)["data"]["file"] == "mine.csv"
    write_images("new/files", ["a0.png", "b0.png"])
    table = "path,label,split\nfiles/a0.png,a,test\nfiles/b0.png,b,test\n"
    Path("new/new.csv").write_text(table, encoding="utf-8")
    outcome = run.says("new, test:", "vit-eval", "ckpt=run", "data.file=new/new.csv")
    assert len(list(Path("run").glob("eval-test*/report.html"))) == 2
    assert "left out" not in outcome.out  # as the images of these names beside mine.csv would be
    words = "data.file=new.csv is not a setting of data.name=folder"
    run.fails(words, "vit-eval", "ckpt=run", "data.name=folder", "data.file=new.csv")


def test_a_relabeled_table_compares_two_runs_in_any_order_of_its_rows(run: Run) -> None:
    """The images of weight 0, too, have their places in the lists of the runs."""
    names = [f"files/{name}{number}.png" for name in "ba" for number in range(15)]
    write_images(".", names, size=(16, 16))
    rows = [f"{name},{name[6]},{'' if number else 0}" for number, name in enumerate(names)]
    own = ["data=table", "data.file=mine.csv", "data.image_size=16", "data.test_fraction=0.3"]
    for folder in ("run", "other"):
        Path("mine.csv").write_text("\n".join(["path,label,weight", *rows]), encoding="utf-8")
        run.succeeds(*TRAIN[:-1], *own, "train.epochs=1", f"hydra.run.dir={folder}")
        assert len(csv_rows(f"{folder}/images.csv")) == 30
        rows[-1] = f"{names[-1]},b,"
    run.succeeds("vit-eval", "ckpt=[run,other]")


UNEVEN = [
    *("vit-train", "data=folder", "data.image_size=8", "augment=none", "model.embed_dim=8"),
    *("model.depth=1", "model.patch_size=8", "model.head=gap"),
]
WAYS = ("data.sampler=balanced", "task.class_weights=auto")


def test_each_setting_gives_both_classes_the_same_chance(run: Run) -> None:
    """All images are the same."""
    for folder, count in {"train/cat": 25, "train/dog": 5, "test/cat": 3, "test/dog": 1}.items():
        Path("images", folder).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (127, 127, 127)).save(f"images/{folder}/{number}.png")
    quiet = [
        *(*UNEVEN, "data.root=images", "data.val=none", "train.epochs=8", "train.batch_size=10"),
        *("optim.lr=0.05", "task.label_smoothing=0"),
    ]
    words = "uneven classes: 25 training images of cat, 5 of dog"
    outcome = run.says(words, *quiet, "train.max_minutes=1e-9")
    assert all(way in outcome.out for way in WAYS)
    for way in WAYS:
        outcome = run.says("balanced 50.00%", *quiet, way, f"hydra.run.dir={way[:4]}")
        assert "uneven classes" not in outcome.out
        answer = vit_train.load(way[:4]).predict("images/test/cat/0.png")
        assert dict(answer.top)["dog"] == pytest.approx(0.5, abs=0.08)  # 1/6 without the setting
        assert read_json(Path(way[:4], "summary.json"))["test"]["final"]["balanced_acc"] == 0.5


@pytest.fixture
def rare(run: Run) -> list[str]:
    """A command that trains on dark images of a common class and bright ones of a rare class."""
    for part, common in (("train", 160), ("val", 20), ("test", 20)):
        for name, color, count in (("fine", (60,) * 3, common), ("broken", (180,) * 3, 4)):
            images = [f"{number}.png" for number in range(count)]
            write_images(f"rare/{part}/{name}", images, color, (8, 8))
    return [*UNEVEN, "data.root=rare", "train.epochs=6", "train.batch_size=16", "optim.lr=0.02"]


def test_smoothed_labels_leave_the_weighted_classes_apart(run: Run, rare: list[str]) -> None:
    """With torch's weights, every image is taken for the rare class: 50 % balanced."""
    run.succeeds(*rare, "augment.mixup_alpha=0.2", "task.class_weights=auto", "hydra.run.dir=run")
    final = read_json(Path("run/summary.json"))["test"]["final"]
    assert final["balanced_acc"] > 0.95 and final["acc"] > 0.9


@pytest.mark.parametrize("metric, better", [("balanced_acc", max), ("loss", min)])
def test_the_best_epoch_of_uneven_classes_has_the_best_balanced_accuracy(
    run: Run, rare: list[str], metric: str, better: Callable[..., float]
) -> None:
    chosen = [] if metric == "balanced_acc" else [f"checkpoint.metric={metric}"]
    run.succeeds(*rare, *chosen, "hydra.run.dir=run")
    best = read_json(Path("run/summary.json"))["best_val"]
    rows = csv_rows("run/metrics.csv")
    assert best[metric] == better(float(row[f"val_{metric}"]) for row in rows)
    same = [row for row in rows if float(row[f"val_{metric}"]) == best[metric]]
    assert best["loss"] == min(float(row["val_loss"]) for row in same)


def photos(numbers: range) -> list[str]:
    return [f"{name}/{number}.png" for name in ("blue", "green", "red") for number in numbers]


DATA = ["data=folder", "data.root=photos", *SMALL_MODEL, "train.epochs=1", "train.batch_size=8"]
LEARN = ["vit-train", *DATA, "data.image_size=16"]
RUN = [*LEARN, "hydra.run.dir=run"]


def evaluated(run: Run, out: str, *arguments: str, ckpt: str = "run") -> tuple[set[str], str]:
    """The images that a run was evaluated on, by class and file name, and the caveat."""
    run.succeeds("vit-eval", f"ckpt={ckpt}", f"out={out}", *arguments)
    images = {"/".join(Path(row["image"]).parts[-2:]) for row in csv_rows(f"{out}/predictions.csv")}
    return images, read_json(Path(out, "results.json"))["caveat"]


def is_trusted(out: str) -> bool:
    """Whether the evaluated images can tell how far to trust the model."""
    page = Path(out, "report.html").read_text(encoding="utf-8")
    found = read_json(Path(out, "results.json"))["biased"]
    assert found == ("This page cannot tell whether to trust the model." in page)
    return not found


@pytest.fixture
def trained(run: Run, small_runs: Path) -> set[str]:
    """Make run/, trained on photos/CLASS/*.png, and return its test images.

    It is trained only once, for all tests.
    """
    original = small_runs / "photos"
    with FileLock(f"{original}.lock"):
        if not original.exists():
            write_images("photos", photos(range(10)), size=(20, 25))
            run.succeeds(*RUN)
            assert evaluated(run, "own")[1] == ""
            Path(shutil.copytree(".", f"{original}.new")).rename(original)
    shutil.copytree(original, ".", dirs_exist_ok=True)
    return {"/".join(Path(row["image"]).parts[-2:]) for row in csv_rows("own/predictions.csv")}


def test_a_folder_that_has_grown_is_tested_on_held_out_and_new_images(
    run: Run, trained: set[str]
) -> None:
    for split, words in (("train", "The model was trained on these images."), ("test", "")):
        found = evaluated(run, "larger", f"split={split}", "data.image_size=24")
        assert found[1] == words and (found[0] == trained) == (split == "test")
        assert is_trusted("larger") == (split == "test")
    new = write_images("photos", photos(range(10, 14)))
    words = "27 images left out: used for training or validation by this model, or by"
    for more in ([], ["data.image_size=24"], ["data.image_size=24", "data.root=photos"]):
        images, caveat = evaluated(run, "grown", *more)
        assert images == trained | set(new) and words in caveat and is_trusted("grown")
    assert words in Path("grown/report.html").read_text(encoding="utf-8")
    assert read_json(Path("grown/results.json"))["image_size"] == 24
    _, caveat = evaluated(run, "mixed", "split=val", "data.root=photos")
    assert caveat == "The model may have been trained on some of these images."
    assert not is_trusted("mixed")


@pytest.mark.parametrize("groups", [[], [r"data.group_by='\d+'"]], ids=["files", "groups"])
def test_a_grown_folder_keeps_its_split_and_two_runs_are_compared_on_what_neither_has_seen(
    run: Run, groups: list[str]
) -> None:
    """New files alone are divided; those of an earlier group join it."""
    fractions = ["data.test_fraction=0.25", "data.val_fraction=0.25", *groups]
    odd = [f"-x/{number}.png" for number in range(0, 16, 2)]  # as formulas in a spreadsheet
    write_images("photos", [*photos(range(0, 16, 2)), *odd])
    run.succeeds(*RUN, *fractions)
    write_images("photos", [*photos(range(1, 16, 2)), "red/2-more.png"])
    run.succeeds(*LEARN, *fractions, "data.split_as=run", "hydra.run.dir=grown")
    before, after = (
        {row["path"]: row["split"] for row in csv_rows(f"{each}/images.csv")}
        for each in ("run", "grown")
    )
    assert after.items() > before.items() and len(after) == 57
    counts = Counter(after[name] for name in after.keys() - before.keys())
    assert 5 <= counts["test"] <= 7 and 3 <= counts["val"] <= 5
    if groups:
        assert after["red/2-more.png"] == before["red/2.png"]
    run.succeeds("vit-eval", "ckpt=[run,grown]")
    (folder,) = Path("run").glob("eval-test-*")
    compared = {row["image"] for row in csv_rows(folder / "A/predictions.csv")}
    assert not Path("run/eval-test").exists()
    assert compared == {name for name, split in after.items() if split == "test"}
    new = write_images("others", [*photos(range(4)), "red/without a number.png"])
    assert evaluated(run, "apart", "data.root=others", ckpt="grown")[0] == set(new)
    assert ("are in groups" in evaluated(run, "own", ckpt="grown")[1]) == bool(groups)
    if groups:  # a single new one is trained on
        new = write_images("photos", photos(range(20, 21)))
        Path("grown, twice").mkdir()
        Path("grown").rename("grown, twice/1")
        Path("run").rename("elsewhere")  # whose splits grown still knows
        assert evaluated(run, "moved", ckpt="grown, twice/1")[0] >= compared
        run.succeeds(*LEARN, *fractions, "data.split_as=grown, twice", "hydra.run.dir=again")
        run.succeeds("vit-data", *DATA[:2], *fractions, "data.split_as=grown, twice")
        run.fails("must be the folder of a run", "vit-data", *DATA[:2], "data.split_as=photos")
        rows = csv_rows("again/images.csv")
        assert {row["split"] for row in rows if row["path"] in new} == {"train"}
        return
    words = "must be in one split"  # of these groups, the run knew nothing
    run.fails(words, *LEARN, r"data.group_by='\d+'", "data.split_as=run", "hydra.run.dir=no")
    run.succeeds(*LEARN, "data.split_seed=1", "hydra.run.dir=anew")
    run.succeeds("vit-eval", "ckpt=[run,anew]", "out=others")
    tested = [row["path"] for row in csv_rows("anew/images.csv") if row["split"] == "test"]
    compared = {row["image"] for row in csv_rows("others/A/predictions.csv")}
    assert compared == {name for name in tested if before.get(name, "test") == "test"}
    write_images("photos/train/red", ["0.png"])
    write_images("photos/test/red", ["0.png"])
    run.fails("set data.split_as=null", *LEARN, "data.split_as=run", "hydra.run.dir=no")


def test_copies_in_training_and_test_images_are_counted(run: Run) -> None:
    for name in write_images("photos", photos(range(10))):
        shutil.copy(Path("photos", name), Path("photos", name).with_suffix(".copy.png"))
    outcome = run.succeeds(*RUN, "data.test_fraction=0.4")
    said = re.search(r"copies of (\d+) test images are among the training", outcome.out)
    _, caveat = evaluated(run, "own")
    assert caveat == f"The model was trained or validated on copies of {said[1]} test images."
    assert not is_trusted("own")


def test_one_copy_in_a_hundred_test_images_does_not_spoil_the_test(run: Run) -> None:
    write_images("photos/train", photos(range(4)))
    write_images("photos/test", photos(range(10, 44)))
    shutil.copy("photos/train/red/0.png", "photos/test/red/0.png")
    run.succeeds(*RUN)
    assert "on copies of 1 test image." in evaluated(run, "own")[1] and is_trusted("own")


def test_in_another_folder_the_images_of_training_are_left_out(run: Run, trained: set[str]) -> None:
    held_out, *left = sorted(trained)
    shutil.copytree("photos", "others")
    for name in left:
        Path("others", name).unlink()
    assert evaluated(run, "new", "data.root=others")[0] == {held_out}
    Path("others", held_out).unlink()
    words = "all 27 images were used for training or validation by this run"
    run.fails(words, "vit-eval", "ckpt=run", "data.root=others", "out=none")
    assert not Path("none").exists()
    # Nothing is tested on if all was seen.
    for name in trained:
        Path("photos", name).unlink()
    words = "all 3 test images were used to train or validate the pretrained"
    run.fails(words, *LEARN, "init_from=run", "hydra.run.dir=x")


def test_patches_that_do_not_fit_are_refused_before_files_are_read(run: Run) -> None:
    Path("photos/red").mkdir(parents=True)
    Path("photos/red/broken.png").write_bytes(b"no image")
    command = ["vit-train", *DATA, "data.image_size=20", "model.patch_size=8"]
    assert "broken" not in run.fails("patch", *command).err


def test_a_subset_of_a_test_folder_is_taken_of_the_images_not_seen(run: Run) -> None:
    write_images("photos/train", photos(range(6)))
    write_images("photos/test", photos(range(20, 24)))
    run.succeeds(*RUN)
    for name in photos(range(2)):  # half of the test images are now some that were trained on
        copy = f"{name[:-5]}2{name[-5:]}"
        shutil.copy(f"photos/train/{name}", f"photos/test/{copy}")
    assert evaluated(run, "half", "data.test_subset=6")[0] == set(photos(range(22, 24)))


def test_a_validation_folder_of_the_runs_own_is_evaluated_wherever_it_lies(run: Run) -> None:
    for number, part in enumerate(("train", "val", "test")):
        write_images(f"photos/{part}", photos(range(3 * number, 3 * number + 3)))
        write_images(f"others/{part}", photos(range(20 + number, 21 + number)))
    run.succeeds(*RUN)
    shutil.move("photos", "moved")
    for root, split, images, words in (
        ("moved", "val", range(3, 6), "The epoch was chosen on these images"),
        ("moved", "test", range(6, 9), ""),
        ("others", "val", range(21, 22), ""),
    ):
        found, caveat = evaluated(run, f"{root}-{split}", f"data.root={root}", f"split={split}")
        assert found == set(photos(images))
        assert caveat.startswith(words) and bool(caveat) == bool(words)
        assert is_trusted(f"{root}-{split}") == (not words)


def test_test_images_that_chose_the_epoch_can_be_evaluated_and_are_no_copies(run: Run) -> None:
    for part, numbers in (("train", range(6)), ("test", range(9, 12))):
        write_images(f"photos/{part}", photos(numbers))
    assert "remove the copies" not in run.succeeds(*RUN, "data.val=test").out
    _, caveat = evaluated(run, "own", "data.root=photos")
    assert caveat.startswith("The epoch was chosen on the run's own test images")
    assert not is_trusted("own")
    assert evaluated(run, "test")[1].startswith("The epoch was chosen on these images")
    assert not is_trusted("test")
    shutil.copy("photos/train/red/0.png", "photos/test/red/0.png")
    _, caveat = evaluated(run, "more", "data.root=photos")
    assert caveat.startswith("1 image left out") and "The epoch was chosen on the run's" in caveat


LATER = {
    "larger": ["init_from=run", "data.image_size=24"],
    "cropped": ["init_from=run", "data.fit=crop"],
    "student": ["task=distill", "task.teacher=run"],
}


@pytest.mark.parametrize("later", LATER)
def test_what_a_model_learned_from_has_seen_is_no_test_image(
    run: Run, trained: set[str], later: str
) -> None:
    """As many images as the folder had are new, so that its split is another."""
    new = set(write_images("photos", photos(range(10, 20))))
    train = [*LEARN, "data.test_fraction=0.5"]
    outcome = run.succeeds(*train, *LATER[later], "hydra.run.dir=later")
    said = re.search(r"(\d+) test images left out, because the pretrained model", outcome.out)
    tested, caveat = evaluated(run, "later/eval", ckpt="later")
    assert tested and tested <= trained | new and len(tested) + int(said[1]) == 30
    assert f"{said[1]} images left out" in caveat
    summary = read_json(Path("later/summary.json"))
    assert summary["images"]["test"] == summary["test"]["final"]["count"] == len(tested)

    # A third model, which learns from the second, has the first one's images from it.
    write_images("photos", photos(range(20, 24)))
    size = [each for each in LATER[later] if "image_size" in each]
    run.succeeds(*train, *size, "init_from=later", "hydra.run.dir=third")
    tested, _ = evaluated(run, "third/eval", ckpt="third")
    assert not tested & (set(photos(range(10))) - trained)


def test_a_run_that_goes_on_tests_on_the_images_it_began_with(run: Run, trained: set[str]) -> None:
    write_images("photos", photos(range(10, 20)))
    began = [*LEARN, "data.test_fraction=0.5", "data.val_fraction=0.3", "hydra.run.dir=later"]
    said = run.succeeds(*began, "init_from=run", "train.max_minutes=1e-9").said
    assert "so validation results are too optimistic" in said and "stopped after step" in said
    run.succeeds("vit-train", "resume=later", "train.max_minutes=null")
    run.succeeds("vit-train", "extend=later", "train.epochs=1", "hydra.run.dir=longer")
    first, longer = (read_json(Path(name, "summary.json")) for name in ("later", "longer"))
    assert first["images"] == longer["images"] and first["images"]["test"] < 30
    assert first["fingerprint"] == longer["fingerprint"]


def test_a_new_class_is_added_and_the_models_compared_on_the_classes_of_both(run: Run) -> None:
    fractions = ["data.test_fraction=0.25", "data.val_fraction=0.25"]
    write_images("photos", [name for name in photos(range(12)) if name[:4] != "blue"])
    run.succeeds(*RUN, *fractions)
    write_images("photos", [name for name in photos(range(12)) if name[:4] == "blue"])
    begin = ["vit-train", *DATA, *fractions, "train.max_minutes=1e-9", "optim.lr=1e-12"]
    same = [*begin, "data.image_size=16"]
    words = "head is reused for 2 classes of the same name, new: blue;"
    divided = [*same, "data.split_as=run", "init_from=run", "hydra.run.dir=grown"]
    assert "too optimistic" not in run.says(words, *divided).said
    run.succeeds(*same, "seed=1", "hydra.run.dir=divided-anew")
    old, new = (vit_train.load(each).model for each in ("run", "grown"))
    for key in ("head.weight", "head.bias"):
        rows = new.state_dict()[key]
        torch.testing.assert_close(rows[1:], old.state_dict()[key])
        assert rows[0].abs().max() < 1e-9 < rows[1:].abs().max()

    for other in ("grown", "divided-anew"):
        run.succeeds("vit-eval", f"ckpt=[run,{other}]", f"out=with-{other}")
        first, second = (right_of(f"with-{other}/{each}") for each in "AB")
        tested = images_of(other, "test") - images_of("run", "train", "val")
        assert second.keys() == tested
        assert first.keys() == {name for name in tested if name[:4] != "blue"}
        results = read_json(Path(f"with-{other}/results.json"))
        (pair,) = results["pairs"]
        assert results["common_classes"] == ["green", "red"] and pair["images"] == len(first)
        assert pair["only_first"] == sum(right > second[name] for name, right in first.items())
        assert pair["only_second"] == sum(right < second[name] for name, right in first.items())
        for model in results["models"]:  # with the classes in the same order
            counts = zip(model["per_class"], model["result"]["per_class_count"], strict=True)
            assert all(row["support"] == count for row, count in counts if row["name"] != "blue")
        blues = [right for name, right in second.items() if name[:4] == "blue"]
        page = Path(f"with-{other}/report.html").read_text(encoding="utf-8")
        assert (
            f"B ({other}) also knows blue, and recognizes\n{sum(blues)} of {len(blues)} image"
            in page
        )

    compare = ["vit-eval", "ckpt=[run,grown]"]
    run.fails("compared only on test images (split=test)", *compare, "split=val")
    write_images("blues", ["blue/a.png", "blue/b.png"])
    run.fails(
        "none of the 2 test images that no model was trained on is of a class that all",
        *compare,
        "data.root=blues",
    )
    run.succeeds(*begin, "data.image_size=24", "hydra.run.dir=large")
    run.fails("only if they read images alike", "vit-eval", "ckpt=[run,large]")


def right_of(folder: str) -> dict[str, int]:
    """1 for each image that an evaluated model gets right, else 0."""
    return {row["image"]: int(row["correct"]) for row in csv_rows(f"{folder}/predictions.csv")}


def images_of(folder: str, *splits: str) -> set[str]:
    """The images in some splits of a run."""
    return {row["path"] for row in csv_rows(f"{folder}/images.csv") if row["split"] in splits}
