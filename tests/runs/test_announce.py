"""What a run says at its start."""

import pytest
from conftest import SMALL, Run


@pytest.mark.parametrize(
    "settings, words",
    [
        (["train.epochs=1"], "; warm-up 0.4 of 1 epoch, not 1: at most half of the run"),
        (["optim.warmup_epochs=1.5"], "; warm-up 1 of 2 epochs, not 1.5: at most half of the run"),
        ([], ""),
    ],
)
def test_a_warm_up_that_is_cut_is_said_to_be(run: Run, settings: list[str], words: str) -> None:
    outcome = run("vit-train", *SMALL, *settings, "train.max_minutes=1e-9")
    assert outcome.status == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert words in said and ("warm-up" in said) == bool(words)


@pytest.mark.parametrize(
    "settings, words",
    [
        ([], "20 validation images can hardly tell which epoch is the best"),
        (["data.val=none"], ""),
        (["data.cv_folds=5", "data.cv_fold=0"], ""),
        (["task=reconstruct", "task.decoder_depth=1"], ""),
    ],
)
def test_few_validation_images_are_said_to_be_few(
    run: Run, settings: list[str], words: str
) -> None:
    outcome = run("vit-train", *SMALL, *settings, "train.max_minutes=1e-9")
    assert outcome.status == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert words in said and ("validation images can" in said) == bool(words)
