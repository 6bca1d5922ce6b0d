"""What a run says at its start."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import SMALL, SMALL_MODEL, Run

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


def test_a_classifier_from_the_encoder_is_suggested(run: Run) -> None:
    more = ["task=reconstruct", "task.decoder_depth=1", "hydra.run.dir=my run"]
    outcome = run.succeeds("vit-train", *SMALL, *more)
    (line,) = re.findall(r"vit-train (data=.+?)  # a classifier from its encoder", outcome.out)
    quick = [*SMALL, "train.max_minutes=1e-9"]
    outcome = run.succeeds("vit-train", *quick, *shlex.split(line), "hydra.run.dir=next")
    assert "starts from the encoder of my run" in one_line(outcome.out)


def one_line(text: str) -> str:
    return " ".join(text.split())
