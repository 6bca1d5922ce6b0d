"""What is read from the event file: under which name, at which step, which number."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from vit_train.engine.answers import Answers
from vit_train.engine.callbacks import TrainLog
from vit_train.engine.config import LoopConfig
from vit_train.engine.metrics import Classification
from vit_train.report.tensorboard import TensorBoard

LOG = TrainLog(3, 42, 1344, {"loss": 1.5, "acc": 0.25}, 1e-3, 640.0)
ANSWERS = Answers(np.zeros(8, int), np.eye(2)[[0, 0, 0, 0, 1, 1, 1, 1]] * 100)
RESULT = Classification(8, 0.75, 0.5, 0.875, [4, 0], [8, 0], ANSWERS)


def trainer(log_every: int) -> SimpleNamespace:
    return SimpleNamespace(loop=LoopConfig(log_every=log_every))


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def test_every_number_stands_at_its_step_under_its_name(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.on_log(None, LOG)
    board.on_epoch(trainer(log_every=20), LOG, RESULT)
    board.results({"final": RESULT}, 50)
    board.close({"model": {"depth": 2}}, {"test_acc_final": 0.5})
    events = read(tmp_path)
    points = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    expected = {
        "train/loss": (42, 1.5), "train/acc": (42, 0.25), "train/lr": (42, 1e-3),
        "train/images_per_s": (42, 640), "train/images_seen": (42, 1344),
        "val/loss": (42, 0.75), "val/acc": (42, 0.5), "val/top5": (42, 0.875),
        "val/balanced_acc": (42, 0.5),
        "val/ece": (42, 0.5),
        "val/selective_acc": (42, 0.5),
        "final/test_acc_final": (0, 0.5),
    }  # fmt: skip
    assert points.keys() == expected.keys()
    for tag, (step, value) in expected.items():
        assert points[tag] == [(step, pytest.approx(value))], tag
    (table,) = events.Tensors("test/text_summary")
    header, _, row = table.tensor_proto.string_val[0].decode().splitlines()
    assert header.startswith("| test images | loss | acc | top5 |") and table.step == 50
    assert row.startswith("| final weights | 0.7500 | 0.5000 | 0.8750 |")


def test_training_and_validation_share_a_chart(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.begin("a: 1", ("loss", "acc"))
    board.close({}, {})
    (layout,) = read(tmp_path).Tensors("custom_scalars__config__")
    charts = layout_pb2.Layout.FromString(layout.tensor_proto.string_val[0]).category
    assert [chart.title for chart in charts] == ["loss", "acc"]
    assert list(charts[1].chart[0].multiline.tag) == ["train/acc", "val/acc"]


def test_a_run_that_is_shorter_than_a_log_has_curves(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    for step in (15, 30, 45, 60):
        board.on_epoch(trainer(log_every=50), replace(LOG, step=step), None)
    board.close({}, {})
    assert [event.step for event in read(tmp_path).Scalars("train/loss")] == [15, 30, 45]


def test_a_picture_is_shown_as_it_is_at_its_step(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    board = TensorBoard(tmp_path)
    board.picture("pictures", Image.fromarray(pixels), 17)
    board.flush()
    (event,) = read(tmp_path).Images("pictures")
    assert (event.step, event.width, event.height) == (17, 9, 6)


def test_after_a_failure_it_goes_on_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = TensorBoard(tmp_path)
    broken, full = board.writer, OSError("No space left on device")

    def fail(*what: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(broken, "add_scalar", fail)
        with pytest.raises(OSError, match="No space"):
            board.scalar("train/loss", 1.0, 1)
        board.scalar("train/loss", 2.0, 2)
    assert board.writer is not broken
    board.flush()
    assert [(event.step, event.value) for event in read(tmp_path).Scalars("train/loss")] == [(2, 2)]
    board.close({}, {})
    broken.close()
