"""predict.py of format=deploy reads photos and predicts as vit-predict does.

PyTorch stands in for onnxruntime, which these tests do not need; tests/interop/test_deployed.py
runs the exported folder itself.
"""

import ast
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_images
from odd_photos import KINDS, write_odd_photos
from test_packaging import PROJECT
from torch import nn

import vit_train
from vit_train.base.text import render
from vit_train.config.data import FIT, FolderConfig
from vit_train.data.decode import BrokenImage
from vit_train.interop import formats
from vit_train.interop.exportable import Exportable
from vit_train.interop.formats import deploy_folder_of
from vit_train.trained.model import Trained


def script_of(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names in predict.py of the model's folder, whose logits PyTorch computes."""

    @torch.no_grad()
    def run(names: None, inputs: dict[str, Any]) -> list[Any]:
        images = torch.from_numpy(inputs["images"])
        return [trained.model(trained.normalize(images)).numpy()]

    runtime = SimpleNamespace(InferenceSession=lambda path, providers: SimpleNamespace(run=run))
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    monkeypatch.setattr(formats, "onnx_of", lambda model: b"")
    Path("deployed").mkdir()
    for name, content in deploy_folder_of(
        Exportable(trained.model, *trained, normalize=True)
    ).items():
        Path("deployed", name).write_bytes(content)
    return runpy.run_path("deployed/predict.py")


@pytest.mark.filterwarnings("ignore")  # of unusual metadata, as outside tests
@pytest.mark.parametrize("fit", FIT)
def test_every_kind_of_photo_is_read_to_the_bit_and_predicted(
    fit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, meta = vit_train.load("builtin:cifar10")
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))  # fast
    data = FolderConfig(root="photos", fit=fit, white_level=4_095 if fit == "pad" else None)
    trained = Trained(model, replace(meta, config=replace(meta.config, data=data)))
    script = script_of(trained, monkeypatch)
    write_odd_photos(Path("photos"), len(KINDS))
    photos, broken = [], []
    for path in sorted(Path("photos").iterdir()):
        with path.open("rb") as photo:
            try:
                pixels = trained.pixels(path)
            except BrokenImage:
                broken.append(path)
                with pytest.raises(Exception, match=""):
                    script["read"](photo)
            else:
                photos.append(path)
                assert np.array_equal(script["read"](photo)[0], pixels), path
    assert len(broken) == 6
    for path, expected in zip(photos, trained.predict(photos), strict=True):
        with path.open("rb") as photo:
            label, probability = script["predict"](photo)
        assert (label, probability) == (expected.label, pytest.approx(expected.probability)), path
    script["ABOUT"]["max_pixels"] = 10
    with path.open("rb") as photo, pytest.raises(ValueError, match="more than 10 pixels"):
        script["read"](photo)


def test_the_script_abstains_at_the_accuracies_that_were_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model, meta = vit_train.load("builtin:cifar10")
    write_images(".", ["a.png"])
    expected = vit_train.load("builtin:cifar10").predict("a.png")
    limits = {"0.8": expected.probability - 1e-3, "0.9": expected.probability + 1e-3, "0.95": None}
    answer = f"'a.png': {{}}{expected.label} {expected.probability:.1%}"
    for thresholds, accuracy, says in (
        (limits, "0.8", answer.format("")),
        (limits, "0.9", answer.format("unsure: ")),
        (limits, "0.95", "no threshold for 0.95 (reached on the validation images: 0.8, 0.9)"),
        ({"0.95": None}, "0.95", "none; add images (0.95 needs at least 59 for"),
        ({}, "0.95", "reached on the validation images: none; run vit-eval first)"),
    ):
        shutil.rmtree("deployed", ignore_errors=True)
        script_of(Trained(model, replace(meta, thresholds=thresholds)), monkeypatch)
        monkeypatch.setattr(sys, "argv", ["predict.py", "--abstain", accuracy, "a.png"])
        with pytest.raises(SystemExit) as done:
            runpy.run_path("deployed/predict.py", run_name="__main__")
        assert done.value.code == (0 if says.startswith("'a.png'") else 2)
        assert says in "".join(capsys.readouterr())


@pytest.mark.parametrize("fit", FIT)
@pytest.mark.parametrize("tags", [True, False])
def test_the_script_is_short_and_needs_three_packages(fit: str, tags: bool) -> None:
    code = render("interop", "predict.py.txt", fit=fit, tags=tags)
    assert sum(bool(line) for line in code.splitlines()) <= 60
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(code))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - sys.stdlib_module_names == {"numpy", "onnxruntime", "PIL"}
    needed = {*render("interop", "requirements.txt").splitlines()}
    extra = PROJECT["optional-dependencies"]["export"]
    assert len(needed) == 3 and needed < {*PROJECT["dependencies"], *extra}
