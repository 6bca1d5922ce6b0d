"""Multi-label classification: an image has any number of tags, each predicted by itself."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.engine.objective import Forward
from vit_train.engine.tagging import Tagging, TagPredictions
from vit_train.tasks.classify import Classify


class Tags(Classify):
    """Binary cross-entropy for each tag; an image's loss is the mean over all tags.

    Targets are (B,K): 1 for each tag that an image has, otherwise 0; Mixup and CutMix mix them.
    """

    measures = ("loss", "tag_acc")
    one_class = False
    selecting = ("loss", "map")
    best_by = "map"

    def balanced_weights(self, labels: Tensor) -> Tensor:
        """Return the number of images without each tag, divided by the number with it.

        A tag that all images have, or none, has weight 1.
        """
        having = labels.sum(0)
        weights = (len(labels) - having) / having
        return weights.where((having > 0) & (having < len(labels)), 1.0)

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return the summed loss and the sum of the images' shares of tags predicted correctly.

        A tag is predicted if its probability is above 0.5. A mixed target counts as a fraction.
        """
        logits = model(images).float()
        if self.weighs:
            weights, targets = targets[:, -1], targets[:, :-1] / targets[:, -1:]
        right = torch.where(logits.detach() > 0, targets, 1 - targets).mean(1)
        losses = self.losses(logits, targets).mean(1)
        if not self.weighs:
            return torch.stack((losses.sum(), right.sum()))
        sums = (weights * torch.stack((losses, right))).sum(1)
        return torch.cat((sums, weights.sum().expand(2)))

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each tag of each image, (B,K), for logits and targets (B,K).

        The weights multiply the loss of images that have the tag, but not the smoothing of others.
        """
        low = self.config.label_smoothing / 2
        bce = partial(F.binary_cross_entropy_with_logits, logits, reduction="none")
        having, lacking = (bce(torch.full_like(logits, each)) for each in (1 - low, low))
        weights = 1 if self.weights is None else self.weights
        return weights * targets * having + (1 - targets) * lacking

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return each image's tags and logits as one row: (B,2K)."""
        return torch.cat((targets, model(images).float()), dim=1)

    def evaluation(self, sample_outputs: Tensor) -> Tagging:
        truth, logits = sample_outputs.numpy().reshape(len(sample_outputs), 2, -1).swapaxes(0, 1)
        return Tagging.of(TagPredictions(truth > 0, logits), self.best_by)
