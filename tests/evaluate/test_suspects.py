"""vit-suspects: wrong labels, found by models that did not train on the images."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL_MODEL, Run, SmallRun, csv_rows, write_images
from PIL import Image

from vit_train.evaluate.suspects import rank


def test_flipped_labels_are_ranked_as_in_the_paper() -> None:
    """Against loops over all images and classes, on made-up probabilities."""
    rng = np.random.default_rng(0)
    true, sure = rng.integers(0, 4, 400), rng.beta(4, 1, 400)[:, None]
    chances = (1 - sure) * rng.dirichlet((0.3,) * 5, 400)  # class 4 has no image
    chances += sure * np.eye(5)[true]
    labels = true.copy()
    labels[:20] = (labels[:20] + 1) % 4
    means = [chances[labels == label, label].mean() for label in range(4)]
    expected = []
    for image, (p, label) in enumerate(zip(chances, labels, strict=True)):
        confident = [(p[j], j) for j in range(4) if p[j] >= means[j]]
        if confident and max(confident)[0] > p[label]:
            expected.append((p[label] - max(confident)[0], image, max(confident)[1]))
    order, suggested = rank(labels, chances)
    assert order == [image for _, image, _ in sorted(expected)]
    assert [suggested[each] for each in order] == [other for *_, other in sorted(expected)]
    flipped = [each for each in order if each < 20]
    assert len(flipped) >= 10 and len(order) < 20
    assert (suggested[flipped] == true[flipped]).all()


@pytest.mark.usefixtures("every_figure_is_drawn")
@pytest.mark.slow
def test_wrong_labels_among_photos_are_found_by_cross_validation(
    run: Run, small_run: SmallRun
) -> None:
    for name, color, wrong in (("blue", (20, 20, 180), "red"), ("red", (180, 20, 20), "blue")):
        write_images(f"photos/{name}", [f"{number}.png" for number in range(40)], color)
        write_images(f"photos/{wrong}", ["wrong.png", "also.png"], color)
    data = ["data=folder", "data.root=photos", "data.image_size=16", "data.test_fraction=0.01"]
    train = [
        "vit-train",
        *SMALL_MODEL,
        *data,
        "augment=none",
        "train.batch_size=8",
        "model.depth=1",
    ]
    sweep = ["-m", "data.cv_folds=2", "data.cv_fold=0,1", "hydra.sweep.dir=folds"]
    run.succeeds(*train, *sweep)
    outcome = run.says("4 suspects among 83 images", "vit-suspects", "runs=folds")
    rows = csv_rows("folds/suspects/suspects.csv")
    planted = {f"{name}/{file}.png" for name in ("blue", "red") for file in ("wrong", "also")}
    assert {row["image"] for row in rows} == planted
    for row in rows:
        assert row["image"].startswith(f"{row['label']}/") and row["suggested"] != row["label"]
        assert float(row["probability_suggested"]) > 0.5 > float(row["probability_label"])
        assert f"{row['image']}: labeled {row['label']}, perhaps {row['suggested']}" in outcome.out
    assert "Some of these labels are correct" in outcome.out
    with Image.open("folds/suspects/suspects.png") as picture:
        assert picture.size[0] > 500
    # Runs of the same fold are averaged, and part of the folds gives part of the images.
    shutil.copytree("folds/cv_fold_0", "again/0")
    shutil.copytree("folds/cv_fold_0", "again/1")
    outcome = run.says(" among 42 images", "vit-suspects", "runs=again", "out=suspects")
    assert "folds without a finished run, whose images are not checked: 1 of 2" in outcome.out
    assert Path("suspects/suspects.csv").exists()
    small_run("reconstruct", "other")
    run.fails("is not a classifier", "vit-suspects", "runs=other")
    Path("photos/red/wrong.png").unlink()
    run.fails("the images are not those that", "vit-suspects", "runs=folds")
    run.fails("nowhere does not exist", "vit-suspects", "runs=nowhere")
