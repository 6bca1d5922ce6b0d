"""No image that a run trained or validated on counts as a test image, however folders change."""

import re
import shutil
from pathlib import Path

import pytest
from conftest import SMALL_MODEL, Run, csv_rows
from test_cli_predict import CLASSES, write_photo

from vit_train.base.reading import read_json


def photos(numbers: range) -> list[str]:
    return [f"{name}/{number}.png" for name in CLASSES for number in numbers]


def write_photos(root: str, numbers: range) -> list[str]:
    """Write a photo of each class and number below root, and return the files' names."""
    names = photos(numbers)
    for seed, name in enumerate(names):
        write_photo(Path(root, name), (80, 80, 80), 1000 * numbers.start + seed, (20, 20))
    return names


def evaluated(folder: str) -> set[str]:
    """Return the images that were evaluated, by class and file name."""
    return {
        "/".join(Path(row["image"]).parts[-2:]) for row in csv_rows(f"{folder}/predictions.csv")
    }


LEARNING = ["data=folder", "data.root=photos", *SMALL_MODEL, "train.epochs=1", "train.batch_size=8"]
TRAIN = ["vit-train", *LEARNING, "data.image_size=16", "hydra.run.dir=run"]


def caveat(folder: str) -> str:
    return str(read_json(Path(folder, "results.json"))["caveat"])


@pytest.fixture
def trained(run: Run) -> set[str]:
    """Make run/, trained on photos/CLASS/*.png, and return its test images."""
    write_photos("photos", range(10))
    run.succeeds(*TRAIN)
    run.succeeds("vit-eval", "ckpt=run")
    return evaluated("run/eval-test")


def test_a_folder_that_has_grown_is_tested_on_held_out_and_new_images(
    run: Run, trained: set[str]
) -> None:
    assert len(trained) == 3
    new = write_photos("photos", range(10, 14))
    outcome = run.succeeds("vit-eval", "ckpt=run", "out=grown")
    assert evaluated("grown") == trained | set(new)
    words = "27 images left out, seen in the training or validation of this model"
    assert words in " ".join(outcome.out.split())
    assert words in caveat("grown")
    assert words in Path("grown/report.html").read_text(encoding="utf-8")
    assert caveat("run/eval-test") == ""


def test_what_was_seen_is_known_at_another_size_too(run: Run, trained: set[str]) -> None:
    for split, words in (("train", "The model was trained on these images."), ("test", "")):
        run.succeeds("vit-eval", "ckpt=run", f"split={split}", "data.image_size=24", "out=own")
        assert caveat("own") == words
        assert (evaluated("own") == trained) == (split == "test")
    new = write_photos("photos", range(10, 14))
    for place in ([], ["data.root=photos"]):
        run.succeeds("vit-eval", "ckpt=run", "data.image_size=24", "out=grown", *place)
        assert evaluated("grown") == trained | set(new)
        assert read_json(Path("grown/results.json"))["image_size"] == 24


def test_copies_of_an_image_on_both_sides_are_said(run: Run) -> None:
    for name in write_photos("photos", range(10)):
        shutil.copy(Path("photos", name), Path("photos", name).with_suffix(".copy.png"))
    outcome = run(*TRAIN, "data.test_fraction=0.4")
    said = re.search(r"copies of (\d+) test images are among the images to train", outcome.out)
    assert outcome.status == 0 and said, outcome.out
    run.succeeds("vit-eval", "ckpt=run")
    assert caveat("run/eval-test") == f"The run trained or validated on copies of {said[1]} images."


def test_in_another_folder_the_images_of_training_are_left_out(run: Run, trained: set[str]) -> None:
    held_out = sorted(trained)[0]
    for path in Path("photos").glob("*/*.png"):
        name = f"{path.parent.name}/{path.name}"
        if name == held_out or name not in trained:
            Path("others", name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path("others", name))
    run.succeeds("vit-eval", "ckpt=run", "data.root=others", "out=new")
    assert evaluated("new") == {held_out}
    Path("others", held_out).unlink()
    words = "the run trained or validated on all of these: 27 images"
    run.fails(words, "vit-eval", "ckpt=run", "data.root=others", "out=none")
    assert not Path("none").exists()


def test_patches_that_do_not_fit_are_refused_before_files_are_read(run: Run) -> None:
    Path("photos/red").mkdir(parents=True)
    Path("photos/red/broken.png").write_bytes(b"no image")
    sizes = ["data.image_size=20", "model.patch_size=8"]
    outcome = run("vit-train", "data=folder", "data.root=photos", *sizes)
    assert outcome.status == 1 and "patch" in outcome.err and "broken" not in outcome.err


def test_a_subset_of_a_test_folder_is_taken_of_the_images_not_seen(run: Run) -> None:
    write_photos("photos/train", range(6))
    write_photos("photos/test", range(20, 24))
    run.succeeds(*TRAIN)
    for name in CLASSES:  # half of the test images are now some that were trained on
        shutil.copy(f"photos/train/{name}/0.png", f"photos/test/{name}/20.png")
        shutil.copy(f"photos/train/{name}/1.png", f"photos/test/{name}/21.png")
    outcome = run.succeeds("vit-eval", "ckpt=run", "data.test_subset=6", "out=half")
    assert "only the test images are read" not in outcome.out
    assert evaluated("half") == {f"{name}/{number}.png" for name in CLASSES for number in (22, 23)}


def test_a_validation_folder_of_the_runs_own_is_evaluated_wherever_it_lies(run: Run) -> None:
    for part, numbers in (("train", range(6)), ("val", range(6, 9)), ("test", range(9, 12))):
        write_photos(f"photos/{part}", numbers)
    run.succeeds(*TRAIN)
    shutil.move("photos", "moved")
    for split, words in (("val", "The epoch was chosen on these images"), ("test", "")):
        run.succeeds("vit-eval", "ckpt=run", "data.root=moved", f"split={split}", "out=own")
        assert len(evaluated("own")) == 3 * len(CLASSES)
        assert caveat("own").startswith(words) and bool(caveat("own")) == bool(words)
    for part, numbers in (
        ("train", range(22, 24)),
        ("val", range(20, 22)),
        ("test", range(24, 26)),
    ):
        write_photos(f"others/{part}", numbers)
    run.succeeds("vit-eval", "ckpt=run", "data.root=others", "split=val", "out=others-val")
    assert caveat("others-val") == ""


def test_test_images_that_chose_the_epoch_can_be_evaluated_and_are_no_copies(run: Run) -> None:
    for part, numbers in (("train", range(6)), ("test", range(9, 12))):
        write_photos(f"photos/{part}", numbers)
    outcome = run.succeeds(*TRAIN, "data.val=test")
    assert "remove the copies" not in outcome.out
    run.succeeds("vit-eval", "ckpt=run", "data.root=photos", "out=own")
    assert caveat("own").startswith("The epoch was chosen on the run's own test images")


LATER = {
    "from": ["init_from=run"],
    "larger": ["init_from=run", "data.image_size=24"],
    "student": ["task=distill", "task.teacher=run"],
}


@pytest.mark.parametrize("later", LATER)
def test_what_a_model_learned_from_has_seen_is_no_test_image(
    run: Run, trained: set[str], later: str
) -> None:
    """As many images as the folder had are new, so that its split is another."""
    new = set(write_photos("photos", range(10, 20)))
    settings = [*LEARNING, "data.image_size=16", "data.test_fraction=0.5"]
    outcome = run("vit-train", *settings, *LATER[later], "hydra.run.dir=later")
    said = re.search(r"(\d+) test images left out, seen in the training", outcome.out)
    assert outcome.status == 0 and said, outcome.out + outcome.err
    run.succeeds("vit-eval", "ckpt=later")
    tested = evaluated("later/eval-test")
    assert tested and tested <= trained | new and len(tested) + int(said[1]) == 30
    results = read_json(Path("later/eval-test/results.json"))
    assert f"{said[1]} images left out" in results["caveat"]
    assert results["result"]["count"] == len(tested)
    summary = read_json(Path("later/summary.json"))
    assert summary["images"]["test"] == summary["test"]["final"]["count"] == len(tested)

    # A third model, which learns from the second, has the first one's images from it.
    write_photos("photos", range(20, 24))
    size = [each for each in LATER[later] if "image_size" in each]
    run.succeeds("vit-train", *settings, *size, "init_from=later", "hydra.run.dir=third")
    run.succeeds("vit-eval", "ckpt=third")
    assert not evaluated("third/eval-test") & (set(photos(range(10))) - trained)


def test_a_run_that_goes_on_tests_on_the_images_it_began_with(run: Run, trained: set[str]) -> None:
    write_photos("photos", range(10, 20))
    settings = [*LEARNING, "data.image_size=16", "data.test_fraction=0.5", "init_from=run"]
    outcome = run.succeeds("vit-train", *settings, "train.max_minutes=1e-9", "hydra.run.dir=later")
    assert "stopped after step" in outcome.out
    for more in (["resume=later", "train.max_minutes=null"], ["extend=later", "train.epochs=1"]):
        folder = [] if "resume=later" in more else ["hydra.run.dir=longer"]
        run.succeeds("vit-train", *more, *folder)
    first, longer = (read_json(Path(name, "summary.json")) for name in ("later", "longer"))
    assert first["images"] == longer["images"] and first["images"]["test"] < 30
    assert first["fingerprint"] == longer["fingerprint"]


def test_nothing_is_tested_on_if_all_was_seen(run: Run, trained: set[str]) -> None:
    for name in trained:
        Path("photos", name).unlink()
    words = "all 3 test images were seen in the training or validation of a model"
    run.fails(words, *TRAIN[:-1], "init_from=run", "hydra.run.dir=x")
