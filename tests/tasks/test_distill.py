"""The losses of distillation, compared with their formulas in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.config.model import ModelConfig
from vit_train.config.tasks import DistillConfig
from vit_train.data.batches import Normalize
from vit_train.data.dataset import Statistics
from vit_train.tasks.classify import Distill, Teacher

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
