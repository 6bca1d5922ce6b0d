"""What a run says at its start."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import SMALL, SMALL_MODEL, Run
from PIL import Image

from vit_train.base.reading import read_json
from vit_train.engine import precision


@pytest.mark.parametrize(
    "settings, used",
    [
        (["precision=fp32", *SMALL_MODEL], "fp32"),
        (["precision=bf16", *SMALL_MODEL], "bf16"),
        (["model=cnn", "train.batch_size=32"], None),
    ],
)
def test_another_precision_that_would_be_faster_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, settings: list[str], used: str | None
) -> None:
    data = ["data.train_images=200", "data.test_images=60"]
    for best, speedup in (("bf16", 1.9), ("fp32", 0.52)):
        monkeypatch.setattr(precision, "product_speedup", lambda *_, threads, it=speedup: it)
        outcome = run("vit-train", *data, *settings, "train.max_minutes=1e-9", "hydra.run.dir=run")
        assert outcome.status == 0, outcome.err
        faster = "" if used in (best, None) else f" (precision={best} would be faster here)"
        said = f"{used or best} on cpu{faster} "
        assert said in one_line(outcome.out)
        summary = read_json(Path("run/summary.json"))
        assert (summary["precision"], summary["bf16_speedup"]) == (used or best, speedup)
        shutil.rmtree("run")


def test_the_command_for_a_classifier_of_the_same_images_is_whole(run: Run) -> None:
    more = ["task=reconstruct", "task.decoder_depth=1", "data.split_seed=3"]
    outcome = run("vit-train", *SMALL, *more, "hydra.run.dir=my run")
    (line,) = re.findall(r"vit-train (data=.+?)  +a classifier from it", outcome.out)
    said = shlex.split(line)
    assert {"data.train_images=200", "data.test_images=60", "data.split_seed=3"} < set(said)
    outcome = run("vit-train", *said, "train.max_minutes=1e-9", "hydra.run.dir=next")
    assert outcome.status == 0 and "starts from the encoder of my run" in one_line(outcome.out)


def test_few_steps_on_images_of_ones_own_are_said_with_what_makes_more(run: Run) -> None:
    for number in range(120):
        path = Path("images", "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    data = ["data=folder", "data.root=images", "data.image_size=8", "data.val=none"]
    train = ["vit-train", *SMALL_MODEL, *data, "train.max_minutes=1e-9"]
    outcome = run(*train, "hydra.run.dir=few")
    said = re.search(r"only (\d+) steps in all: try (\S+) (\S+), or pretr", one_line(outcome.out))
    assert said and int(said[1]) < 10, outcome.err or outcome.out
    outcome = run(*train, *said.groups()[1:])
    assert "in all" not in outcome.out
    work = re.search(r"(\d+) epochs of (\d+) steps of 16 images", one_line(outcome.out))
    assert work and 1_800 < int(work[1]) * int(work[2]) < 2_200
    again = run("vit-train", "resume=few", "train.max_minutes=1e-9")
    assert again.status == 0 and "in all" not in again.out
    ours = run("vit-train", *SMALL, "train.max_minutes=1e-9")
    assert ours.status == 0 and "in all" not in ours.out


def one_line(text: str) -> str:
    return " ".join(text.split())
