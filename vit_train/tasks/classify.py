"""Which class an image belongs to. Targets are labels (B,), or shares of classes (B,K)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.engine.metrics import Classification
from vit_train.engine.objective import Forward
from vit_train.explain.attention import class_token_maps, overlay
from vit_train.model.config import ModelConfig, ViTConfig
from vit_train.model.registry import build_model
from vit_train.tasks.config import ClassifyConfig
from vit_train.tasks.task import Task


class Classify(Task):
    """Cross-entropy, with smoothed targets in training. ValueError for less than two classes."""

    measures = ("loss", "acc")
    needs_labels = True

    def __init__(
        self,
        config: ClassifyConfig,
        model: ModelConfig,
        image_shape: tuple[int, int, int],
        num_classes: int,
    ) -> None:
        if num_classes < 2:
            raise ValueError(
                f"the images are of {num_classes} class, and task=classify needs at least two: put "
                "those of each class into a folder of their own"
            )
        self.label_smoothing = config.label_smoothing
        self.model, self.image_shape, self.num_classes = model, image_shape, num_classes
        if isinstance(model, ViTConfig) and model.has_class_token:
            heads = (f"head {number + 1}" for number in range(model.num_heads))
            self.columns = ("image", "attention", *heads)

    def build_model(self) -> nn.Module:
        return build_model(self.model, self.image_shape, self.num_classes)

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        logits = model(images)
        loss = F.cross_entropy(
            logits, targets, label_smoothing=self.label_smoothing, reduction="sum"
        )
        correct = correct_answers(logits.detach(), targets)
        return torch.stack((loss, correct.to(loss.dtype)))

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """The loss, the label and its rank among the classes: (B,3)."""
        logits = model(images).float()
        loss = F.cross_entropy(logits, targets, reduction="none")
        # A sample's rank: how many other classes are not clearly below the true one. Written so
        # that ties, and logits that are NaN, count against the model.
        truth = logits.gather(1, targets.unsqueeze(1))
        rank = logits.shape[1] - 1 - (logits < truth).sum(1)
        return torch.stack((loss, targets, rank), dim=1)

    def evaluation(self, sample_outputs: Tensor) -> Classification:
        loss, label, rank = sample_outputs.unbind(1)
        correct, label = rank < 1, label.long()
        return Classification(
            count=len(sample_outputs),
            loss=loss.mean().item(),
            acc=correct.double().mean().item(),
            top5=(rank < 5).double().mean().item(),
            per_class_correct=torch.bincount(label[correct], minlength=self.num_classes).tolist(),
            per_class_count=torch.bincount(label, minlength=self.num_classes).tolist(),
        )

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """What the class token looks at in the last layer: all heads together, and each."""
        _, attention = model.forward(images, return_attention=True)
        maps = class_token_maps(attention[-1])
        together = overlay(images, maps.mean(1), mode="bilinear")
        return [images, together, *(overlay(images, each) for each in maps.unbind(1))]


def correct_answers(logits: Tensor, targets: Tensor) -> Tensor:
    """How many labels (B,) are predicted; of mixed targets (B,K), how much of them is."""
    predicted = logits.argmax(1)
    if targets.ndim == 1:
        return (predicted == targets).sum()
    return targets.gather(1, predicted.unsqueeze(1)).sum()
