import json
from pathlib import Path

import pytest
from conftest import SMALL, Run, SmallRun

from vit_train.engine.metrics import wilson_interval
from vit_train.results import summaries
from vit_train.results.summaries import group_runs, read_curve, read_summaries, time_in_steps
from vit_train.results.table import (
    ACCURACY,
    LOSS,
    by_training_images,
    gather,
    interval,
    plots,
    table,
)


def summary(acc: float, seed: int = 0, status: str = "finished", **model: object) -> dict:
    result = {"acc": acc, "count": 1000, "acc_interval_95": [acc - 0.03, acc + 0.03]}
    return {
        "status": status,
        "config": {
            "model": {"name": "vit", "depth": 6} | model,
            "data": {"name": "shapes"},
            "task": {"name": "classify"},
            "seed": seed,
        },
        "parameters": 1000,
        "images": {"train": 500, "val": 0, "test": 1000},
        "images_seen": 5000,
        "seconds": 120.0,
        "selected_on": "val",
        "best_val": {"acc": acc, "epoch": 1},
        "test": {"final": result, "best": result},
    }


def written(folder: Path, *summaries: dict) -> Path:
    for number, each in enumerate(summaries):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "summary.json").write_text(json.dumps(each), encoding="utf-8")
    return folder


def test_runs_that_differ_in_their_seed_alone_are_one_row() -> None:
    groups = group_runs(
        [summary(0.5, 0), summary(0.6, 1), summary(0.7, 0, depth=2), summary(0.9, 0, name="cnn")]
    )
    # Sorted: model.depth comes after model.name, and its numbers by size.
    assert [group.label() for group in groups] == [
        "model=cnn, depth=6", "model=vit, depth=2", "model=vit, depth=6",
    ]  # fmt: skip
    assert [len(group.runs) for group in groups] == [1, 1, 2]


def test_a_run_that_is_repeated_counts_once(tmp_path: Path) -> None:
    folder = written(tmp_path, summary(0.5), summary(0.6, 1), summary(0.7))
    for paths in ([folder], [folder, folder / "0"]):
        (group,) = group_runs(read_summaries(paths))
        assert sorted(group.values("test", "final", "acc")) == [0.6, 0.7]


def test_of_repeated_runs_the_newest_counts() -> None:
    runs = [summary(0.7) | {"date": "2026-02-01"}, summary(0.5) | {"date": "2026-01-01"}]
    for each in runs:
        each["file"] = "summary.json"
    (group,) = group_runs(runs)
    assert group.values("test", "final", "acc") == [0.7]


def test_what_changes_no_result_makes_no_group() -> None:
    saved = summary(0.6, 1)
    saved["config"] |= {"device": "cuda", "checkpoint": {"every_steps": 5}}
    other = summary(0.5)
    other["config"] |= {"checkpoint": {"every_steps": None}}
    other["config"] |= {"train": {"eval_batch_size": 7}, "optim": {"warmup_epochs": 1}}
    saved["config"] |= {"optim": {"warmup_epochs": 1.0}}  # as the command line has it
    (group,) = group_runs([other, saved])
    assert len(group.runs) == 2


def test_what_may_change_a_result_makes_a_group() -> None:
    """Another precision, a setting that older runs did not have, or another folder of images."""
    plain, compiled, half = summary(0.5), summary(0.6), summary(0.7)
    compiled["config"]["compile"] = True
    half["precision"] = "bf16"
    plain["precision"] = compiled["precision"] = "fp32"
    assert [len(group.runs) for group in group_runs([plain, compiled, half])] == [1, 1, 1]
    pets, flowers, other = summary(0.5), summary(0.6), summary(0.7, 1)
    for each, name, root in ((pets, "folder", "a"), (flowers, "folder", "b")):
        each["config"]["data"] = {"name": name, "root": root}
    assert len(group_runs([pets, flowers])) == 2
    for each in (pets, other):
        each["config"]["data"] = {"name": "cifar10", "root": str(each["config"]["seed"])}
    assert len(group_runs([pets, other])) == 1


def test_a_table_names_another_precision_than_fp32_even_if_all_runs_have_it() -> None:
    for name in ("fp32", "bf16"):
        runs = [summary(0.5, 0), summary(0.6, 1)]
        for each in runs:
            each["precision"] = name
        header, _, row = table(group_runs(runs)).splitlines()
        assert header.startswith("| precision |") == row.startswith("| bf16 |") == (name == "bf16")
    runs[0]["precision"] = "fp32"
    assert table(group_runs(runs)).splitlines()[0].count("precision") == 1


def test_extended_runs_are_grouped_by_how_long_those_before_them_were() -> None:
    runs = [summary(0.5, seed) for seed in (0, 1, 0, 0)]
    for each, folder, epochs in zip(runs, "abc", (30, 30, 10), strict=False):
        each["config"]["extend"] = folder
        each["extends"] = [{"run": "first", "epochs": 5}, {"run": folder, "epochs": epochs}]
    groups = group_runs(runs)
    assert [group.settings["extend"] for group in groups] == ["10 epochs", "30 epochs", "null"]
    assert [len(group.runs) for group in groups] == [1, 2, 1]
    runs[1]["extends"][-1]["recipe"] = "3fa1b2c3"  # that the other one had is not known
    assert [len(group.runs) for group in group_runs(runs)] == [1, 1, 1, 1]


def test_balanced_accuracy_is_shown_where_the_test_classes_are_uneven() -> None:
    title, runs = "balanced test accuracy, final weights (%)", [summary(0.5), summary(0.6, 1)]
    for each, balanced in zip(runs, (0.4, 0.44), strict=True):
        each["test"]["final"] |= {"balanced_acc": balanced, "per_class_count": [400, 600]}
    (row,) = cells(table(group_runs(runs)))
    assert title not in row
    for each in runs:
        each["test"]["final"]["per_class_count"] = [200, 600]
    (row,) = cells(table(group_runs(runs)))
    assert row[title] == "42.00 ± 2.83"


def test_folds_are_one_group_and_each_counts_once() -> None:
    runs = [summary(0.5, seed) for seed in (0, 0, 0, 1)]
    for each, fold in zip(runs, (0, 1, 1, 1), strict=True):
        each["config"]["data"] |= {"cv_folds": 5, "cv_fold": fold}
        each["file"] = "summary.json"
    (group,) = group_runs(runs)
    assert len(group.runs) == 3 and group.folds == "0, 1 of 5"
    assert interval(group) == ""  # their training images overlap


def test_the_only_fold_has_its_own_interval() -> None:
    run = summary(0.5)
    run["config"]["data"] |= {"cv_folds": 5, "cv_fold": 2}
    assert interval(*group_runs([run])) == "47.00 to 53.00"


def test_a_label_says_no_more_than_tells_the_groups_apart() -> None:
    runs = [summary(0.5, name="vit"), summary(0.6, name="cnn", widths=[8], depth=3)]
    assert [group.label() for group in group_runs(runs)] == ["model=cnn, …", "model=vit, …"]
    assert "depth" in table(group_runs(runs))


def test_mean_and_spread() -> None:
    assert ACCURACY.text([0.5, 0.6, 0.7]) == "60.00 ± 10.00"
    assert ACCURACY.text([0.5]) == "50.00" and ACCURACY.text([]) == ""
    assert LOSS.text([0.5, 0.6, 0.7]) == "0.6000 ± 0.1000"


def test_unfinished_runs_are_left_out_and_none_at_all_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, summary(0.5), summary(0.1, status="interrupted"))
    assert len(read_summaries([folder])) == 1
    with pytest.raises(ValueError, match="no finished run"):
        read_summaries([folder / "1"])
    with pytest.raises(ValueError, match="does not exist"):
        read_summaries([tmp_path / "nowhere"])


def test_a_protocol_that_selects_on_test_says_so() -> None:
    selected = summary(0.5) | {"selected_on": "test"}
    (row,) = cells(table(group_runs([selected])))
    assert row["test accuracy, best epoch (%)"] == "50.00 (selected on test)"
    assert not any("validation" in column for column in row)


def test_a_setting_that_a_run_does_not_mention_has_its_default() -> None:
    """Of two versions the newer one has more settings."""
    old, new = summary(0.5), summary(0.6, 1)
    new["config"]["task"] = {"name": "classify", "label_smoothing": 0.1}
    assert len(group_runs([old, new])) == 1
    new["config"]["task"]["label_smoothing"] = 0.0
    assert len(group_runs([old, new])) == 2


@pytest.mark.parametrize("number", [[1, 2], "many", {}])
def test_a_summary_without_numbers_is_refused_by_its_file(number: object, tmp_path: Path) -> None:
    bad = summary(0.5)
    bad["images"]["train"] = number
    with pytest.raises(ValueError, match=r"summary\.json is not a summary written by vit-train"):
        gather([written(tmp_path, bad)], tmp_path / "out")


@pytest.mark.parametrize("change", [{"acc": float("nan")}, {"count": None}])
def test_several_summaries_without_numbers_are_refused_too(
    change: dict[str, object], tmp_path: Path
) -> None:
    both = [summary(0.5, seed) for seed in (0, 1)]
    for each in both:
        each["test"]["final"] |= change
    with pytest.raises(ValueError, match=r"summary\.json is not a summary written by vit-train"):
        gather([written(tmp_path, *both)])


def test_a_curve_without_the_images_seen_is_damaged(tmp_path: Path) -> None:
    folder = written(tmp_path, summary(0.5))
    gather([folder])
    (folder / "0/metrics.csv").write_text("epoch,val_loss\n1,0.5\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged: it has no column images_seen"):
        gather([folder])


def test_a_curve_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "MOST_ROWS", 3)
    folder = written(tmp_path, summary(0.5))
    curve = folder / "0/metrics.csv"
    curve.write_text("images_seen\n1\n2\n3\n", encoding="utf-8")
    assert len(read_curve(folder / "0/summary.json")) == 3
    curve.write_text("images_seen\n1\n2\n3\n4\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"metrics\.csv has more than 3 rows"):
        gather([folder])


def test_a_setting_of_a_megabyte_is_shown_shortened(tmp_path: Path) -> None:
    runs = written(tmp_path, summary(0.5), summary(0.6, kernels="x" * 10**6))
    assert len(gather([runs], tmp_path / "out")) < 2000


def test_what_is_no_summary_is_left_out_unless_it_is_meant(tmp_path: Path) -> None:
    folder = written(tmp_path, summary(0.5))
    (folder / "trace.json").write_text('{"a": 1}\n{"a": 2}\n', encoding="utf-8")
    assert len(read_summaries([folder])) == 1
    (folder / "job.json").write_text('{"status": "finished"}', encoding="utf-8")
    (folder / "gone.json").symlink_to("nowhere")
    assert len(read_summaries([folder])) == 1
    with pytest.raises(ValueError, match=r"trace\.json is damaged"):
        read_summaries([folder / "trace.json"])
    (folder / "0" / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary\.json is damaged"):
        read_summaries([folder])


def test_sizes_of_the_training_set_make_a_picture(tmp_path: Path) -> None:
    sizes = {None: 9000, 100: 100, 1000: 1000}  # no subset is all images
    runs = [
        summary(0.5, name=name) | {"images": {"train": count, "val": 0, "test": 1000}}
        for name in ("vit", "cnn")
        for count in sizes.values()
    ]
    for each, subset in zip(runs, [*sizes, *sizes], strict=True):
        each["config"]["data"] = {"name": "shapes", "train_subset": subset}
    (cnn, points), (vit, _) = by_training_images(group_runs(runs), ACCURACY)
    assert (cnn, vit) == ("model=cnn", "model=vit")
    assert points == [(100, [50.0]), (1000, [50.0]), (9000, [50.0])]
    gather([written(tmp_path / "runs", *runs)], tmp_path)
    assert (tmp_path / "images.png").stat().st_size > 3000
    gather([written(tmp_path / "one", *runs[:1])], tmp_path)
    assert not (tmp_path / "images.png").exists()


def test_seconds_in_steps_are_images_by_speed() -> None:
    rows = [(100, 50), (300, 100), (300, 0), (400, 25)]  # 2 s, 2 s, no step, 4 s
    curve = [{"images_seen": float(seen), "images_per_s": float(speed)} for seen, speed in rows]
    assert time_in_steps(curve) == pytest.approx(8)


def test_the_last_epoch_is_of_all_runs_or_of_none() -> None:
    (group,) = group_runs([summary(0.5) | {"curve": [{"train_acc": 0.7}]}, summary(0.6, 1)])
    assert group.last_epochs("train_acc") == []


def test_the_table_and_the_plot_are_written(tmp_path: Path) -> None:
    folder = written(tmp_path / "runs", summary(0.5), summary(0.6, 1), summary(0.7, depth=2))
    text, _ = gather([folder], tmp_path / "out")
    assert (tmp_path / "out" / "results.md").read_text(encoding="utf-8") == text + "\n"
    assert (tmp_path / "out" / "results.png").stat().st_size > 3000
    assert len(text.splitlines()) == 4 and "55.00 ± 7.07" in text


def test_runs_without_labels_are_compared_by_their_loss(tmp_path: Path) -> None:
    def unlabeled(loss: float, seed: int) -> dict:
        result = {"loss": loss, "count": 1000}
        best = {"loss": loss, "epoch": 1}
        other = {"test": {"final": result, "best": result}, "best_val": best}
        return summary(0.5, seed) | other

    folder = written(tmp_path / "runs", unlabeled(0.25, 0), unlabeled(0.35, 1))
    text, _ = gather([folder], tmp_path / "out")
    assert (
        "test loss, final weights" in text and "0.3000 ± 0.0707" in text and "interval" not in text
    )
    with pytest.raises(ValueError, match="compare them separately"):
        gather([folder, written(tmp_path / "more", summary(0.5))], tmp_path / "out")


@pytest.mark.usefixtures("every_figure_is_drawn")
def test_results_of_real_runs(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "runs/0")
    assert run("vit-train", *SMALL, "seed=1", "hydra.run.dir=runs/1").status == 0
    outcome = run("vit-results", "runs")
    assert outcome.status == 0, outcome.err
    assert "| 0, 1 |" in outcome.out and "training accuracy, last epoch" in outcome.out
    assert Path("runs/results.png").exists() and Path("runs/curves.png").stat().st_size > 10000
    assert [path.name for path in Path().iterdir()] == ["runs"]
    # As they are published: X.csv beside X.json.
    Path("kept").mkdir()
    Path("runs/0/summary.json").rename("kept/a.json")
    Path("runs/0/metrics.csv").rename("kept/a.csv")
    kept = run("vit-results", "kept", "--out", "again")
    assert kept.status == 0 and Path("again/curves.png").exists()
    Path("kept/a.csv").write_text("epoch,train_acc\n1,high\n", encoding="utf-8")
    damaged = run("vit-results", "kept")
    assert damaged.status == 1 and "a.csv is damaged" in damaged.err
    refused = run("vit-results", "nothing")
    assert refused.status == 1 and "vit-results: nothing does not exist" in refused.err


def test_an_unfinished_run_is_said_with_how_to_finish_it(
    run: Run, small_run: SmallRun, caplog: pytest.LogCaptureFixture
) -> None:
    small_run("finished", "runs/0")
    small_run("interrupted", "runs/1")
    outcome = run("vit-results", "runs")
    assert outcome.status == 0
    # On stderr but for Hydra's logging, which the runs of this process may have set up.
    said = outcome.out + outcome.err + caplog.text
    assert "left out, because unfinished (interrupted): runs/1. " in said
    assert "Finish it with: vit-train resume=runs/1\n" in said


def test_results_stand_beside_what_was_given(tmp_path: Path, run: Run) -> None:
    written(tmp_path / "all/a", summary(0.5))
    written(tmp_path / "all/b", summary(0.6, 1))
    written(tmp_path / "c", summary(0.7, 2))
    assert run("vit-results", "all/a/0", "all/b").status == 0
    assert Path("all/results.md").exists()
    assert run("vit-results", "all/a/0/summary.json").status == 0
    assert Path("all/a/0/results.md").exists()
    refused = run("vit-results", "all", "c")
    assert refused.status == 1 and "say where to write with --out" in refused.err
    assert run("vit-results", "all", "c", "--out", ".").status == 0 and Path("results.md").exists()


def test_an_empty_argument_is_not_the_current_folder(tmp_path: Path, run: Run) -> None:
    written(tmp_path, summary(0.5))
    for arguments in ([""], ["0", "--out", ""]):
        outcome = run("vit-results", *arguments)
        assert outcome.status == 1 and "no folder is given: the argument is empty" in outcome.err


def cells(text: str) -> list[dict[str, str]]:
    """The table's rows by column."""
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()
    ]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_each_column_says_what_it_is_called() -> None:
    def run_of(seed: int, accuracies: dict[str, float]) -> dict:
        run = summary(0.0, seed)
        run["best_val"]["acc"] = accuracies["val"]
        for name in ("final", "best"):
            low_high = [accuracies[name] - 0.02, accuracies[name] + 0.03]
            result = {"acc": accuracies[name], "count": 1000, "acc_interval_95": low_high}
            run["test"] |= {name: result}
        more = {"images_seen": 3000 + 1000 * seed, "seconds": 60.0 + 120 * seed}
        rows = [{"train_acc": 0.11}, {"train_acc": accuracies["train"]}]
        return run | more | {"curve": rows}

    one = run_of(0, {"train": 0.91, "val": 0.82, "best": 0.73, "final": 0.64})
    one |= {"commit": "0123456789+changes"}
    one |= {"machine": {"gpu": None, "cpu": "EPYC", "threads": 2}}
    (row,) = cells(table(group_runs([one])))
    assert row == {
        "parameters": "1,000", "seeds": "0", "test accuracy, final weights (%)": "64.00",
        "95 % interval": "62.00 to 67.00", "test accuracy, best epoch (%)": "73.00",
        "validation accuracy, best epoch (%)": "82.00",
        "training accuracy, last epoch (%)": "91.00",
        "images seen": "3,000", "minutes": "1.0", "cores": "2", "commit": "0123456+changes",
        "machine": "EPYC",
    }  # fmt: skip
    other = run_of(1, {"train": 0.93, "val": 0.86, "best": 0.79, "final": 0.72})
    other |= {"commit": "abcdefghij", "machine": {"gpu": "H100", "cpu": "EPYC", "threads": 16}}
    (row,) = cells(table(group_runs([one, other])))
    assert row == row | {
        "seeds": "0, 1", "test accuracy, final weights (%)": "68.00 ± 5.66",
        "test accuracy, best epoch (%)": "76.00 ± 4.24",
        "validation accuracy, best epoch (%)": "84.00 ± 2.83",
        "training accuracy, last epoch (%)": "92.00 ± 1.41",
        "images seen": "3,500", "minutes": "1.0 to 3.0",
        "commit": "0123456+changes, abcdefg", "machine": "EPYC, H100",
    }  # fmt: skip


def test_runs_that_agree_are_as_uncertain_as_one() -> None:
    """All have seen the same 1000 test images: several runs do not make them more."""
    runs = [summary(0.5, seed) for seed in range(4)]
    (row,) = cells(table(group_runs(runs)))
    low, high = wilson_interval(500, 1000)
    assert row["95 % interval"] == f"{100 * low:.2f} to {100 * high:.2f}"


@pytest.mark.parametrize("selected, name", [("val", "validation"), ("test", "test, each epoch")])
def test_the_curves_say_what_the_best_epoch_was_chosen_on(selected: str, name: str) -> None:
    rows = [{"images_seen": 1.0, "train_acc": 0.1, "val_acc": 0.2}]
    runs = [summary(0.5, seed) | {"curve": rows, "selected_on": selected} for seed in (0, 1)]
    figures = plots(group_runs(runs))
    (legend,) = figures["curves.png"].legends
    assert [text.get_text() for text in legend.get_texts()] == [name, "training"]
    (axis,) = figures["results.png"].axes
    assert axis.patches[0].get_width() == 50 and list(axis.lines[0].get_xdata()) == [50, 50]


def test_groups_stand_by_the_size_of_numbers_before_words() -> None:
    runs = [summary(0.5, depth=depth) for depth in ("auto", 10, 9, None)]
    assert [group.settings["model.depth"] for group in group_runs(runs)] == [9, 10, "auto", "null"]


def test_points_stand_by_their_number_of_images_whatever_their_settings() -> None:
    runs = []
    for subset, count in ((10, 900), (20, 30), (5, 60)):
        runs.append(summary(0.5) | {"images": {"train": count, "val": 0, "test": 1000}})
        runs[-1]["config"]["data"] = {"name": "shapes", "train_subset": subset}
    ((_, points),) = by_training_images(group_runs(runs), ACCURACY)
    assert [count for count, _ in points] == [30, 60, 900]


def test_runs_on_other_images_of_one_folder_are_no_repetitions() -> None:
    """A folder may have changed between two runs."""
    runs = []
    for seed, fingerprint in ((2, "aaaa"), (1, "aaaa"), (3, "bbbb")):
        runs.append(summary(0.5, seed) | {"fingerprint": fingerprint})
        runs[-1]["config"]["data"] = {"name": "folder", "root": "photos", "image_size": 32}
    groups = group_runs(runs)
    assert [group.label() for group in groups] == ["root=photos (aaaa)", "root=photos (bbbb)"]
    assert [[run["config"]["seed"] for run in group.runs] for group in groups] == [[1, 2], [3]]
    runs[0]["config"]["data"]["root"] = f"/{30 * 'far/'}photos"  # the same images
    assert [group.label() for group in group_runs(runs)] == [group.label() for group in groups]
    assert interval(group_runs(runs[:2])[0]) == interval(group_runs(runs[1::-1])[0])
