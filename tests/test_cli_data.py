"""Each source as its user meets it: through the command line."""

from itertools import product
from pathlib import Path

import loopback as server
import pytest
from conftest import SMALL_MODEL, Run
from PIL import Image
from small_sets import small_cifar, tar_gz
from torchvision.datasets import CIFAR10

import vit_train
from vit_train.data.config import MAX_PIXELS, ArchiveConfig, Cifar10Config
from vit_train.data.sources import LOADERS
from vit_train.runs.config import preset_urls
from vit_train.runs.images import configured
from vit_train.runs.settings import EvalDataConfig

TRAIN = ["vit-train", *SMALL_MODEL, "hydra.run.dir=run"]


def test_download_train_evaluate(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cifar(monkeypatch, tmp_path / "made", CIFAR10)
    content = tar_gz(tmp_path / "made" / CIFAR10.base_folder)
    with server.serve() as web:
        urls = [web.url("/down", server.failing(503)), web.url("/up", server.whole(content))]
        fetching = ["data=cifar10", "data.download=true", f"data.urls=[{','.join(urls)}]"]
        run.succeeds(*TRAIN, *fetching, "data.root=new")
    assert Path("new", CIFAR10.base_folder, "test_batch").exists()
    # The data is found again without a download, and elsewhere if it is said where.
    assert run("vit-eval", "ckpt=run").status == 0
    Path("new").rename("moved")
    run.fails("data.root=FOLDER", "vit-eval", "ckpt=run")
    assert run("vit-eval", "ckpt=run", "data.root=moved").status == 0


def test_a_strangers_run_downloads_nothing_from_its_own_addresses(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_cifar(monkeypatch, tmp_path / "data", CIFAR10)
    asked: list[Cifar10Config] = []
    load = LOADERS[Cifar10Config]
    monkeypatch.setitem(LOADERS, Cifar10Config, lambda given: asked.append(given) or load(given))
    fetching = ["data=cifar10", "data.download=true", "data.urls=[https://evil.example/x.tar.gz]"]
    more = ["train.epochs=1", "train.max_minutes=1e-9"]
    assert run(*TRAIN, *fetching, *more).status == 0
    going_on = ["resume=run", "train.max_minutes=null"]
    assert run("vit-train", *going_on).status == 0
    extending = ["extend=run", "train.epochs=1", "hydra.run.dir=new"]
    assert run("vit-train", *extending).status == 0
    for config in asked[1:]:
        assert not config.download and config.urls == preset_urls("cifar10") != []
    assert len(asked) == 3
    given = ["data=cifar10", "data.download=true", "data.urls=[https://my.example/x.tar.gz]"]
    assert run("vit-train", *extending[:2], *given, "hydra.run.dir=mine").status == 0
    assert asked[3].download and asked[3].urls == ["https://my.example/x.tar.gz"]
    assert run("vit-eval", "ckpt=run").status == 0
    assert asked[4].urls == preset_urls("cifar10")
    other = configured(EvalDataConfig(name="cifar100", download=True), vit_train.load("run").meta)
    assert isinstance(other, ArchiveConfig) and other.urls == preset_urls("cifar100") != []


def test_a_strangers_run_raises_no_limit_of_an_images_pixels(run: Run) -> None:
    """Such a limit keeps a small file from taking all memory; this command line may raise it."""
    for part, name, number in product(("train", "test"), "ab", range(4)):
        path = Path("files", part, name, f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(path)
    limit = f"data.max_pixels={MAX_PIXELS + 1}"
    own = ["data=folder", limit, "data.image_size=8", "data.root=files"]
    assert run(*TRAIN, *own, "train.max_minutes=1e-9", "data.val_fraction=0.3").status == 0
    run.fails(f"add data=folder {limit}", "vit-train", "resume=run")
    more = ["data.val_fraction=0.3", "train.max_minutes=null"]
    assert run("vit-train", "resume=run", *own, *more).status == 0
    meta = vit_train.load("run").meta
    assert configured(EvalDataConfig(), meta).max_pixels == MAX_PIXELS
    assert configured(EvalDataConfig(max_pixels=MAX_PIXELS + 1), meta).max_pixels > MAX_PIXELS


def test_all_mirrors_down_is_one_message(run: Run) -> None:
    with server.serve() as web:
        url = web.url("/down", server.failing(503))
        outcome = run(*TRAIN, "data=cifar10", "data.download=true", f"data.urls=[{url}]")
    assert outcome.status == 1 and "Traceback" not in outcome.err
    assert f"{url}: HTTP Error 503" in outcome.err and "by hand" in outcome.err
    assert outcome.err.startswith("vit-train: could not download cifar-10-python.tar.gz")


def test_a_broken_image_is_one_message_and_can_be_skipped(run: Run) -> None:
    for i in range(12):
        path = Path("tree", ("a", "犬 $x$")[i % 2], f"{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 30), (20 * i, 0, 0)).save(path)
    Path("tree/a/broken.jpg").write_bytes(b"\xff\xd8\xff")
    folder = [*TRAIN, "data=folder", "data.root=tree", "data.image_size=16"]
    outcome = run.fails("tree/a/broken.jpg", *folder)
    assert outcome.err.startswith("vit-train: 1 of 13 image files cannot be used")
    assert "tree/a/broken.jpg" in run.succeeds(*folder, "data.on_error=skip").out
