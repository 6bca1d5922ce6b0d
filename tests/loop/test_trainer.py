import itertools
import math
from collections.abc import Callable, Collection
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from small_trainers import GivenBatches, batches_of, fit, make_trainer
from torch import Tensor, nn

from vit_train.base.reading import typed
from vit_train.config.training import AdamWConfig
from vit_train.loop.distributed import Processes
from vit_train.loop.metrics import Evaluation
from vit_train.loop.schedule import NonFinite, better, learning_rate
from vit_train.loop.state import Start, TrainerState
from vit_train.loop.trainer import Callback, Trainer, TrainLog
from vit_train.model.layers import Dropout
from vit_train.run import earlier

X = torch.randn(48, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randint(3, (48,), generator=torch.Generator().manual_seed(1))
STILL = AdamWConfig(lr=1e-15, weight_decay=0, warmup_epochs=0)


def data(broken: Collection[int] = ()) -> GivenBatches:
    """Six batches of eight float64 samples; those numbered in `broken` are NaN."""
    batches = [
        (x * math.nan if number in broken else x, y)
        for number, (x, y) in enumerate(batches_of(X, Y))
    ]
    return GivenBatches(batches)


def turning() -> GivenBatches:
    """The second epoch has other batches."""
    return GivenBatches(batches_of(X, Y), batches_of(2 * X, (Y + 1) % 3))


class Recorder(Callback):
    """Notes all events, and calls `each_step` after every step."""

    def __init__(self, each_step: Callable[[Trainer], object] = lambda trainer: None) -> None:
        self.logs: list[TrainLog] = []
        self.epochs: list[tuple[TrainLog, Evaluation | None]] = []
        self.each_step = each_step

    def on_step(self, trainer: Trainer) -> None:
        self.each_step(trainer)

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        self.logs.append(log)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        self.epochs.append((log, val))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3).double()


def trainer_of(
    loader: GivenBatches, *callbacks: Callback, model: nn.Module | None = None, **more: Any
) -> Trainer:
    settings = {"epochs": 2, "log_every": 4, **more}
    return make_trainer(model or make_model(), loader, callbacks=callbacks, **settings)


def train(*what: Any, **more: Any) -> Trainer:
    return fit(trainer_of(*what, **more), validated=True)


@pytest.mark.parametrize("clip_norm", [0.3, 1e9, None])
def test_the_loop_is_the_textbook_one(clip_norm: float | None) -> None:
    model = make_model()
    config = AdamWConfig(lr=0.02, beta2=0.97, weight_decay=0.2, clip_norm=clip_norm)
    optimizer = torch.optim.AdamW(
        [
            {"params": [model.weight], "weight_decay": config.weight_decay},
            {"params": [model.bias], "weight_decay": 0.0},
        ],
        betas=(0.9, config.beta2),
    )
    norms = []
    for step in range(12):
        x, y = batches_of(X, Y)[step % 6]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config, 6, 2)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        gradients = [model.weight.grad, model.bias.grad]
        norms.append(torch.cat([each.flatten() for each in gradients]).norm().item())
        if clip_norm is not None and norms[-1] > clip_norm:
            for each in gradients:
                each *= clip_norm / (norms[-1] + 1e-6)
        optimizer.step()
    assert min(norms) < 0.7 and max(norms) > 0.3  # so that 0.3 clips
    noted: list[float] = []
    recorder = Recorder(lambda trainer: noted.append(float(trainer.gradient_norm)))
    ours = make_model()
    ours.weight.data = ours.weight.T.contiguous().T  # column by column in memory
    trained = train(data(), recorder, model=ours, optim=config, micro_batch=3).model.state_dict()
    assert noted == pytest.approx(norms)  # before clipping
    torch.testing.assert_close(trained, model.state_dict(), rtol=1e-9, atol=1e-12)


def test_the_models_parts_learn_the_epoch() -> None:
    model, told = make_model(), []
    model.set_epoch = told.append
    train(data(), model=model)
    assert told == [0, 1]


class Dropped(nn.Module):
    """Remembers which values of each batch were left out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = make_model(), Dropout(0.5)
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.masks.append(self.dropout(torch.ones_like(x)))
        return self.linear(x * self.masks[-1])


def test_dropout_differs_by_step_and_image() -> None:
    def masks(seed: int) -> Tensor:
        model = Dropped()
        fit(trainer_of(data(), model=model, seed=seed))
        return torch.stack(model.masks)  # (12 steps, 8 images, 5 values)

    first = masks(0)
    assert first.unique().tolist() == [0, 2] and 0.4 < (first == 0).double().mean() < 0.6
    assert len(first.flatten(1).unique(dim=0)) == 12
    assert len(first.flatten(0, 1).unique(dim=0)) > 28  # of 32 possible rows; 96 are drawn
    assert torch.equal(first, masks(0)) and not torch.equal(first, masks(1))


def test_the_curves_are_means_over_the_images_since_the_last_point() -> None:
    """With weights that stand still, so that every batch's own figures are known.

    A point is taken after 4 of an epoch's 6 steps, and at its end.
    """
    recorder = Recorder()
    model = train(turning(), recorder, optim=STILL).model
    own = []
    for x, y in (*turning().epoch(0), *turning().epoch(1)):
        logits = model(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.1).item()
        own.append({"loss": loss, "acc": (logits.argmax(1) == y).double().mean().item()})

    def mean(*batches: int) -> dict[str, float]:
        sums = {name: sum(own[batch][name] for batch in batches) for name in own[0]}
        return {name: pytest.approx(total / len(batches)) for name, total in sums.items()}

    expected = {
        4: mean(0, 1, 2, 3), 6: mean(4, 5), 10: mean(6, 7, 8, 9), 12: mean(10, 11)
    }  # fmt: skip
    assert {log.step: log.values for log in recorder.logs} == expected
    epochs = [log for log, _ in recorder.epochs]
    assert [log.values for log in epochs] == [mean(*range(6)), mean(*range(6, 12))]
    assert [log.epoch for log in recorder.logs] == [1, 1, 2, 2]
    assert [(log.epoch, log.step) for log in epochs] == [(1, 6), (2, 12)]
    for log in (*recorder.logs, *epochs):
        assert log.images_seen == 8 * log.step
        assert log.lr == learning_rate(log.step - 1, STILL, 6, 2)


def test_the_average_is_of_the_weights_after_each_step_and_what_is_evaluated() -> None:
    weights: list[Tensor] = []
    recorder = Recorder(lambda trainer: weights.append(trainer.model.weight.detach().clone()))
    trainer = train(data(), recorder, optim=AdamWConfig(lr=0.1), ema_decay=0.5)
    average = make_model().weight.detach()
    for step, weight in enumerate(weights, start=1):
        keep = min(0.5, (1 + step) / (10 + step))
        average = keep * average + (1 - keep) * weight
    torch.testing.assert_close(trainer.eval_model.weight, average, rtol=1e-9, atol=0)
    averaged, raw = (F.cross_entropy(m(X), Y).item() for m in (trainer.eval_model, trainer.model))
    _, val = recorder.epochs[-1]
    assert val.loss == pytest.approx(averaged) and abs(val.loss - raw) > 1e-6


def test_an_extension_starts_at_the_last_learning_rate() -> None:
    config = AdamWConfig(lr=0.02, min_lr=0.01)
    second, resumed = (trainer_of(data(), optim=config) for _ in range(2))
    earlier.extend(second, earlier.state_of(train(data(), optim=config)))
    assert second.start == Start(2, 12, learning_rate(11, config, 6, 2))
    earlier.restore(resumed, earlier.state_of(second))
    assert resumed.start == second.start


def test_an_average_cannot_continue_from_a_state_without_one() -> None:
    trainer = trainer_of(data(), ema_decay=0.5)
    with pytest.raises(ValueError, match="no averaged weights"):
        earlier.restore(trainer, earlier.state_of(train(data())))


def test_a_resumed_run_continues_its_curves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step takes two seconds; what is done between epochs or processes does not count."""
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)

    class Reporter(Recorder):
        def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
            nonlocal now
            now += 100
            super().on_epoch(trainer, log, val)

    def slow(trainer: Trainer) -> None:
        nonlocal now
        now += 2

    def slow_until_9(trainer: Trainer) -> None:
        slow(trainer)
        if trainer.step == 9:
            trainer.stop()

    whole, before, after = Reporter(slow), Reporter(slow_until_9), Reporter(slow)
    train(turning(), whole, log_every=5)
    state = earlier.state_of(train(turning(), before, log_every=5))
    now += 1000
    trainer = trainer_of(turning(), after, log_every=5)
    earlier.restore(trainer, state)
    assert trainer.seconds == state.seconds == 18 + 100
    now += 500  # the reports are opened
    fit(trainer, validated=True)
    logs = [log for recorder in (before, after) for log in recorder.logs]
    # A point is taken before its last step's two seconds are over.
    assert [log.images_per_s for log in whole.logs] == pytest.approx(
        [40 / 8, 8 / 2, 40 / 10, 8 / 2]
    )
    assert [log.images_per_s for log, _ in whole.epochs] == [48 / 12] * 2
    assert logs == whole.logs
    epochs = [log for recorder in (before, after) for log, _ in recorder.epochs]
    assert epochs == [log for log, _ in whole.epochs]


def test_a_skipped_step_changes_neither_curves_nor_weights() -> None:
    recorder, every_step = Recorder(), Recorder()
    trainer = train(data([2]), recorder, optim=STILL, on_nonfinite="skip", log_every=6)
    losses = [
        F.cross_entropy(trainer.model(x), y, label_smoothing=0.1).item() for x, y in data().epoch(0)
    ]
    assert trainer.nonfinite.skipped == 2 and (trainer.step, trainer.images_seen) == (12, 96)
    mean = sum(losses[number] for number in (0, 1, 3, 4, 5)) / 5
    points = [*recorder.logs, *(log for log, _ in recorder.epochs)]
    assert [log.values["loss"] for log in points] == [pytest.approx(mean)] * 4
    train(data([2]), every_step, optim=STILL, on_nonfinite="skip", log_every=1)
    assert math.isnan(every_step.logs[2].values["loss"])


def test_a_saved_state_counts_skipped_steps() -> None:
    saved: list[int] = []
    recorder = Recorder(lambda trainer: saved.append(earlier.state_of(trainer).skipped))
    train(data([1, 2, 4]), recorder, on_nonfinite="skip", epochs=1, log_every=6)
    assert saved == [0, 1, 2, 2, 3, 3]


class Cornered(nn.Module):
    """Its loss is a number, and its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.at_zero = make_model(), nn.Parameter(torch.zeros(1).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.at_zero.square().sqrt()  # 0, whose slope is 0/0


@pytest.mark.parametrize(
    "broken, make, place",
    [((0, 1), make_model, "step 1 "), ((), Cornered, "step 1 "),
     (range(2, 6), make_model, r"step 3 \(batch 3 of epoch 1\)")],
)  # fmt: skip
def test_the_first_nan_step_ends_the_run(
    broken: Collection[int], make: Callable[[], nn.Module], place: str
) -> None:
    recorder = Recorder()
    with pytest.raises(NonFinite, match=f"NaN or infinite at {place}"):
        train(data(broken), recorder, model=make(), log_every=6)
    assert not recorder.epochs


def test_a_skipped_step_keeps_buffers_which_are_not_averaged() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(5), nn.utils.parametrizations.spectral_norm(nn.Linear(5, 3))
    ).double()
    trainer = train(data([2]), model=model, on_nonfinite="skip", ema_decay=0.9)
    assert trainer.nonfinite.skipped == 2
    for each in (model[0], trainer.ema.model[0]):
        assert each.running_mean.isfinite().all() and each.num_batches_tracked == 10
    assert all(map(torch.equal, model.buffers(), trainer.ema.model.buffers()))


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_overflow_in_fp16_lowers_the_loss_scale(clip_norm: float | None, bad: float) -> None:
    trainer = trainer_of(data(), optim=AdamWConfig(clip_norm=clip_norm))
    trainer.scaler = torch.amp.GradScaler("cpu")  # as with fp16
    compute, before = trainer.forward_backward, trainer.model.weight.detach().clone()

    def step(factor: float) -> None:
        def scaled(*what: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            sums, (weight, bias) = compute(*what)
            return sums, (weight, bias * factor)

        trainer.forward_backward = scaled
        trainer.take_step(trainer.step_scalars(), X[:8], Y[:8])

    step(bad)
    assert torch.equal(trainer.model.weight, before)
    assert not trainer.nonfinite.bad.any()  # the scaler only looks for its scale
    step(1.0)
    assert not torch.equal(trainer.model.weight, before)
    for _ in range(20):
        step(bad)
    assert trainer.nonfinite.bad.any()


@pytest.mark.parametrize("before, after", [(False, True), (True, False), (True, True)])
def test_a_run_resumes_with_or_without_fp16(before: bool, after: bool) -> None:
    """Each with its own scaler; that of fp16 keeps the scale that it has found."""
    first, second = (trainer_of(data()) for _ in range(2))
    first.scaler = torch.amp.GradScaler("cpu", init_scale=512.0, enabled=before)
    second.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=after)
    first.scaler.scale(torch.ones(()))  # which is when it takes its first scale
    saved = first.scaler.state_dict()
    kept = typed(get_type_hints(TrainerState)["scaler"], saved, "")  # as read from a checkpoint
    assert list(map(type, kept.values())) == list(map(type, saved.values()))
    earlier.restore(second, earlier.state_of(first))
    expected = 512.0 if before and after else 64.0 if after else 1.0
    assert second.scaler.scale(torch.ones(())) == expected


class Tied(Evaluation):
    scalars = ("loss", "count")


@pytest.mark.parametrize(
    "by, losses, best",
    [("loss", [3, 1, 2, 2], 2), ("loss", [math.nan, 2], 2), ("count", [1, 0.6, 0.7, 0.6], 2)],
)
def test_the_best_epoch_has_the_best_score_then_loss(
    by: str, losses: list[float], best: int
) -> None:
    found = None
    for epoch, loss in enumerate(losses, start=1):
        found = better(found, epoch, Tied(count=1, loss=loss), by)
    assert found is not None and (found.epoch, found.values["loss"]) == (best, losses[best - 1])
    assert found.score == (1 if by == "count" else -losses[best - 1])


@pytest.mark.parametrize("epochs, early", [(2, False), (3, True)])
def test_patience_that_ends_with_the_last_epoch_stops_nothing_early(
    epochs: int, early: bool
) -> None:
    trainer = train(data(), optim=STILL, epochs=epochs, patience=1)
    assert trainer.epoch == 2 and trainer.stopped_early == early


def test_the_loop_waits_for_a_gpu_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is NaN meanwhile is noted nevertheless."""
    recorder, clock = Recorder(lambda trainer: clock.append(clock[-1] + 0.3)), [0.0]
    ticks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: clock[-1] + 1e-9 * next(ticks))
    trainer = trainer_of(data([3]), recorder, log_every=1, on_nonfinite="skip")
    trainer.log_seconds = 1.0
    fit(trainer, validated=True)
    assert [log.step for log in recorder.logs] == [1, 5, 6, 10, 12]
    assert trainer.nonfinite.skipped == 2


def test_processes_agree_to_stop_every_few_steps_for_the_first_reason() -> None:
    """Within a step, and in the steps until the processes agree."""
    asked: list[int] = []

    class Asking(Processes):
        def any(self, flag: bool) -> bool:
            asked.append(trainer.step)
            return flag

    def stop_twice(trainer: Trainer) -> None:
        trainer.stop(f"at step {trainer.step}")
        trainer.stop()

    trainer = trainer_of(data(), Recorder(stop_twice))
    trainer.processes, trainer.ask_every, trainer.log_seconds = Asking(), 4, math.inf
    fit(trainer, validated=True)
    assert trainer.step == 4 and asked == [0, 4, 4] and trainer.stop_reason == "at step 1"


@pytest.mark.parametrize("deadline, steps", [(1000, 1), (1002.5, 3), (1003, 3), (math.inf, 12)])
def test_a_run_ends_with_the_step_in_which_its_time_is_up(
    deadline: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(1001)
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    trainer = trainer_of(data())
    trainer.deadline = deadline
    fit(trainer)
    assert trainer.step == steps
