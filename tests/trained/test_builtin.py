"""Models that travel with the package, and how they are packed."""

import html
import re
from pathlib import Path

import pytest
import torch
from conftest import Run, SmallRun
from small_sets import small_cifar

import vit_train
from benchmarks import pack_builtin
from vit_train.base.reading import read_json
from vit_train.base.writing import write_json
from vit_train.trained import folder as paths
from vit_train.trained.folder import FOLDER, builtin_checkpoint

ROOT = Path(__file__).parents[2]
NAMES = sorted(file.stem for file in FOLDER.glob("*.safetensors"))


@pytest.mark.parametrize("name", NAMES)
def test_a_builtin_model_is_small_and_predicts_without_any_data(name: str) -> None:
    path = builtin_checkpoint(f"builtin:{name}")
    assert path is not None and path.stat().st_size < 3e6
    trained = vit_train.load(f"builtin:{name}")
    assert sum(weight.numel() for weight in trained.model.parameters()) <= 1.3e6
    assert all(weight.dtype == torch.float32 for weight in trained.model.parameters())
    assert trained.meta.temperature is not None and trained.meta.thresholds["0.95"] is not None
    answer = trained.predict(ROOT / "docs/photo.png")
    stated = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/vit.svg")]
    assert f"{answer.label} {100 * answer.probability:.1f}" in "".join(stated)
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert card.startswith(f"# builtin:{name}\n")


@pytest.mark.parametrize("name", NAMES)
def test_its_card_has_the_measured_accuracies(name: str) -> None:
    """As in the run's summary; weights in half precision cost less than 0.1 points."""
    path = builtin_checkpoint(f"builtin:{name}")
    assert path is not None
    card = " ".join(path.with_suffix(".md").read_text(encoding="utf-8").split())
    single, *halves = re.findall(r"(\d+\.\d\d) % (?:of [\d,]+ images|in \w+[,;.])", card)
    assert halves and all(abs(float(single) - float(half)) < 0.1 for half in halves)
    (commit,) = re.findall(r"at commit (\w{7})", card)
    summaries = map(read_json, (ROOT / "docs/results").glob("*/*.json"))
    accuracies = [
        f"{100 * summary['test']['final']['acc']:.2f}"
        for summary in summaries
        if str(summary["commit"]).startswith(commit) and "acc" in summary["test"]["final"]
    ]
    assert single in accuracies


def test_the_data_of_a_builtin_model_are_where_those_of_new_runs_are(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_cifar(monkeypatch, tmp_path / "elsewhere")
    run.fails("cannot read CIFAR-10", "vit-eval", "ckpt=builtin:cifar10")
    assert builtin_checkpoint("outputs/x") is None
    monkeypatch.setenv("VIT_TRAIN_DATA", str(tmp_path / "elsewhere"))
    words = "the classes of the images (class 0, class 1"  # which are those found there
    run.fails(words, "vit-eval", "ckpt=builtin:cifar10")


def test_packing_keeps_the_predictions_and_forgets_the_machine(
    run: Run, small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, last = tmp_path / "box", small_run("averaged") / "checkpoints/last.safetensors"
    box.mkdir()
    for module in (paths, pack_builtin):
        monkeypatch.setattr(module, "FOLDER", box)
    summary = read_json(Path("run/summary.json")) | {"precision": "bf16"}
    write_json(Path("run/summary.json"), summary)
    pack_builtin.main(Path("run"), "mine")
    assert {path.suffix for path in box.iterdir()} == {".safetensors", ".md", ".json", ".csv"}
    assert (box / "mine.safetensors").stat().st_size < last.stat().st_size / 3
    trained, full = vit_train.load("builtin:mine"), vit_train.load(last)
    assert trained.meta.temperature == full.meta.temperature is not None
    assert trained.meta.thresholds == full.meta.thresholds != {}
    assert trained.meta.config.data.root == "data"
    images = torch.randn(8, 3, 32, 32)
    expected = full.model(images).detach()
    atol = 5e-3 * float(expected.abs().max())
    torch.testing.assert_close(trained.model(images), expected, rtol=0, atol=atol)
    card = " ".join((box / "mine.md").read_text(encoding="utf-8").split())
    accuracy = 100 * summary["test"]["final"]["acc"]
    assert f"**Test accuracy** {accuracy:.2f} %" in card and "computed in bf16" in card
    in_both = r"\d+\.\d\d % in fp32, \d+\.\d\d % in bf16; \d+ predictions differ between the two\."
    assert re.search(f"stored in half precision: {in_both}", card)
    run.succeeds("vit-eval", "ckpt=builtin:mine")
    page = Path("outputs/builtin-mine/eval-test/report.html").read_text(encoding="utf-8")
    assert summary["command"] in html.unescape(page) and "Training curves" in page
    assert "builtin:mine" in page and str(box) not in page
