"""A model for several tags per image, from training to each command."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Run, csv_rows
from PIL import Image

import vit_train

COLORS = {"red": (220, 40, 40), "green": (40, 200, 40), "blue": (40, 60, 230)}
SQUARES = ["data=table", "data.file=squares.csv", "data.image_size=16", "augment=none"]
TINY = [
    *("model.embed_dim=16", "model.depth=1", "model.patch_size=8", "train.batch_size=16"),
    *("optim.lr=1e-2", "precision=fp32"),
]
TRAIN = ["vit-train", "task=tags", *SQUARES, *TINY, "train.epochs=12", "hydra.run.dir=run"]


def draw_squares(count: int = 160) -> None:
    """Noise with a quarter in each color that is a tag; a third of the images have no tag."""
    rng, lines = np.random.default_rng(0), ["path,tags,split"]
    for number in range(count):
        pixels = rng.integers(0, 90, (16, 16, 3)).astype(np.uint8)
        tags = [tag for tag in COLORS if rng.random() < 0.3]
        for quarter, tag in zip(rng.permutation(4), tags, strict=False):
            y, x = divmod(int(quarter), 2)
            pixels[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] = COLORS[tag]
        Image.fromarray(pixels).save(f"{number}.png")
        lines.append(f"{number}.png,{'|'.join(tags)},{'test' if number % 4 == 0 else 'train'}")
    Path("squares.csv").write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.usefixtures("every_figure_is_drawn")
@pytest.mark.slow
def test_tags_are_learned_evaluated_and_predicted(run: Run) -> None:
    draw_squares()
    run.succeeds(*TRAIN)
    summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
    assert summary["test"]["best"]["map"] > 0.9 and summary["best_val"]["map"] > 0.9
    run.says("0.5 for all tags; to calibrate", "vit-predict", "ckpt=run", "images=1.png")

    run.says("squares, test: mAP", "vit-eval", "ckpt=run")
    result = json.loads(Path("run/eval-test/results.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in result["per_tag"]] == ["blue", "green", "red"]
    thresholds = np.array([each["threshold"] for each in result["per_tag"]])
    assert (vit_train.load("run").meta.tag_thresholds == thresholds).all()
    assert "How well it finds each tag" in Path("run/eval-test/report.html").read_text(
        encoding="utf-8"
    )

    run.succeeds("vit-eval", "ckpt=run", "split=val", "out=val")
    on_val = json.loads(Path("val/results.json").read_text(encoding="utf-8"))["per_tag"]
    assert {each["threshold"] for each in on_val} == {0.5}, "the others were chosen on these images"
    run.says("chosen on the run's", "vit-predict", "ckpt=run", "images=*.png", "out=p.csv")
    evaluated = {row["image"]: row for row in csv_rows("run/eval-test/predictions.csv")}
    for row in csv_rows("p.csv"):
        if row["image"] in evaluated:
            found = set(evaluated[row["image"]]["predicted"].split("|"))
            assert set(row["predicted"].split("|")) == found
    run.succeeds("vit-predict", "ckpt=run", "images=*.png", "out=p.jsonl")
    lines = map(json.loads, Path("p.jsonl").read_text(encoding="utf-8").splitlines())
    assert {len(line["top"]) for line in lines} >= {0, 1, 2}

    run.says("mAP, %", "vit-results", "run")
    run.succeeds("vit-explain", "ckpt=run", "target=blue", "count=2")
    run.succeeds("vit-export", "ckpt=run", "format=hf")
    config = json.loads(Path("run/export/hf/config.json").read_text(encoding="utf-8"))
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["thresholds"].values()) == thresholds.tolist()
    assert "| mAP |" in Path("run/export/hf/README.md").read_text(encoding="utf-8")
    assert "so validation results are too optimistic" in run.says(
        "head is reused", *TRAIN[:-2], "init_from=run", "train.epochs=1", "data.cv_folds=4",
        "data.cv_fold=0", "data.sampler=balanced", "augment.mixup_alpha=1", "hydra.run.dir=other",
    ).said  # fmt: skip
    run.says(
        "mAP changes by +0.00 points (95 % interval", "vit-eval", "ckpt=[run,other]", "out=compared"
    )
    page = Path("compared/report.html").read_text(encoding="utf-8")
    table = page[page.index("Average precision by tag, %") :]
    assert all(f"<td>{tag}</td>" in table for tag in COLORS)

    refused = {
        "their classes differ": ["vit-eval", "ckpt=[run,builtin:cifar10]"],
        "robustness=true and foreign= are for": ["vit-eval", "ckpt=run", "tta=flip"],
        "abstain= is for classifiers": ["vit-predict", "ckpt=run", "images=1.png", "abstain=0.9"],
        "calibrated=true is not for": ["vit-export", "ckpt=run", "format=torch", "calibrated=true"],
        "html= does not support task=tags": ["vit-explain", "ckpt=run", "html=demo.html"],
        "predicts one class per image": ["vit-train", *SQUARES, *TINY],
        "needs images with tags": ["vit-train", "task=tags"],
        "checkpoint.metric=loss or checkpoint": [
            *TRAIN[:-1],
            "checkpoint.metric=acc",
        ],
        "does not classify images": ["vit-train", "task=distill", "task.teacher=run", *TINY],
    }
    for words, command in refused.items():
        run.fails(words, *command)
