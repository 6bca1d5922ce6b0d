import threading
import time
from collections.abc import Iterator
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_trainers import FP32, fit
from torch import Tensor, nn

from vit_train.config.augment import AugmentConfig
from vit_train.config.model import ModelConfig
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.config.training import AdamWConfig, LoopConfig
from vit_train.data.batches import EvalBatches, Normalize, TrainBatches, ahead, balanced_order
from vit_train.data.dataset import ImageSet, Statistics, resize
from vit_train.loop.trainer import Callback, Trainer
from vit_train.tasks.classify import Classify

CPU = torch.device("cpu")
RAW = Normalize(Statistics((0.0,) * 3, (1 / 255,) * 3), CPU)  # leaves pixel values as they are


def random_set(count: int, size: int = 8) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (count, 3, size, size), generator=generator).to(torch.uint8)
    return ImageSet(images, torch.arange(count))


def batches(data: ImageSet, padding: int, flip: bool | str, batch_size: int = 16) -> TrainBatches:
    augment = AugmentConfig(crop_padding=padding, flip=flip)
    return TrainBatches(data, len(data), RAW, augment, batch_size, 0, CPU)


@pytest.mark.parametrize("flip", [True, False])
def test_every_augmented_image_is_a_crop_of_its_own_padded_image_drawn_per_image(
    flip: bool,
) -> None:
    data = random_set(64)
    source, seen = batches(data, 2, flip), set()
    for images, labels in source.epoch(0):
        for image, label in zip(images, labels.tolist(), strict=True):
            padded = F.pad(data.images[label].float(), (2, 2, 2, 2))
            found = [
                (dy, dx, flipped)
                for dy in range(5)
                for dx in range(5)
                for flipped in (False, True)
                if torch.equal(
                    image.flip(-1) if flipped else image, padded[:, dy : dy + 8, dx : dx + 8]
                )
            ]
            assert len(found) == 1
            seen.add(found[0])
    assert {flipped for *_, flipped in seen} == {False, flip}
    assert len(seen) > 12 * (1 + flip)  # of 25 or 50; one draw per batch would give 4


def test_an_epoch_is_a_permutation_and_a_pure_function_of_seed_and_number() -> None:
    source = batches(random_set(50), 0, flip=False, batch_size=10)

    def order(epoch: int) -> list[int]:
        return torch.cat([labels for _, labels in source.epoch(epoch)]).tolist()

    assert sorted(order(0)) == list(range(50))
    assert order(0) == order(0) != order(1)


def test_an_incomplete_batch_is_left_out_unless_it_is_all_there_is() -> None:
    assert [len(labels) for _, labels in batches(random_set(50), 0, False).epoch(0)] == [16] * 3
    assert [len(labels) for _, labels in batches(random_set(5), 0, False).epoch(0)] == [5]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_processes_evaluate_every_image_once_in_order(ranks: int) -> None:
    data = random_set(50)
    parts = [EvalBatches(data, RAW, 4, CPU, rank, ranks) for rank in range(ranks)]
    images, labels = (torch.cat(each) for each in zip(*chain(*parts), strict=True))
    assert torch.equal(images, data.images.float()) and torch.equal(labels, data.labels)
    assert max(len(labels) for _, labels in chain(*parts)) == 4
    sizes = [sum(len(labels) for _, labels in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1 and parts[0].total == 50


def test_the_same_size_is_the_same_tensor_and_one_that_fits_no_memory_is_refused() -> None:
    images = random_set(10).images
    assert resize(images, None) is images and resize(images, 8) is images
    with pytest.raises(ValueError, match=r"image_size=1000000: 10 images .* would take 60,000 GB"):
        resize(images, 10**6)


STRONG = AugmentConfig(
    policy="randaugment", erase_prob=0.5, mixup_alpha=0.8, cutmix_alpha=1.0, crop_scale=0.5
)


@pytest.mark.parametrize("augment", [AugmentConfig(), STRONG])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_shares_of_several_processes_are_the_batch_of_one(
    augment: AugmentConfig, ranks: int
) -> None:
    data = random_set(40)

    def epoch(rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(TrainBatches(data, 40, RAW, augment, 16, 7, CPU, rank, ranks).epoch(3))

    shares = zip(*(epoch(rank, ranks) for rank in range(ranks)), strict=True)
    for whole, parts in zip(epoch(0, 1), shares, strict=True):
        joined = tuple(map(torch.cat, zip(*parts, strict=True)))
        torch.testing.assert_close(joined, whole, rtol=0, atol=1e-6)


def test_a_batch_is_its_draws_applied_one_after_the_other() -> None:
    data, index = random_set(16), torch.randperm(16)
    source = TrainBatches(data, 16, RAW, STRONG, 16, 0, CPU)
    rng = source.generator(0, 0)
    crop, policy, erasing, mixer = source.drawing[1:]
    stages = [source.cropper.cut(index, source.cropper.draw(rng, index, 0))]
    stages += [crop.apply(stages[-1], crop.draw(rng, index, 0))]
    stages += [policy.apply(stages[-1], policy.draw(rng, index, 0))]
    stages += [erasing.apply(RAW(stages[-1]), erasing.draw(rng, index, 0))]
    assert not any(torch.equal(one.float(), next_.float()) for one, next_ in pairwise(stages))
    around = torch.arange(-1, 16)  # from the last image, with which the first one is mixed
    mixture = mixer.draw(rng, index, 0)[:, around]
    expected = mixer.mix(stages[-1][around], data.labels[index][around], mixture)
    made = source.batch(*source.draw_batch(index, source.generator(0, 0)))
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize(
    "kind",
    [{"policy": "autoaugment", "policy_epochs": 2}, {"mixup_alpha": 1.0, "mix_epochs": 2}],
)
def test_a_policy_and_mixing_end_with_the_epoch_that_is_asked_for(kind: dict[str, Any]) -> None:
    data = random_set(16)
    ends, none = (
        TrainBatches(data, 16, RAW, AugmentConfig(**each), 16, 0, CPU) for each in (kind, {})
    )
    same = [torch.equal(*(next(each.epoch(epoch))[0] for each in (ends, none))) for epoch in (1, 2)]
    assert same == [False, True]


UPLESS = AugmentConfig(vertical_flip=True, rotation=180, color_jitter=0.4, blur=1)


@pytest.mark.parametrize("augment", [AugmentConfig(crop_padding=2), STRONG, UPLESS])
def test_no_two_batches_are_augmented_alike(augment: AugmentConfig) -> None:
    """Of images that are all the same one, so that nothing but the draws can differ."""
    one = random_set(1)
    same = ImageSet(one.images.expand(48, -1, -1, -1), torch.zeros(48, dtype=torch.long))
    source = TrainBatches(same, 2, RAW, augment, 16, 0, CPU)
    drawn = [images for epoch in range(3) for images, _ in source.epoch(epoch)]
    assert len(drawn) == 9
    assert not any(torch.equal(one, other) for one, other in combinations(drawn, 2))


def test_undo_inverts_normalization() -> None:
    normalize = Normalize(Statistics((0.3, 0.5, 0.7), (0.2, 0.1, 0.3)), CPU)
    levels = torch.arange(256, dtype=torch.uint8).expand(2, 3, 1, 256)
    assert torch.equal(normalize.undo(normalize(levels)), levels)
    beyond = torch.tensor([-9.0, 9.0]).expand(1, 3, 1, 2)
    assert normalize.undo(beyond).flatten().tolist() == [0, 255] * 3


@pytest.mark.parametrize(
    "kinds", [["mixup_alpha"], ["cutmix_alpha"], ["mixup_alpha", "cutmix_alpha"]]
)
def test_a_mixed_target_matches_the_mixed_image(kinds: list[str]) -> None:
    """Each image is of one level alone, which its class is called by."""
    levels = torch.arange(40, dtype=torch.uint8)
    data = ImageSet(levels.view(-1, 1, 1, 1).expand(-1, 3, 8, 8), levels.long())
    augment = AugmentConfig(crop_padding=0, flip=False, **dict.fromkeys(kinds, 1.0))
    batches = list(TrainBatches(data, 40, RAW, augment, 8, 0, CPU).epoch(0))
    parts = 0
    for images, targets in batches:
        torch.testing.assert_close(images.mean((1, 2, 3)), targets @ torch.arange(40.0))
        torch.testing.assert_close(targets.sum(1), torch.ones(8))
        assert (targets > 0).sum(1).max() == 2  # nobody is mixed with itself
        parts += int((targets > 0).sum())
    assert parts > 1.7 * 40
    # All images of a batch are in it, each twice: as itself and as another's neighbor.
    whole = torch.cat([targets for _, targets in batches])
    assert ((whole > 0).sum(0) <= 2).all() and (whole > 0).any(0).all()


def test_alternating_flips_show_both_sides_in_two_epochs() -> None:
    data = random_set(64)
    source, first = batches(data, 0, flip="alternate"), []
    for epoch in range(4):
        flipped = {}
        for draws in source.draws(epoch):
            index = draws[0][0].long()
            images = source.normalize.undo(source.batch(*draws)[0])
            for number, image in zip(index.tolist(), images, strict=True):
                own = data.images[number]
                flipped[number] = torch.equal(image, own.flip(-1))
                assert flipped[number] or torch.equal(image, own)
        first.append([flipped[number] for number in range(64)])
    assert first[0] == first[2] == [not each for each in first[1]] and first[1] == first[3]
    assert 16 < sum(first[0]) < 48


@pytest.mark.parametrize("counts", [[50, 10, 3], [50, 0, 3], [1, 40], [5, 5, 5, 5], [7]])
def test_every_class_is_taken_equally_often_and_its_images_evenly(counts: list[int]) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels))]
    order = balanced_order(labels, np.random.default_rng(3))
    assert len(order) == len(labels)
    taken = labels[order].bincount()[torch.tensor(counts) > 0]
    assert taken.max() - taken.min() <= 1
    for label in labels.unique().tolist():
        times = order.bincount(minlength=len(labels))[labels == label]
        assert times.max() - times.min() <= 1
    assert torch.equal(order, balanced_order(labels, np.random.default_rng(3)))
    if len(counts) > 1:
        assert not torch.equal(order, balanced_order(labels, np.random.default_rng(4)))


def test_an_image_that_is_left_over_is_of_any_class() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    taken = [labels[balanced_order(labels, np.random.default_rng(seed))] for seed in range(20)]
    assert {int(each.sum()) for each in taken} == {3, 4}


class Gpu:
    """The queue of a GPU's steps, of which `finished` are done, and of the events between them."""

    finished: float = float("inf")
    queued = 0

    @classmethod
    def event(cls, blocking: bool) -> "Gpu":
        assert blocking  # otherwise the waiting thread would take a core
        return cls()

    def record(self) -> None:
        self.needed = Gpu.queued

    def synchronize(self) -> None:
        while Gpu.finished < self.needed:
            time.sleep(0.001)


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """This CPU stands in for a GPU on which the images do not fit; return who pins memory."""
    pinned_by: list[str] = []
    monkeypatch.setattr(torch.cuda, "Event", Gpu.event)
    monkeypatch.setattr(Gpu, "finished", Gpu.finished)
    monkeypatch.setattr(Gpu, "queued", 0)

    def pin_memory(self: Tensor) -> Tensor:
        pinned_by.append(threading.current_thread().name)
        return self

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    return pinned_by


def too_large(count: int = 40, augment: AugmentConfig = STRONG) -> TrainBatches:
    """Batches of 8 images that stay in main memory."""
    source = TrainBatches(random_set(count), count, RAW, augment, 8, 0, CPU)
    source.cropper.on_device = False
    return source


def no_thread_is_left() -> bool:
    return not [each for each in threading.enumerate() if each.name.startswith("ahead")]


@pytest.mark.parametrize("first", [0, 3])
def test_batches_made_ahead_have_the_same_bits_from_any_batch_on(
    small_gpu: list[str], first: int
) -> None:
    data = random_set(40)
    plain = TrainBatches(data, 40, RAW, STRONG, 8, 0, CPU).epoch(2, first)
    for ours, theirs in zip(too_large().epoch(2, first), plain, strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert small_gpu == ["ahead_0"] * (5 - first) and no_thread_is_left()


@pytest.mark.parametrize("behind, ready", [(1, [2, 3, 4, 4]), (2, [2, 2, 3, 4])])
def test_the_next_batch_is_made_during_a_step_unless_the_gpu_is_behind(
    small_gpu: list[str], behind: int, ready: list[int]
) -> None:
    """`ready` counts the batches made while the GPU has `behind` steps left to finish."""
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(4):
            made.append(number)
            yield number

    Gpu.finished = 0
    for number, count in zip(ahead(items()), ready, strict=True):
        Gpu.queued += 1
        Gpu.finished = max(0, Gpu.queued - behind)
        end = time.monotonic() + 5
        while len(made) < count and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02)  # and no more
        assert len(made) == count
        threading.Timer(0.01, setattr, (Gpu, "finished", number)).start()
    assert no_thread_is_left()


class EndsAfter2(Callback):
    """Ends the run after its second step: by a stop, or by an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def on_step(self, trainer: Trainer) -> None:
        if trainer.step == 2:
            trainer.stop()
            if self.error:
                raise self.error


def trainer_on(source: TrainBatches, *callbacks: Callback) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 40))
    task = Classify(ClassifyConfig(), ModelConfig(), (3, 8, 8), 40)
    config = TrainConfig(optim=AdamWConfig(), train=LoopConfig(epochs=2, batch_size=8))
    return Trainer(model, task, source, config, FP32, callbacks)


def test_a_stopped_run_continues_with_the_batches_that_were_made_ahead(
    small_gpu: list[str],
) -> None:
    expected = fit(trainer_on(batches(random_set(40), 4, True, 8)))
    trainer = fit(trainer_on(too_large(augment=AugmentConfig()), EndsAfter2()))
    assert trainer.step == 2 and no_thread_is_left()
    trainer.stop_reason = ""
    fit(trainer)
    for ours, theirs in zip(trainer.parameters, expected.parameters, strict=True):
        assert torch.equal(ours, theirs)
    assert set(small_gpu) == {"ahead_0"} and no_thread_is_left()


@pytest.mark.parametrize("error", [ValueError("of a callback"), KeyboardInterrupt()])
def test_no_thread_is_left_after_an_error(small_gpu: list[str], error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        fit(trainer_on(too_large(), EndsAfter2(error)))
    assert caught.value is error and no_thread_is_left()


def test_an_error_in_the_thread_reaches_the_run(
    small_gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(index: Tensor, drawn: Tensor) -> Tensor:
        raise OSError("the cache file is gone")

    source = too_large()
    monkeypatch.setattr(source.cropper, "cut", gone)
    with pytest.raises(OSError, match="the cache file is gone"):
        fit(trainer_on(source))
    assert no_thread_is_left()
