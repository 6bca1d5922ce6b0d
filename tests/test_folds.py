"""Cross-validation: a run for each fold, and one row for all of them."""

from statistics import mean, stdev

from conftest import SMALL_MODEL, Run, csv_rows


def test_the_folds_of_a_sweep_are_one_row(run: Run) -> None:
    data = ["data.train_images=61", "data.test_images=20", "data.cv_folds=2", "train.epochs=1"]
    sweep = ["-m", "data.cv_fold=0,1", "hydra.sweep.dir=runs", "model.head=gap"]
    outcome = run.succeeds("vit-train", *SMALL_MODEL, *data, *sweep)
    assert "31 training, 30 validation" in outcome.out and "2 of 2 jobs finished" in outcome.out
    table = run("vit-results", "runs").out.splitlines()
    header, _, row = (line.strip("| ").split(" | ") for line in table if line.startswith("|"))
    cells = dict(zip(header, row, strict=True))
    found = [100 * float(csv_rows(f"runs/{fold}/metrics.csv")[-1]["val_acc"]) for fold in "01"]
    title = "validation accuracy, last epoch, mean of folds (%)"
    assert cells[title] == f"{mean(found):.2f} ± {stdev(found):.2f}" and stdev(found) > 0
    assert cells["folds"] == "0, 1 of 2" and cells["seeds"] == "0"
