import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import SMALL_MODEL, Run, SmallRun, csv_rows, write_images
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import vit_train
from vit_train.base.reading import read_json
from vit_train.commands import start
from vit_train.config.tools import EvalConfig, EvalDataConfig
from vit_train.evaluate.evaluate import default_folder
from vit_train.figures.images import label_lines
from vit_train.figures.measures import FIGURES

FEW = ["data.train_images=60", "data.test_images=20", *SMALL_MODEL, "train.epochs=1"]


def test_a_run_leaves_the_folder_that_the_readme_promises(small_run: SmallRun) -> None:
    folder = small_run("finished")
    promised = {"config.yaml", "train.log", "metrics.csv", "summary.json", "pictures.png"}
    assert promised <= {path.name for path in folder.iterdir()}
    kept = {path.stem for path in (folder / "checkpoints").iterdir()}
    assert kept == {"last", "last-1", "best"}
    summary = read_json(folder / "summary.json")
    assert summary["status"] == "finished" and set(summary["test"]) == {"final", "best"}
    assert summary["images_seen"] == 2 * (180 // 32) * 32
    assert summary["images"] == {"train": 180, "val": 20, "test": 60}
    rows = csv_rows(folder / "metrics.csv")
    assert [row["epoch"] for row in rows] == ["1", "2"]

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()
    # TensorBoard sorts groups by name and opens the first two.
    groups = list(dict.fromkeys(tag.split("/")[0] for tag in sorted(tags["scalars"])))
    assert groups == ["acc", "loss", "test", "train", "val", "weight norm"]
    assert {"acc/train", "acc/val", "loss/train", "loss/val"} <= set(tags["scalars"])
    val = [f"val/{name}" for name in ("pictures", "confusion", "mistakes", "relevance")]
    test = [f"{tag}/{name}" for tag in ("test", "test/best") for name in (*FIGURES, "mistakes")]
    assert tags["images"] == ["train/augmented", *val, *test]
    assert "config/text_summary" in tags["tensors"]
    # No curve is a single dot, but for those that compare runs.
    dots = {tag for tag in tags["scalars"] if len(events.Scalars(tag)) == 1}
    assert dots == {"test/acc", "test/best/acc", "val/best_acc"}
    # Steps are optimizer steps, of which an epoch has 5.
    assert [event.step for event in events.Images("val/pictures")] == [5, 10]
    for name in ("loss", "acc"):
        points = [(event.step, event.value) for event in events.Scalars(f"{name}/val")]
        values = [float(row[f"val_{name}"]) for row in rows]
        assert points == [(5, pytest.approx(values[0])), (10, pytest.approx(values[1]))]
    assert [event.step for event in events.Scalars("loss/train")] == [2, 4, 5, 7, 9, 10]


def test_results_say_how_the_best_epoch_was_selected(run: Run) -> None:
    run.succeeds("vit-train", *FEW, "data.val=none", "hydra.run.dir=none")
    summary = read_json(Path("none/summary.json"))
    assert set(summary["test"]) == {"final"} and summary["selected_on"] is None
    assert not Path("none/checkpoints/best.safetensors").exists()
    words = "test, final weights, also the best (selected on test): "
    run.says(words, "vit-train", *FEW, "data.val=test", "hydra.run.dir=test")
    assert Path("test/train.log").read_text(encoding="utf-8").count(" test, ") == 1
    run.says("epoch was chosen on these images", "vit-eval", "ckpt=test")
    for name in ("summary.json", "eval-test/results.json"):
        assert read_json(Path("test", name))["selected_on"] == "test"


ANSWERS = """
import sys
from vit_train.commands import start

for command in sys.argv[1:]:
    main = getattr(start, command)
    for argument in ("--help", "model.detph=3") if command == "train" else ("--help",):
        sys.argv = [f"vit-{command}", argument]
        try:
            main()
        except SystemExit as end:
            print("status:", end)
        assert "torch" not in sys.modules, command
"""


def test_help_and_a_typo_need_no_torch() -> None:
    commands = [name for name, script in vars(start).items() if isinstance(script, partial)]
    program = [sys.executable, "-c", ANSWERS, "train", *(set(commands) - {"train"})]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(commands) == 12 and len(re.findall("status: 0?\n", done.stdout)) == 12
    assert "status: 2" in done.stdout
    assert "vit-train: there is no setting model.detph" in done.stderr


def test_help_lists_all_settings_without_searching_groups(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra takes 40 ms for each of its groups: it copies all of its configs."""
    monkeypatch.setattr(ConfigLoaderImpl, "get_group_options", lambda *_: pytest.fail("looked up"))
    Path("some/model").mkdir(parents=True)
    Path("some/model/own.yaml").write_text("defaults: [tiny]\ndepth: 3\n", encoding="utf-8")
    for flags in (
        ["--help"],
        ["-h", "-m", "task.class_weights={a: 1}"],
        ["model=own", "--help", "--config-dir", "some"],
    ):
        shown = run("vit-train", *flags, "seed=7").out
        assert shown.startswith("vit-train: train a Vision Transformer on small images.\n")
        assert "augment: light, none, strong\n" in shown and "hydra" not in shown.split("==")[2]
        assert "\n  embed_dim: 128\n" in shown and "\nseed: 7\n" in shown
        for own in ("model: base, cnn, fast_cnn, own, resnet, small, tiny", "\n  depth: 3\n"):
            assert (own in shown) == ("some" in flags)
    assert "\nvariants: 8\n" in run.says("== Groups", "vit-augment", "--help").out
    assert "== Groups" not in run.says("image_size: null", "vit-eval", "--help").out
    assert run.fails("did you mean seed?", "vit-train", "--help", "sed=7").out == ""


@pytest.mark.parametrize(
    "target, lines",
    [
        (torch.tensor(1), ["dog"]),
        (torch.tensor(-1), ["no label"]),
        (torch.tensor([0.3, 0.7, 0.0]), ["dog 70%", "cat 30%"]),
        (torch.tensor([0.4, 0.0, 0.6]), ["aquarium_fishes 60%", "cat 40%"]),
        (torch.tensor([0.997, 0.003, 0.0]), ["cat"]),
        (torch.tensor([0.4, 0.0, 0.0]), ["cat 40%"]),  # mixed with an image without a label
        (torch.zeros(3), ["no label"]),
    ],
)
def test_a_mixed_label_names_its_shares(target: torch.Tensor, lines: list[str]) -> None:
    assert label_lines(target, ("cat", "dog", "aquarium_fishes")) == lines


def test_different_evaluations_have_different_folders(run: Run, small_run: SmallRun) -> None:
    """What alters no result, and another way to write the same path, give the same folder."""
    write_images("gray", ["a.png"]), write_images("other/gray", ["a.png"])
    small_run("finished")
    run.succeeds("vit-eval", "ckpt=run", "out=mine/evaluation")
    for more, size in (("data.image_size=40", 40), ("weights=raw", 32), ("batch_size=7", 32)):
        outcome = run.succeeds("vit-eval", "ckpt=run", more)
        (folder,) = re.findall(r"written to (run/eval-test\S*)/: .+ predictions.csv", outcome.out)
        assert read_json(Path(folder, "results.json"))["image_size"] == size
        assert Path(folder, "pictures.png").exists()
    assert folder == "run/eval-test" and len(list(Path("run").glob("eval-*"))) == 3
    meta = vit_train.load("run").meta
    copied, other = (replace(meta, path=Path(each)) for each in ("run/mine.pt", "other"))
    data = ({"root": "gray"}, {"file": "gray"}, {"test_subset": 9}, {"image_size": [9, 40]})
    changes = [
        *({}, {"weights": "ema"}, {"precision": "bf16"}, {"tta": "flip"}, {"robustness": True}),
        *({"split": "val"}, {"foreign": "gray"}, {"foreign": "other/gray"}),
        *({"data": EvalDataConfig(**each)} for each in (*data, {"on_error": "skip"})),
    ]
    folders = [default_folder(EvalConfig(**each), meta) for each in changes]
    folders += [default_folder(EvalConfig(), *each) for each in ((copied,), (meta, other))]
    assert len({*folders}) == len(changes) + 2
    again = EvalConfig(foreign="other/../gray", device="cpu")
    assert default_folder(again, meta) == default_folder(EvalConfig(foreign="gray"), meta)
    more = ["ckpt=run/checkpoints/last.safetensors", "data.image_size=48", "count=2"]
    run.says("run/explain-last/: ", "vit-explain", *more)


def test_two_runs_are_compared_image_by_image(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "a"), small_run("averaged", "b")
    compared = ["ckpt=[a,b/checkpoints/last.safetensors]", "split=val", "out=mine"]
    chosen = (
        "The epoch was chosen on these images"  # of the first run, whose best weights these are
    )
    outcome = run.says(chosen, "vit-eval", *compared)
    said = [csv_rows(f"mine/{name}/predictions.csv") for name in "AB"]
    pairs = list(zip(*said, strict=True))
    only_first = sum(x["correct"] > y["correct"] for x, y in pairs)
    only_second = sum(x["correct"] < y["correct"] for x, y in pairs)
    results = read_json(Path("mine/results.json"))
    assert "abstention" not in results["models"][0]  # the evaluated images choose no thresholds
    (pair,) = results["pairs"]
    found = (pair["only_first"], pair["only_second"], pair["images"])
    assert found == (only_first, only_second, 20)
    named = "A (a)", "B (b/checkpoints/last.safetensors)"
    says = f"Only {named[0]} is right on {only_first} image"
    assert says in outcome.said and f"only {named[1]} on {only_second} (" in outcome.said
    page = Path("mine/report.html").read_text(encoding="utf-8")
    assert "train.ema_decay" in page and "McNemar" in page and 'src="data:image/png' in page
    assert f"{named[0]}: {chosen}" in page and f"{named[1]}: {chosen}" not in page
    titles = "".join(f"<th>{cell}</th>" for cell in ("class", "images", "A", "B", "B − A"))
    difference = 100 * (only_second - only_first) / 2  # of the 2 images of each class
    by_class = re.findall(r"<td>([+-].+)</td></tr>", page[page.index(titles) :])
    assert len(by_class) == 10 and sum(map(float, by_class)) == pytest.approx(difference, abs=0.1)
    assert not [*Path("a").glob("eval-*"), *Path("b").glob("eval-*")]
