"""Counting what a classifier gets right, every sample with the same weight."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.engine.device import Precision
from vit_train.engine.lanes import ONE_LANE, Lanes


@dataclass(frozen=True)
class Evaluation:
    """Results over a whole split; accuracies are fractions, loss is the mean cross-entropy."""

    loss: float
    acc: float
    top5: float
    count: int
    per_class_correct: list[int]
    per_class_count: list[int]

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(round(self.acc * self.count), self.count)


def wilson_interval(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927); unlike ±z·σ it stays inside 0…1."""
    share = successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    precision: Precision,
    lanes: Lanes = ONE_LANE,
) -> Evaluation:
    """Run the model over every batch; nothing is copied from the device until the end."""

    @torch.no_grad()
    def forward(images: Tensor) -> Tensor:
        with precision.autocast():
            # Not model(images): compiled code would be compiled again for each new batch size.
            return model.forward(images).float()  # type: ignore[no-any-return]

    was_training = model.training
    model.eval()
    losses, ranks, labels_seen = [], [], []
    for images, labels in batches:
        logits = torch.cat(list(lanes.over(forward, images)))
        losses.append(F.cross_entropy(logits, labels, reduction="none"))
        # A sample's rank: how many other classes are not clearly below the true one. Written so
        # that ties, and logits that are NaN, count against the model.
        truth = logits.gather(1, labels.unsqueeze(1))
        ranks.append(logits.shape[1] - 1 - (logits < truth).sum(1))
        labels_seen.append(labels)
        num_classes = logits.shape[1]
    model.train(was_training)
    rank, label = torch.cat(ranks).cpu(), torch.cat(labels_seen).cpu()
    correct = rank < 1
    return Evaluation(
        loss=torch.cat(losses).cpu().double().mean().item(),
        acc=correct.double().mean().item(),
        top5=(rank < 5).double().mean().item(),
        count=len(rank),
        per_class_correct=torch.bincount(label[correct], minlength=num_classes).tolist(),
        per_class_count=torch.bincount(label, minlength=num_classes).tolist(),
    )
