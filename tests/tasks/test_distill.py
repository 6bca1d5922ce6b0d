"""The losses of distillation, compared with their formulas in float64."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.config.model import (
    CnnConfig,
    FastCnnConfig,
    ModelConfig,
    ResNetConfig,
    ViTConfig,
)
from vit_train.config.tasks import DistillConfig
from vit_train.data.batches import Normalize
from vit_train.data.dataset import Statistics
from vit_train.model.build import build
from vit_train.tasks.classify import Distill, Teacher, mismatch, on_grid

SAME = Statistics((0.0,) * 3, (1.0,) * 3)


class Linear(nn.Module):
    """A classifier of images (B,3,4,4) in float64, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(48, 5).double(), nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.dropout(images.flatten(1)))
        return logits


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_the_loss_is_the_formulas(kind: str, mixed: bool) -> None:
    images = torch.randn(7, 3, 4, 4, dtype=torch.float64)
    targets = torch.rand(7, 5).double().softmax(1) if mixed else torch.randint(5, (7,))
    config = DistillConfig(distillation=kind, alpha=0.3, temperature=2.5, label_smoothing=0.2)
    task, student, teacher = Distill(config, ModelConfig(), (3, 4, 4), 5), Linear(), Linear()
    student.eval()
    teaching = Teacher(teacher, Normalize(SAME), Normalize(SAME))
    task = task.for_training(torch.zeros(1), False, "acc", teaching)
    loss, _ = task.step_sums(student, images, targets)

    s, t = student(images), teacher.linear(images.flatten(1))
    labels = F.cross_entropy(s, targets, label_smoothing=0.2, reduction="sum")
    p, q = (t / 2.5).softmax(1), (s / 2.5).softmax(1)
    soft = 2.5**2 * (p * (p / q).log()).sum()
    hard = -s.log_softmax(1)[torch.arange(7), t.argmax(1)].sum()
    torch.testing.assert_close(loss, 0.7 * labels + 0.3 * (soft if kind == "soft" else hard))
    loss.backward()
    assert student.linear.weight.grad is not None and teacher.linear.weight.grad is None


def test_the_teacher_gets_its_own_normalization() -> None:
    pixels, model = torch.rand(4, 3, 4, 4, dtype=torch.float64), Linear()
    own, students = Statistics((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), Statistics((0.4,) * 3, (0.2,) * 3)

    def normalized(statistics: Statistics) -> Tensor:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in statistics)
        return (pixels - mean) / std

    teacher = Teacher(model, Normalize(own), Normalize(students))
    answers = teacher.forward(normalized(students))
    torch.testing.assert_close(answers, model.eval()(normalized(own)), rtol=0, atol=1e-5)
    assert not answers.requires_grad


def correlation(x: Tensor, y: Tensor) -> float:
    """Of the channels of two vectors, by NumPy."""
    width = min(len(x), len(y))
    return float(np.corrcoef(x[:width].detach().double(), y[:width].detach().double())[0, 1])


@pytest.mark.parametrize(("own", "others"), [(8, 8), (8, 12), (12, 8)])
def test_a_hint_is_the_correlation_over_the_channels_that_both_have(own: int, others: int) -> None:
    patches, features = torch.randn(3, 5, own), torch.randn(3, 5, others)
    expected = [
        1 - np.mean([correlation(x, y) for x, y in zip(*each, strict=True)])
        for each in zip(patches, features, strict=True)
    ]
    np.testing.assert_allclose(mismatch(patches, features), expected, rtol=1e-4)
    assert mismatch(3 * features + 1, features).abs().max() < 1e-4
    # Nothing to compare: no correlation, and no gradient that is not a number.
    same = torch.ones(2, 5, own, requires_grad=True)
    mismatch(same, torch.ones(2, 5, others)).sum().backward()
    assert same.grad is not None and same.grad.isfinite().all()


def test_a_hint_compares_the_patches_that_the_student_keeps_with_the_same_places() -> None:
    config = DistillConfig(alpha=0.5, hint=3.0)
    vit = ViTConfig(patch_size=4, embed_dim=8, depth=3, num_heads=2, patch_dropout=0.5, registers=1)
    task, image_shape = Distill(config, vit, (3, 16, 16), 5), (3, 16, 16)
    torch.manual_seed(0)
    student = task.build_model()
    cnn = build(FastCnnConfig(widths=[4, 6, 8]), image_shape, 5).eval()
    images, targets = torch.randn(6, *image_shape), torch.randint(5, (6,))
    student_says, teacher_says = (
        student(images, return_features=True),
        cnn(images, return_features=True),
    )
    logits, patches, kept = student_says
    assert [each.shape for each in patches] == 3 * [(6, 8, 8)] and kept.shape == (6, 8)

    def says(*answers: object) -> Callable[..., object]:
        return lambda *_, **__: answers

    teacher = Teacher(cnn, Normalize(SAME), Normalize(SAME))
    hinted = task.for_training(torch.zeros(1), False, "acc", teacher)
    found, _ = hinted.step_sums(says(*student_says), images, targets)  # type: ignore[arg-type]
    plain = Distill(DistillConfig(alpha=0.5), vit, image_shape, 5)
    plain = plain.for_training(torch.zeros(1), False, "acc", teacher)
    without, _ = plain.step_sums(lambda _: logits, images, targets)
    hints = []
    for own, others in zip(patches, teacher_says[1], strict=True):
        map_of = F.interpolate(others, (4, 4), mode="bilinear")
        for image in range(6):
            at = torch.stack([map_of[image, :, place // 4, place % 4] for place in kept[image]])
            hints.append(
                1 - np.mean([correlation(*both) for both in zip(own[image], at, strict=True)])
            )
    assert (found - without).item() == pytest.approx(3 * sum(hints), rel=1e-3)


@pytest.mark.parametrize(
    "config", [ViTConfig(depth=4), CnnConfig(), ResNetConfig(), FastCnnConfig()]
)
def test_every_model_gives_hints_beside_the_same_logits(config: ModelConfig) -> None:
    model = build(config, (3, 32, 32), 5).eval()
    teacher, images = Teacher(model, Normalize(SAME), Normalize(SAME)), torch.randn(2, 3, 32, 32)
    logits, features = teacher.forward(images, return_features=True)
    torch.testing.assert_close(logits, teacher.forward(images), rtol=0, atol=0)
    assert len(features) == 3
    assert all(each.ndim == 4 and len(each) == 2 and each.std() > 0 for each in features)
    if isinstance(config, ViTConfig):
        for each, last in zip(features, (2, 3, 4), strict=True):  # of four blocks, row by row
            tokens, _ = model.encode(model.tokens(images), blocks=slice(last))
            torch.testing.assert_close(each[:, :, 1, 3], tokens[:, 1 + 8 + 3])


def test_the_hint_for_a_patch_is_about_the_pixels_of_that_patch() -> None:
    model = build(FastCnnConfig(widths=[16, 16, 16]), (3, 32, 32), 5).eval()
    images = torch.randn(16, 3, 32, 32, requires_grad=True)
    for each, patch in product(model(images, return_features=True)[1], range(1, 6)):
        hint = on_grid(each, (8, 8))[:, 9 * patch]
        (gradient,) = torch.autograd.grad(hint.square().sum(), images, retain_graph=True)
        columns = gradient.abs().sum((0, 1, 2))
        center = (columns * (torch.arange(32) + 0.5)).sum() / columns.sum()
        assert center.item() == pytest.approx(4 * (patch + 0.5), abs=2)
