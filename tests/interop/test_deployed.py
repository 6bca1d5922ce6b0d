"""predict.py of format=deploy answers as vit-predict does, without PyTorch: `pytest -m interop`."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, write_images
from odd_photos import write_odd_photos
from PIL import Image
from test_cli_tags import TRAIN, draw_squares
from test_docs import ROOT, blocks

import vit_train
from interop.models import SETTINGS

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("default"),  # of the other libraries
]
FILES = {"README.md", "model.json", "model.onnx", "predict.py", "requirements.txt"}
# A photo's label, "" if it cannot be read, and the probability in percent.
Answer = tuple[str, float]


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The exported predict.py, in a process where PyTorch cannot be imported."""
    code = "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, "deployed/predict.py", *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8")


def answers_of_script(photos: Sequence[str], *options: str) -> list[Answer]:
    done = script(*options, *photos)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [*map(repr, photos)]
    return [
        (found[1] or found[2], float(found[3]))
        if (found := re.search(r": (?:(unsure): )?(.+) ([\d.]+)%$", line))
        else ("", 0.0)
        for line in lines
    ]


def answers_of_vit_predict(path: str) -> tuple[list[str], list[Answer]]:
    """The photos in a JSON file of vit-predict, and the answers."""
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return [line["image"] for line in lines], [
        ("", 0.0) if "error" in line else (line["predicted"] or "unsure", 100 * line["probability"])
        for line in lines
    ]


def test_500_odd_photos_get_the_answers_of_vit_predict(run: Run) -> None:
    """The same classes, abstentions and broken photos; the probabilities to the printed digit."""
    write_odd_photos(Path("photos"), 500)
    model = "ckpt=builtin:cifar10"
    takes = "accuracies for predict.py --abstain, reached on the validation images: 0.8, 0.9, 0.95"
    run.says(takes, "vit-export", model, "format=deploy", "out=deployed")
    assert {path.name for path in Path("deployed").iterdir()} == FILES
    run.succeeds("vit-predict", model, "images=photos", "abstain=0.95", "out=p.jsonl")
    photos, expected = answers_of_vit_predict("p.jsonl")
    found = answers_of_script(photos, "--abstain", "0.95")
    labels = [label for label, _ in expected]
    assert [label for label, _ in found] == labels and len(labels) == 500
    assert min(labels.count(""), labels.count("unsure")) > 50 and len({*labels}) > 8
    assert np.allclose([each for _, each in found], [each for _, each in expected], atol=0.06)

    assert "there is no threshold for 0.97" in script("--abstain", "0.97", photos[0]).stderr
    assert script(photos[labels.index("")], "nowhere.jpg").returncode == 1


@pytest.mark.parametrize(
    ("fit", "val", "why"),
    [
        ("stretch", "split", "run vit-eval first"),
        ("pad", "none", "the run held out no validation images"),
    ],
)
def test_photos_are_fitted_and_whitened_as_in_training(
    run: Run, fit: str, val: str, why: str
) -> None:
    write_images("train", [f"{name}/{number}.png" for name in "ab" for number in range(10)])
    dark = Image.fromarray(np.full((20, 20), 3_000, np.uint16))
    dark.save("train/a/deep.png")  # in 12 bits
    folder = ["data=folder", "data.root=train", f"data.fit={fit}", f"data.val={val}"]
    run.succeeds("vit-train", *SETTINGS, *folder, "train.epochs=1", "hydra.run.dir=run")
    run.succeeds("vit-export", "ckpt=run", "format=deploy", "out=deployed")
    assert (
        json.loads(Path("deployed/model.json").read_text(encoding="utf-8"))["white_level"] == 4_095
    )
    card = Path("deployed/README.md").read_text(encoding="utf-8")
    assert "not calibrated" in card and "python predict.py photo.jpg" in card
    write_odd_photos(Path("photos"), 120)
    run.succeeds("vit-predict", "ckpt=run", "images=photos", "out=p.jsonl")
    photos, expected = answers_of_vit_predict("p.jsonl")
    assert answers_of_script(photos) == [
        (label, pytest.approx(each, abs=0.06)) for label, each in expected
    ]
    assert f"none; {why}" in script("--abstain", "0.95", "x.png").stderr


def test_tags_are_those_of_vit_predict(run: Run) -> None:
    draw_squares()
    run.succeeds(*TRAIN)
    run.succeeds("vit-eval", "ckpt=run")  # chooses the thresholds
    run.succeeds("vit-export", "ckpt=run", "format=deploy", "out=deployed")
    run.succeeds("vit-predict", "ckpt=run", "images=*.png", "out=p.jsonl")
    photos, expected = answers_of_vit_predict("p.jsonl")
    found = answers_of_script(photos)
    for (label, chance), (other, other_chance) in zip(found, expected, strict=True):
        tags = {"no tag"} if other == "unsure" else {*other.split("|")}
        assert {*label.split("|")} == tags and chance == pytest.approx(other_chance, abs=0.06)
    assert len({label for label, _ in found}) > 4


def test_the_server_of_the_documentation_answers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    (code,) = blocks(ROOT / "docs/using.md", "py")
    run.succeeds("vit-export", "ckpt=builtin:cifar10", "format=deploy", "out=deployed")
    monkeypatch.syspath_prepend("deployed")
    names: dict[str, Any] = {}
    try:
        exec(code, names)
        with pytest.raises(SystemExit, match="no threshold for 95 %"):
            exec(code.replace('get("0.95")', 'get("1")'), {})
    finally:
        del sys.modules["predict"]
    write_images(".", ["a.png"])
    expected = vit_train.load("builtin:cifar10").predict("a.png")
    client = TestClient(names["app"])
    for threshold, label in ((0, expected.label), (expected.probability + 1e-4, "unsure")):
        names["threshold"] = threshold
        answer = client.post("/predict", files={"photo": Path("a.png").read_bytes()}).json()
        assert answer == {
            "label": label,
            "probability": pytest.approx(expected.probability, abs=1e-5),
        }
    assert client.post("/predict", files={"photo": b"no image"}).status_code == 400
