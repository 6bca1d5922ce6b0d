"""What is read from the event file: under which name, at which step, which number."""

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.hparams.backend_context import _sort_and_reduce_to_hparams_limit
from torch import nn

from vit_train.base.writing import write_from
from vit_train.engine.config import LoopConfig
from vit_train.engine.metrics import Classification, Predictions
from vit_train.engine.trainer import TrainLog
from vit_train.training import tensorboard as event_file
from vit_train.training.tensorboard import TensorBoard

LOG = TrainLog(3, 42, 1344, {"loss": 1.5, "acc": 0.25}, 1e-3, 640.0)
ANSWERS = Predictions(np.zeros(8, int), np.eye(2)[[0, 0, 0, 0, 1, 1, 1, 1]] * 100)
RESULT = Classification(8, 0.75, 0.5, 0.875, 0.5, [4, 0], [8, 0], ANSWERS)


def trainer(log_every: int) -> SimpleNamespace:
    return SimpleNamespace(loop=LoopConfig(log_every=log_every), model=nn.Identity())


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def test_every_number_stands_at_its_step_under_its_name(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.on_log(trainer(log_every=20), LOG)
    board.on_epoch(trainer(log_every=20), LOG, RESULT)
    board.results({"final": RESULT}, 50)
    board.close({"model": {"depth": 2}}, {"test/acc": 0.5})
    board.file.flush()
    events = read(tmp_path)
    points = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    expected = {
        "loss/train": (42, 1.5), "acc/train": (42, 0.25), "train/lr": (42, 1e-3),
        "train/images_per_s": (42, 640), "train/images_seen": (42, 1344),
        "loss/val": (42, 0.75), "acc/val": (42, 0.5), "val/top5": (42, 0.875),
        "val/balanced_acc": (42, 0.5),
        "val/ece": (42, 0.5),
        "val/selective_acc": (42, 0.5),
        "test/acc": (0, 0.5),
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
    board.file.flush()
    (layout,) = read(tmp_path).Tensors("custom_scalars__config__")
    charts = layout_pb2.Layout.FromString(layout.tensor_proto.string_val[0]).category
    titles = [chart.title for chart in charts]
    assert titles == ["loss", "acc", "schedule", "norms", "speed"]
    assert list(charts[1].chart[0].multiline.tag) == ["acc/train", "acc/val"]
    assert [list(chart.multiline.tag) for chart in charts[3].chart] == [
        ["weight gradient norm/.*"],
        ["weight norm/.*"],
    ]


def test_the_norms_of_weights_and_gradients_are_those_of_each_layer(tmp_path: Path) -> None:
    model = nn.Module()
    model.embed = nn.Linear(3, 2)
    model.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    model.frozen = nn.Linear(2, 2).requires_grad_(False)
    parts = {"embed": model.embed, "blocks.0": model.blocks[0], "blocks.1": model.blocks[1]}
    for part in parts.values():
        for parameter in part.parameters():
            parameter.grad = torch.randn_like(parameter)
    board = TensorBoard(tmp_path)
    board.on_log(SimpleNamespace(model=model), LOG)
    board.close({}, {})
    board.file.flush()
    events = read(tmp_path)
    tags = {tag for tag in events.Tags()["scalars"] if "norm" in tag}
    kinds = ("weight", "weight gradient")
    assert tags == {f"{kind} norm/{name}" for kind in kinds for name in parts}
    for name, part in parts.items():
        whole = torch.cat([torch.stack((p, p.grad)).flatten(1) for p in part.parameters()], dim=1)
        for kind, expected in zip(kinds, whole.norm(dim=1), strict=True):
            (event,) = events.Scalars(f"{kind} norm/{name}")
            assert event.step == 42 and event.value == pytest.approx(expected.item())


def test_the_settings_that_were_chosen_come_first(tmp_path: Path) -> None:
    """As TensorBoard itself sorts them, and among the final results alone."""
    board = TensorBoard(tmp_path)
    board.scalar("loss/train", 2.0, 1)
    chosen = ["e", "b.d", "resume"]
    board.close({"a": 1, "b": {"c": 2, "d": 3}, "e": 4}, {"test/acc": 1.0}, chosen)
    board.file.flush()
    (path,) = tmp_path.glob("events*")
    loaded = EventAccumulator(str(path)).Reload()
    content = loaded.SummaryMetadata("_hparams_/experiment").plugin_data.content
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    _sort_and_reduce_to_hparams_limit(experiment)
    assert [info.name for info in experiment.hparam_infos] == ["b.d", "e", "a", "b.c"]
    assert [info.name.tag for info in experiment.metric_infos] == ["test/acc"]


def test_a_run_that_is_shorter_than_a_log_has_curves(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    for step in (15, 30, 45, 60):
        board.on_epoch(trainer(log_every=50), replace(LOG, step=step), None)
    board.close({}, {})
    board.file.flush()
    assert [event.step for event in read(tmp_path).Scalars("loss/train")] == [15, 30, 45]


def test_a_figure_is_shown_as_it_is_at_its_step(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    png = board.figure("pictures", Figure(figsize=(0.9, 0.6), dpi=10), 17)
    board.file.flush()
    (event,) = read(tmp_path).Images("pictures")
    assert (event.step, event.width, event.height) == (17, 9, 6)
    assert event.encoded_image_string == png


def test_a_failure_of_the_disk_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it happens in the middle of a record."""
    board = TensorBoard(tmp_path)

    def half(path: Path, start: int, content: bytes) -> None:
        write_from(path, start, content[: len(content) // 2])
        raise OSError("No space left on device")

    for step in range(1, 7):
        board.scalar("loss/train", float(step), step)
        with monkeypatch.context() as patch:
            if step not in (3, 6):
                patch.setattr(event_file, "write_from", half)
            with contextlib.suppress(OSError):
                board.file.flush()
    assert board.file.path.stat().st_size == board.file.length
    points = [(event.step, event.value) for event in read(tmp_path).Scalars("loss/train")]
    assert points == [(step, step) for step in range(1, 7)]


def test_a_file_or_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        board.file.flush()
    assert list(tmp_path.iterdir()) == []
    board = TensorBoard(tmp_path)
    board.file.flush()
    board.file.path.unlink()
    board.scalar("loss/train", 1.0, 1)
    with pytest.raises(FileNotFoundError, match="events"):
        board.file.flush()
    assert list(tmp_path.iterdir()) == []
