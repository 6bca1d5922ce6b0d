import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, Run, SmallRun, csv_rows
from scipy import stats

from vit_train.evaluate.cells import interval_cell, seconds_in_steps
from vit_train.evaluate.differences import LAST_LOOK, Difference, find_baseline
from vit_train.evaluate.results import (
    draw_groups,
    gather_results,
    latex_cell,
    short_rows,
    table,
    text_table,
)
from vit_train.evaluate.summaries import Group, group_runs, read_summaries


def summary(acc: float, seed: int = 0, changes: dict[str, Any] | None = None, **more: Any) -> dict:
    """A run's summary with changes at dotted keys, and others at its top."""
    result = {"acc": acc, "count": 1000, "acc_interval_95": [acc - 0.03, acc + 0.03]}
    config = {
        "model": {"name": "vit", "depth": 6}, "data": {"name": "shapes"}, "seed": seed,
        "task": {"name": "classify"}, "optim": {"name": "adamw"},
    }  # fmt: skip
    content = {
        "status": "finished", "config": config,
        "parameters": 1000, "images": {"train": 500, "val": 0, "test": 1000}, "images_seen": 5000,
        "seconds": 120.0, "selected_on": "val", "best_val": {"acc": acc, "epoch": 1},
        "test": {"final": dict(result), "best": dict(result)},
    }  # fmt: skip
    for key, value in (changes or {}).items():
        *way, last = key.split(".")
        inner = content
        for each in way:
            inner = inner.setdefault(each, {})
        inner[last] = value
    return content | more


def written(folder: Path, *summaries: dict) -> Path:
    for number, each in enumerate(summaries):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "summary.json").write_text(json.dumps(each), encoding="utf-8")
    return folder


def labels(*runs: dict) -> list[str]:
    return [group.label() for group in group_runs(list(runs))]


def sizes(*runs: dict) -> list[int]:
    return [len(group.runs) for group in group_runs(list(runs))]


def test_runs_that_differ_in_their_seed_alone_are_one_row() -> None:
    """Sorted: model.depth comes after model.name, and its numbers by size."""
    shallow, cnn = summary(0.7, 0, {"config.model.depth": 2}), {"config.model.name": "cnn"}
    runs = [summary(0.5, 0), summary(0.6, 1), shallow, summary(0.9, 0, cnn)]
    assert labels(*runs) == ["model=cnn, depth=6", "model=vit, depth=2", "model=vit, depth=6"]
    assert sizes(*runs) == [1, 1, 2]
    depths = [
        summary(0.5, 0, {"config.model.depth": depth}) for depth in (True, "auto", 10, 9, None)
    ]
    groups = group_runs(depths)
    found = [group.settings["model.depth"] for group in groups]
    assert found == [9, 10, True, "auto", "null"]  # numbers before words
    words = ("9.0", "1e1", "true")  # as on the command line
    assert [find_baseline(groups, f"depth={each}") for each in words] == groups[:3]


def test_a_run_that_is_repeated_counts_once_and_the_newest_counts(tmp_path: Path) -> None:
    folder = written(tmp_path, summary(0.5), summary(0.6, 1), summary(0.7))
    os.utime(folder / "0/summary.json", (2e9, 2e9))  # of the same day, but written last
    for paths in ([folder], [folder, folder / "0"]):
        (group,) = group_runs(read_summaries(paths))
        assert sorted(group.values("test", "final", "acc")) == [0.5, 0.6]
    dates = {0.7: "2026-02-01", 0.5: "2026-01-01"}
    runs = [summary(acc, date=date, file="summary.json") for acc, date in dates.items()]
    (group,) = group_runs(runs)
    assert group.values("test", "final", "acc") == [0.7]


FOLDER = {"config.data.name": "folder", "config.data.root": "a"}
CIFAR = {"config.data.name": "cifar10", "config.data.root": "a"}


@pytest.mark.parametrize(
    "one, other, groups",
    [
        # what changes no result
        ({"config.device": "cuda"}, {}, 1),
        ({"config.checkpoint.every_steps": 5}, {"config.checkpoint.every_steps": None}, 1),
        ({"config.train.eval_batch_size": 7}, {}, 1),
        ({"config.optim.warmup_epochs": 1}, {"config.optim.warmup_epochs": 1.0}, 1),
        (CIFAR, CIFAR | {"config.data.root": "b"}, 1),
        # a setting that one run does not mention has its default
        ({"config.task.label_smoothing": 0.1}, {}, 1),
        ({"config.task.label_smoothing": 0.0}, {}, 2),
        # what may change a result
        ({"config.compile": True}, {}, 2),
        ({"precision": "bf16"}, {"precision": "fp32"}, 2),
        (FOLDER, FOLDER | {"config.data.root": "b"}, 2),
        (FOLDER | {"config.data.decisions": "a.csv"}, FOLDER | {"config.data.decisions": "b"}, 2),
    ],
)
def test_what_may_change_a_result_makes_a_group(
    one: dict[str, Any], other: dict[str, Any], groups: int
) -> None:
    assert len(sizes(summary(0.5, 0, one), summary(0.6, 1, other))) == groups


@pytest.mark.parametrize(
    "source, root, same", [("folder", "photos", f"/{30 * 'far/'}photos"), ("table", ".", ".")]
)
def test_runs_on_other_images_of_one_folder_are_no_repetitions(
    source: str, root: str, same: str
) -> None:
    """A folder may have changed between two runs."""
    photos = FOLDER | {"config.data.name": source, "config.data.root": root}
    seeds = {2: "aaaa", 1: "aaaa", 3: "bbbb"}
    runs = [summary(0.5, seed, photos, fingerprint=each) for seed, each in seeds.items()]
    assert labels(*runs) == [f"root={root} (aaaa)", f"root={root} (bbbb)"]
    groups = group_runs(runs)
    assert [[run["config"]["seed"] for run in group.runs] for group in groups] == [[1, 2], [3]]
    runs[0]["config"]["data"]["root"] = same  # the same images
    assert labels(*runs) == [f"root={root} (aaaa)", f"root={root} (bbbb)"]


def test_a_table_names_another_precision_than_fp32_even_if_all_runs_have_it() -> None:
    for name in ("fp32", "bf16"):
        runs = [summary(0.5, seed, precision=name) for seed in (0, 1)]
        header, _, row = table(group_runs(runs), None).splitlines()
        assert header.startswith("| precision |") == row.startswith("| bf16 |") == (name == "bf16")
    mixed = group_runs([summary(0.5, precision="fp32"), runs[1]])
    assert table(mixed, None).splitlines()[0].count("precision") == 1


def test_extended_runs_are_grouped_by_how_long_those_before_them_were() -> None:
    runs = [summary(0.5)]
    for seed, folder, epochs in ((0, "a", 30), (1, "b", 30), (0, "c", 10)):
        before = [
            {"run": run, "epochs": before, "recipe": "r"}
            for run, before in (("first", 5), (folder, epochs))
        ]
        runs.append(summary(0.5, seed, {"config.extend": folder}, extends=before))
    groups = group_runs(runs)
    said = [group.settings["extend"] for group in groups]
    assert said == ["10 epochs of r", "30 epochs of r", "null"]
    assert sizes(*runs) == [1, 2, 1]
    runs[1]["extends"][-1]["recipe"] = "3fa1b2c3"
    assert sizes(*runs) == [1, 1, 1, 1]


@pytest.mark.parametrize("counts, shown", [([400, 600], None), ([200, 600], "42.00 ± 2.83")])
def test_balanced_accuracy_is_shown_where_the_test_classes_are_uneven(
    counts: list[int], shown: str | None
) -> None:
    final = {"test.final.per_class_count": counts}
    balanced = [final | {"test.final.balanced_acc": each} for each in (0.4, 0.44)]
    runs = [summary(0.5, seed, each) for seed, each in enumerate(balanced)]
    (row,) = cells(table(group_runs(runs), None))
    assert row.get("balanced test accuracy, final weights (%)") == shown


def test_folds_are_one_group_and_each_counts_once() -> None:
    folds = [{"config.data.cv_folds": 5, "config.data.cv_fold": fold} for fold in range(3)]
    places = ((0, 0), (0, 1), (0, 1), (1, 1))
    runs = [summary(0.5, seed, folds[fold], file="summary.json") for seed, fold in places]
    (group,) = group_runs(runs)
    assert len(group.runs) == 3 and group.folds == "0, 1 of 5"
    assert interval_cell(group) == ""  # their training images overlap
    assert interval_cell(*group_runs([summary(0.5, 0, folds[2])])) == "47.00 to 53.00"


def test_a_label_says_no_more_than_tells_the_groups_apart() -> None:
    other = {"config.model": {"name": "cnn", "widths": [8], "depth": 3}}
    runs = [summary(0.5), summary(0.6, 0, other)]
    assert labels(*runs) == ["model=cnn, …", "model=vit, …"]
    assert "depth" in table(group_runs(runs), None)


def test_unfinished_runs_are_left_out_and_none_at_all_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = ("interrupted", "diverged")
    folder = written(tmp_path, summary(0.5), *(summary(0.1, status=status) for status in ends))
    assert len(read_summaries([folder])) == 1
    interrupted, diverged = caplog.messages
    assert interrupted == (
        f"left out (interrupted): {folder / '1'}. Unless it is still training, finish it with: "
        f"vit-train resume={folder / '1'}"
    )
    assert diverged == f"left out (diverged): {folder / '2'}"  # it would diverge again
    for path, words in ((folder / "1", "of a finished run"), (folder / "no", "does not exist")):
        with pytest.raises(ValueError, match=words):
            read_summaries([path])


def test_a_protocol_that_selects_on_test_says_so() -> None:
    (row,) = cells(table(group_runs([summary(0.5, selected_on="test")]), None))
    assert row["test accuracy, best epoch (%)"] == "50.00 (selected on test)"
    assert not any("validation" in column for column in row)


@pytest.mark.parametrize(
    "change",
    [
        *({"images_seen": each} for each in ([1, 2], "many", {})),
        *({f"test.final.{key}": each} for key, each in (("acc", float("nan")), ("count", None))),
    ],
    ids=str,
)
def test_summaries_without_numbers_are_refused_by_their_file(
    change: dict[str, Any], tmp_path: Path
) -> None:
    both = [summary(0.5, seed, change) for seed in (0, 1)]
    with pytest.raises(ValueError, match=r"summary\.json was not written by vit-train"):
        gather_results([written(tmp_path, *both)], tmp_path / "out", None)


def test_a_setting_of_a_megabyte_is_shown_shortened(tmp_path: Path) -> None:
    long = summary(0.6, 0, {"config.model.kernels": "x" * 10**6})
    gather_results([written(tmp_path, summary(0.5), long)], tmp_path / "out", None)
    assert (tmp_path / "out/results.md").stat().st_size < 2000


def test_what_is_no_summary_is_left_out_unless_it_is_meant(tmp_path: Path) -> None:
    folder = written(tmp_path, summary(0.5))
    (folder / "trace.json").write_text('{"a": 1}\n{"a": 2}\n', encoding="utf-8")
    (folder / "job.json").write_text('{"status": "finished"}', encoding="utf-8")
    (folder / "gone.json").symlink_to("nowhere")
    assert len(read_summaries([folder])) == 1
    (folder / "0" / "summary.json").write_text("{", encoding="utf-8")
    for path, name in ((folder / "trace.json", "trace"), (folder, "summary")):
        with pytest.raises(ValueError, match=rf"{name}\.json is damaged"):
            read_summaries([path])


def test_seconds_in_steps_are_images_by_speed() -> None:
    rows = [(100, 50), (300, 100), (300, 0), (400, 25)]  # 2 s, 2 s, no step, 4 s
    curve = [{"images_seen": float(seen), "images_per_s": float(speed)} for seen, speed in rows]
    assert seconds_in_steps(Group({}, [{"curve": curve}])) == pytest.approx([8])


def test_the_last_epoch_is_of_all_runs_or_of_none() -> None:
    (group,) = group_runs([summary(0.5, curve=[{"train_acc": 0.7}]), summary(0.6, 1)])
    assert group.last_epochs("train_acc") == []


def test_runs_without_labels_are_compared_by_their_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unlabeled = []
    for seed, loss in enumerate((0.25, 0.35)):
        result = {"loss": loss, "count": 1000}
        test, best = {"final": result, "best": result}, {"loss": loss, "epoch": 1}
        unlabeled.append(summary(0.5, seed, test=test, best_val=best))
    folder = written(tmp_path / "runs", *unlabeled)
    gather_results([folder], tmp_path / "out", None)
    shown = capsys.readouterr().out
    text = (tmp_path / "out/results.md").read_text(encoding="utf-8")
    assert "test loss, final weights" in text and "0.3000 ± 0.0707" in text
    assert "0.3000 ± 0.0707" in shown and "interval" not in shown + text
    with pytest.raises(ValueError, match="different measures"):
        gather_results([folder, written(tmp_path / "more", summary(0.5))], tmp_path / "out", None)


@pytest.mark.usefixtures("every_figure_is_drawn")
def test_results_of_real_runs(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "runs/0")
    run.succeeds("vit-train", *SMALL, "seed=1", "hydra.run.dir=runs/1")
    outcome = run.succeeds("vit-results", "runs")
    assert re.match(
        r"runs +test accuracy, % +95 % interval +settings \(final weights\)\n2  ", outcome.out
    )
    text = Path("runs/results.md").read_text(encoding="utf-8")
    assert "| 0, 1 |" in text and "training accuracy, last epoch" in text
    assert Path("runs/curves.png").stat().st_size > 10000
    assert [path.name for path in Path().iterdir()] == ["runs"]
    # As they are published: X.csv beside X.json.
    Path("kept").mkdir()
    Path("runs/0/summary.json").rename("kept/a.json")
    Path("runs/0/metrics.csv").rename("kept/a.csv")
    run.succeeds("vit-results", "kept", "--out", "again")
    assert Path("again/curves.png").exists()
    for text in ("epoch,train_acc\n1,high\n", "epoch,val_loss\n1,0.5\n"):
        Path("kept/a.csv").write_text(text, encoding="utf-8")
        run.fails("a.csv is damaged", "vit-results", "kept")


@pytest.mark.parametrize("setting, same", [("num_classes=9,10", False), ("image_size=16,32", True)])
def test_only_results_on_the_same_images_are_subtracted(run: Run, setting: str, same: bool) -> None:
    train = ["vit-train", *SMALL, "train.epochs=1", "model.depth=1", f"data.{setting}"]
    if same:
        run.succeeds(*train, "-m")
    else:
        run.fails("on the same validation images", *train, "seed=auto")
    assert ("other test images" in run.succeeds("vit-results", "outputs").out) != same


@pytest.mark.parametrize("key, value", [("count", 131), ("per_class_count", [9, 8])])
def test_early_results_on_other_numbers_of_images_are_not_subtracted(
    run: Run, key: str, value: object
) -> None:
    other = {f"test.final.{key}": value, "config.model.depth": 7}
    written(Path("runs"), summary(0.5), summary(0.6, 0, other))
    run.says("other test images", "vit-results", "runs")


def test_a_vit_with_few_steps_is_warned_of(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "runs/0")
    train = ["vit-train", *SMALL, "train.max_minutes=1e-9"]
    run.says("fewer than 500 steps: use train.epochs=100 or more", *train, "hydra.run.dir=runs/1")
    for enough in ("train.epochs=100", "init_from=runs/0"):
        assert "random weights" not in run.succeeds(*train, enough).said


def test_results_stand_beside_what_was_given(tmp_path: Path, run: Run) -> None:
    written(tmp_path / "all/a", summary(0.5))
    written(tmp_path / "all/b", summary(0.6, 1))
    written(tmp_path / "c", summary(0.7, 2))
    for place, *arguments in (
        ("all", "all/a/0", "all/b"),
        ("all/a/0", "all/a/0/summary.json"),
        (".", "all", "c"),
        ("new", "all", "c", "--out", "new"),
    ):
        run.succeeds("vit-results", *arguments)
        assert Path(place, "results.md").exists()


def cells(text: str) -> list[dict[str, str]]:
    """The table's rows by column."""
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()
    ]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_each_column_has_what_its_title_names() -> None:
    def run_of(seed: int, train: float, val: float, best: float, final: float, **more: Any) -> dict:
        changes: dict[str, Any] = {"best_val.acc": val, "images_seen": 3000 + 1000 * seed}
        for name, acc in (("final", final), ("best", best)):
            changes |= {f"test.{name}.acc": acc}
            changes |= {f"test.{name}.acc_interval_95": [acc - 0.02, acc + 0.03]}
        rows = [
            {"train_acc": acc, "images_seen": images, "images_per_s": 25.0}
            for acc, images in ((0.11, 1500), (train, 3000))
        ]
        return summary(0.0, seed, changes, curve=rows, seconds=60.0 + 120 * seed, **more)

    cpu, gpu = {"gpu": None, "cpu": "EPYC", "threads": 2}, {"gpu": "H100", "threads": 16}
    one = run_of(0, 0.91, 0.82, 0.73, 0.64, commit="0123456789+changes", machine=cpu)
    (row,) = cells(table(group_runs([one]), None))
    assert row == {
        "parameters": "1,000", "seeds": "0", "test accuracy, final weights (%)": "64.00",
        "95 % interval": "62.00 to 67.00", "test accuracy, best epoch (%)": "73.00",
        "validation accuracy, best epoch (%)": "82.00",
        "training accuracy, last epoch (%)": "91.00",
        "images seen": "3,000", "minutes": "1.0", "minutes in steps": "2.0",
        "cores": "2", "commit": "0123456+changes",
        "machine": "EPYC",
    }  # fmt: skip
    other = run_of(1, 0.93, 0.86, 0.79, 0.72, commit="abcdefghij", machine=cpu | gpu)
    (row,) = cells(table(group_runs([one, other]), None))
    assert row == row | {
        "seeds": "0, 1", "test accuracy, final weights (%)": "68.00 ± 5.66",
        "test accuracy, best epoch (%)": "76.00 ± 4.24",
        "validation accuracy, best epoch (%)": "84.00 ± 2.83",
        "training accuracy, last epoch (%)": "92.00 ± 1.41",
        "images seen": "3,500", "minutes": "1.0 to 3.0",
        "commit": "0123456+changes, abcdefg", "machine": "EPYC, H100",
    }  # fmt: skip


@pytest.mark.parametrize(
    "selected, name", [("val", "validation"), ("test", "test set, each epoch")]
)
def test_the_curves_say_what_the_best_epoch_was_chosen_on(selected: str, name: str) -> None:
    rows = [{"images_seen": 1.0, "train_acc": 0.1, "val_acc": 0.2}]
    runs = [summary(0.5, seed, curve=rows, selected_on=selected) for seed in (0, 1)]
    (legend,) = draw_groups(group_runs(runs)).legends
    title = f"solid: {name}, dashed: training; bands: lowest to highest"
    assert legend.get_title().get_text() == title


POSITIONS = [{"config.model.positions": each} for each in ("learned", "none", "rotary_2d")]
# Seeds 0 to 2 of learned positions, 1 to 3 of none, and 9 of rotary positions.
PAIRS = [
    *(summary(0.50 + seed / 100, seed, POSITIONS[0]) for seed in range(3)),
    *(summary(0.44 + seed * seed / 100, seed, POSITIONS[1]) for seed in (1, 2, 3)),
    summary(0.7, 9, POSITIONS[2]),
]


def test_differences_are_of_the_same_seeds() -> None:
    groups = group_runs(PAIRS)
    learned, none, rotary = cells(table(groups, find_baseline(groups, "positions=learned")))
    title = "difference (95 % interval)"
    # Of 51 and 52 %, 45 and 48 %: −6 and −4, of which Student's t is ±12.706.
    assert none[title] == "-5.00 (-17.71 to +7.71)"
    assert learned[title] == "baseline" and rotary[title] == "no seed in common"
    other = cells(table(groups, find_baseline(groups, "model.positions=none")))
    assert other[0][title] == "+5.00 (-7.71 to +17.71)"
    for words, count in (("positions=sinusoidal", 0), ("", 0)):
        with pytest.raises(ValueError, match=f"matches {count} rows, but must match one of: "):
            find_baseline(groups, words)


def test_a_difference_is_scipys() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.01, 0.02, 6)
    found = stats.ttest_rel(values, np.zeros(6)).confidence_interval(0.95)
    assert Difference(list(values)).interval == pytest.approx(tuple(found), abs=1e-5)
    assert Difference([0.1]).interval is Difference([0.1, 0.1]).interval is None


def test_the_table_on_the_terminal_ends_with_the_settings() -> None:
    groups = group_runs(PAIRS)
    header, *rows = text_table(short_rows(groups, groups[0])).splitlines()
    titles = ("runs", "test accuracy, %", "95 % interval", "difference", "settings (final weights)")
    assert re.split("  +", header) == [*titles]
    cells = ["3", "48.67 ± 4.04", "41.03 to 56.32", "-5.00 (-17.71 to +7.71)", "positions=none"]
    assert re.split("  +", rows[1]) == cells
    assert any("If an interval includes 0" in line for line in rows)
    assert "difference" not in short_rows(groups[:1], None)[0]  # there is nothing to compare


def test_own_measures_are_columns(tmp_path: Path) -> None:
    runs = [summary(0.5, seed, {"test.final.sureness": 0.2 + seed / 10}) for seed in range(2)]
    assert cells(table(group_runs(runs), None))[0]["sureness"] == "0.2500 ± 0.0707"
    gather_results([written(tmp_path, *runs)], None, None)
    (row,) = csv_rows(tmp_path / "results.csv")
    assert float(row["sureness_mean"]) == pytest.approx(0.25)
    built_in = table(group_runs([summary(0.5, 0, {"test.final.ece": 0.2})]), None)
    assert "ece" not in cells(built_in)[0]


def test_a_sequential_test_decides_only_what_is_clear() -> None:
    same = Difference(list(np.random.default_rng(0).normal(0, 1, LAST_LOOK)))
    assert not same.is_significant and not Difference([1.0, 1.0]).is_significant
    assert Difference([1.0, 1.001, 1.002]).is_significant
    assert Difference([-1.0, -1.001, -1.002]).is_significant


@pytest.mark.slow
def test_intervals_and_sequential_tests_err_as_rarely_as_they_say() -> None:
    """Of 10,000 pairs of settings that are equally good, on 1000 test images."""
    rng = np.random.default_rng(0)
    correct = rng.binomial(1000, 0.6, (2, 10_000, LAST_LOOK)) / 1000
    false = covered = 0
    for values in correct[0] - correct[1]:
        looks = [Difference(list(values[:count])) for count in range(2, LAST_LOOK + 1)]
        false += any(each.is_significant for each in looks)
        low, high = looks[1].interval or (1, 1)
        covered += low <= 0 <= high
    print(f"{false / 100} % decided by mistake; {covered / 100} % of the intervals hold 0")
    assert false <= 500 and covered >= 9400


def test_tables_for_analysis_have_a_row_for_each_group_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [each | {"config": each["config"] | {"name": "=1+1"}} for each in PAIRS]
    gather_results([written(tmp_path, *named)], None, None)
    rows = csv_rows(tmp_path / "runs.csv")
    assert [row["seed"] for row in rows] == ["0", "1", "2", "1", "2", "3", "9"]
    assert [float(row["test_final"]) for row in rows[:2]] == [0.5, 0.51]
    assert rows[0]["name"] == "'=1+1" and rows[0]["model.positions"] == "learned"
    learned, none, rotary = csv_rows(tmp_path / "results.csv")
    assert (none["runs"], rotary["difference"], learned["difference_low"]) == ("3", "", "")
    accs = [0.45, 0.48, 0.53]
    assert float(none["test_final_mean"]) == pytest.approx(np.mean(accs))
    assert float(none["test_final_std"]) == pytest.approx(np.std(accs, ddof=1))
    assert float(none["difference"]) == pytest.approx(-0.05)
    ends = stats.t.interval(0.95, 1, -0.05, 0.01)
    assert [float(none[f"difference_{end}"]) for end in ("low", "high")] == pytest.approx(ends)
    tex = (tmp_path / "results.tex").read_text(encoding="utf-8").splitlines()
    assert tex[0] == r"\begin{tabular}{lllll}" and tex[-2:] == [r"\bottomrule", r"\end{tabular}"]
    numbers = r"3 & 48.67 $\pm$ 4.04 & 41.03 to 56.32 & $-$5.00 ($-$17.71 to +7.71)"
    assert tex[5].startswith(rf"{numbers} & =1+1: ")
    assert r"positions=rotary\_2d" in tex[6]
    cells = {"lr=1e-3, cifar-10, -2": "lr=1e-3, cifar-10, $-$2", "<a|b>": "$<$a$|$b$>$"}
    assert list(map(latex_cell, cells)) == list(cells.values())
    assert gather_results([tmp_path], None, "name==1+1,positions=none") == tmp_path
    shown = capsys.readouterr().out
    assert re.search(r"\n3 .+ baseline .+=1\+1: positions=none\n", shown)
