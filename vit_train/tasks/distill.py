"""Knowledge distillation: a classifier that learns from labels and from a trained teacher.

Soft (Hinton, Vinyals and Dean 2015, arXiv:1503.02531), with temperature τ:

    (1 − α) · CE(labels, s) + α · τ² · KL(softmax(t / τ) ‖ softmax(s / τ))

Hard (Touvron et al. 2021, arXiv:2012.12877, equation 3, without its second token):

    (1 − α) · CE(labels, s) + α · CE(argmax t, s)

s and t are the logits of student and teacher. Labels are smoothed, the teacher's classes are not.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.data.batches import Normalize
from vit_train.tasks.classify import Classify
from vit_train.tasks.config import DistillConfig


class Teacher(nn.Module):
    """A trained classifier that reads what a student reads, in eval mode and without gradients.

    The images are normalized for the student; it normalizes them for itself.
    """

    scale: Tensor  # (C,1,1)
    shift: Tensor

    def __init__(self, model: nn.Module, own: Normalize, students: Normalize) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("scale", own.scale / students.scale)
        self.register_buffer("shift", own.shift - students.shift * self.scale)
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B,K) for images (B,C,S,S)."""
        # Not self.model(…): in training, as in evaluation, a teacher is never compiled.
        return self.model.forward(images * self.scale + self.shift)  # type: ignore[no-any-return]


class Distill(Classify):
    """Classification with a `teacher`, which training needs and evaluation does not."""

    config: DistillConfig
    teacher: Teacher

    def loss_sum(self, logits: Tensor, targets: Tensor, images: Tensor) -> Tensor:
        labels = super().loss_sum(logits, targets, images)
        teachers = self.teacher.forward(images)
        if self.config.distillation == "hard":
            distillation = F.cross_entropy(logits, teachers.argmax(1), reduction="sum")
        else:
            distillation = softened_divergence(logits, teachers, self.config.temperature)
        return (1 - self.config.alpha) * labels + self.config.alpha * distillation


def softened_divergence(logits: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """Return τ² · KL(teacher ‖ student), summed over a batch of the two's logits (B,K).

    The factor τ² keeps the gradients as large as those of the labels (Hinton et al., section 2).
    """
    student, teacher = (F.log_softmax(each / temperature, dim=1) for each in (logits, teachers))
    return temperature**2 * F.kl_div(student, teacher, reduction="sum", log_target=True)
