"""Classification: one class per image, from labels or also from a teacher, or several tags."""

from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.config.fields import ImageShape, Size
from vit_train.config.model import ModelConfig, ViTConfig, require_vit
from vit_train.config.tasks import DistillConfig, LabelsConfig
from vit_train.data.batches import Normalize
from vit_train.loop.metrics import Classification, Evaluation, Predictions
from vit_train.loop.objective import Forward
from vit_train.loop.tagging import Tagging, TagPredictions
from vit_train.model.build import build
from vit_train.model.patches import grid_of
from vit_train.model.vit import VisionTransformer, gather_tokens
from vit_train.tasks import Task


class Classify(Task):
    """Classification with a cross-entropy loss; label smoothing and class weights are optional.

    Raises ValueError for fewer than two classes, or if a list of class weights has a wrong length.
    """

    measures = ("loss", "acc")
    needs_labels = True
    one_class = True
    selecting: ClassVar[tuple[str, ...]] = ("loss", "acc", "balanced_acc")
    best_by = "acc"

    def __init__(
        self,
        config: LabelsConfig,
        model: ModelConfig,
        image_shape: ImageShape,
        num_classes: int,
    ) -> None:
        if num_classes < 2 and self.one_class:
            raise ValueError(
                f"task={config.name} needs at least two classes, but found {num_classes}: name the "
                "folder that holds a folder for each class, or set task=reconstruct"
            )
        self.config = config
        self.given_weights = getattr(config, "class_weights", None)
        if isinstance(self.given_weights, list) and len(self.given_weights) != num_classes:
            raise ValueError(
                f"task.class_weights must have {num_classes} numbers, not "
                f"{len(self.given_weights)}: one per class, in alphabetical order for data=folder"
            )
        # For tags, class weights multiply parts of an image's loss; they give images no weights.
        self.weighs = self.given_weights is not None and self.one_class
        self.class_weights: Tensor | None = None  # (K,), from given_weights in `for_training`
        self.model = model
        self.image_shape = image_shape
        self.num_classes = num_classes
        if isinstance(model, ViTConfig) and model.has_class_token:
            others = map(str, range(2, model.num_heads + 1))
            self.columns = ("image", "mean of the heads", "head 1", *others)
            self.legend = "attention of the class token in the last layer"

    def build_model(self) -> nn.Module:
        return build(self.model, self.image_shape, self.num_classes)

    def for_training(
        self, labels: Tensor, weighted: bool, best_by: str, teacher: nn.Module | None = None
    ) -> Self:
        task = super().for_training(labels, weighted, best_by)
        task.weighs = self.weighs or weighted
        if self.given_weights == "auto":
            task.class_weights = self.balanced_weights(labels)
        elif self.given_weights is not None:
            task.class_weights = torch.tensor(self.given_weights, device=labels.device).float()
        return task

    def balanced_weights(self, labels: Tensor) -> Tensor:
        """Return a weight for each class (K,) from labels (N,), as scikit-learn's "balanced" does.

        The weight is N / (k · count): `count` is the class's number of labels, and k is the number
        of classes that occur. Classes that do not occur have weight 1.
        """
        counts = labels.bincount(minlength=self.num_classes)
        weights = len(labels) / ((counts > 0).sum() * counts.clamp(min=1))
        return weights.where(counts > 0, 1.0).float()

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        logits, loss = self.logits_and_loss(model, images, targets)
        sums = [loss, correct_predictions(logits.detach(), targets).to(loss.dtype)]
        if self.weighs:
            # Sums of the weights in the loss and in the accuracy; only the loss has class weights.
            # Targets that are rows of shares sum to their image's weight.
            own = targets.sum() if targets.ndim == 2 else loss.new_full((), len(targets))
            sums += [split_weights(targets, self.class_weights)[0].sum().to(loss), own.to(loss)]
        return torch.stack(sums)

    def logits_and_loss(
        self, model: Forward, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of a batch (B,K) and the sum of its images' losses."""
        logits = model(images)
        return logits, self.loss_sum(logits, targets, images)

    def loss_sum(self, logits: Tensor, targets: Tensor, images: Tensor) -> Tensor:
        """Return the loss summed over a batch, for logits (B,K) and targets (B,) or (B,K)."""
        smoothing = self.config.label_smoothing
        if not self.weighs:
            return F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
        # torch's weights would also multiply each class's part of the smoothing; for a rare class,
        # this could outweigh the label of a frequent one.
        weights, targets = split_weights(targets, self.class_weights)
        losses = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
        return (weights * losses).sum()

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return each image's label and logits as one row: (B,1+K)."""
        logits = model(images).float()
        return torch.cat((targets.unsqueeze(1).to(logits.dtype), logits), dim=1)

    def evaluation(self, sample_outputs: Tensor) -> Evaluation:
        labels = sample_outputs[:, 0].long()
        logits = sample_outputs[:, 1:]
        return Classification.of(Predictions(labels.numpy(), logits.numpy()))

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the images, and maps of the class token's attention in the last layer.

        The first map is the mean over the heads; one map for each head follows.
        """
        _, attention = model.forward(images, return_attention=True)
        vit = require_vit(self.model, "a map")
        grid = grid_of(self.image_shape[1:], vit.patch_size)
        # (B,H,rows,columns)
        maps = attention[-1][:, :, 0, vit.num_prefix_tokens :].unflatten(2, grid)
        return [images, maps.mean(1), *maps.unbind(1)]


def split_weights(targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each image's weight (B,), and its target without the weight.

    `weights` (K,) are those of the classes, or None. An image with a label (B,) has the weight of
    its class; the label does not change. Targets of mixed or weighted images are shares of the
    classes (B,K). Each share is multiplied by the weight of its class; the image's weight is the
    sum of these products, and its new target is the products divided by their sum.
    """
    if targets.ndim == 1 and weights is not None:
        return weights[targets], targets
    parts = targets if weights is None else targets * weights
    return parts.sum(1), parts / parts.sum(1, keepdim=True)


def correct_predictions(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the number of correct predictions, given labels (B,).

    An image with a mixed target (B,K) counts as a fraction: the predicted class's share of the
    target.
    """
    predicted = logits.argmax(1)
    if targets.ndim == 1:
        return (predicted == targets).sum()
    return targets.gather(1, predicted.unsqueeze(1)).sum()


class Teacher(nn.Module):
    """A trained classifier that a student learns from; it stays in eval mode, without gradients.

    Its input is normalized for the student; the teacher converts it to its own normalization.
    """

    def __init__(self, model: nn.Module, own: Normalize, students: Normalize) -> None:
        super().__init__()
        self.model = model
        self.scale = nn.Buffer(own.scale / students.scale)  # (C,1,1)
        self.shift = nn.Buffer(own.shift - students.shift * self.scale)
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Tensor, return_features: bool = False) -> Any:
        """Return logits (B,K) for images (B,C,H,W) that are normalized for the student.

        With `return_features`, also return the features after each third of the layers, as maps
        (B,D,h,w).
        """
        images = images * self.scale + self.shift
        # Not self.model(…): like a model in evaluation, a teacher is never compiled.
        if not return_features:
            return self.model.forward(images)
        logits, features, *_ = self.model.forward(images, return_features=True)
        if isinstance(self.model, VisionTransformer):  # (B,N,D)
            features = [each.mT.unflatten(2, self.model.grid) for each in features]
        return logits, features


class Distill(Classify):
    """Classification that also learns from a `teacher`; evaluation needs no teacher."""

    config: DistillConfig
    teacher: nn.Module
    grid: Size  # of the student's patches; only for a hint

    def for_training(
        self, labels: Tensor, weighted: bool, best_by: str, teacher: nn.Module | None = None
    ) -> Self:
        task = super().for_training(labels, weighted, best_by)
        assert teacher is not None
        task.teacher = teacher
        if self.config.hint:
            vit = require_vit(self.model, f"task.hint={self.config.hint}")
            task.grid = grid_of(self.image_shape[1:], vit.patch_size)
        return task

    def logits_and_loss(
        self, model: Forward, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.config.hint:
            logits, patches, kept = model(images, return_features=True)
            teachers, features = self.teacher.forward(images, return_features=True)
            hints = self.config.hint * sum(
                mismatch(own, gather_tokens(on_grid(others, self.grid), kept))
                for own, others in zip(patches, features, strict=True)
            )
        else:
            logits = model(images)
            teachers = self.teacher.forward(images)
            hints = 0.0
        if self.config.distillation == "hard":
            losses = F.cross_entropy(logits, teachers.argmax(1), reduction="none")
        else:
            losses = softened_divergence(logits, teachers, self.config.temperature)
        losses = self.config.alpha * losses + hints
        # With a teacher, only images have weights, and targets are (B,K).
        teaching = (targets.sum(1) * losses if self.weighs else losses).sum()
        labels = self.loss_sum(logits, targets, images)
        return logits, (1 - self.config.alpha) * labels + teaching


def on_grid(features: Tensor, grid: Size) -> Tensor:
    """Return the features of a map (B,D,h,w) at each patch of a grid, interpolated: (B,N,D)."""
    return F.interpolate(features, grid, mode="bilinear").flatten(2).mT


def mismatch(patches: Tensor, features: Tensor) -> Tensor:
    """Return 1 − the correlation of patches (B,V,D) with features (B,V,D'), over channels: (B,).

    It is the mean over an image's patches. Of the wider tensor, only the first channels count.
    """
    width = min(patches.shape[2], features.shape[2])
    x, y = (F.layer_norm(each[..., :width].float(), (width,)) for each in (patches, features))
    return 1 - F.cosine_similarity(x, y, dim=2).mean(1)


def softened_divergence(logits: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """Return τ² · KL(teacher ‖ student) of each image (B,), given both models' logits (B,K)."""
    student, teacher = (F.log_softmax(each / temperature, dim=1) for each in (logits, teachers))
    return temperature**2 * F.kl_div(student, teacher, reduction="none", log_target=True).sum(1)


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
        if self.weighs:  # the last column is each image's weight, which multiplies its tags, too
            weights = targets[:, -1]
            targets = targets[:, :-1] / targets[:, -1:]
        right = torch.where(logits.detach() > 0, targets, 1 - targets).mean(1)
        losses = self.losses(logits, targets).mean(1)
        if not self.weighs:
            return torch.stack((losses.sum(), right.sum()))
        sums = (weights * torch.stack((losses, right))).sum(1)
        return torch.cat((sums, weights.sum().expand(2)))

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each tag of each image, (B,K), for logits and targets (B,K).

        Tag weights scale the loss of positive labels only, not the smoothing of negatives.
        """
        low = self.config.label_smoothing / 2
        bce = partial(F.binary_cross_entropy_with_logits, logits, reduction="none")
        having, lacking = (bce(torch.full_like(logits, each)) for each in (1 - low, low))
        weights = 1 if self.class_weights is None else self.class_weights
        return weights * targets * having + (1 - targets) * lacking

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return each image's tags and logits as one row: (B,2K)."""
        return torch.cat((targets, model(images).float()), dim=1)

    def evaluation(self, sample_outputs: Tensor) -> Tagging:
        truth, logits = sample_outputs.numpy().reshape(len(sample_outputs), 2, -1).swapaxes(0, 1)
        return Tagging.of(TagPredictions(truth > 0, logits))
