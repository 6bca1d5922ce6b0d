"""Where one model's predictions come from: maps, distances of heads, filters and scores."""

import difflib
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit_train.base.text import counted, listed, shortened
from vit_train.data.dataset import ImageSet
from vit_train.engine.metrics import Paired, wilson_interval
from vit_train.engine.precision import Precision
from vit_train.explain.attribution import (
    Focus,
    answer_maps,
    attention_distances,
    even_distance,
    layer_index,
    middle_share,
    patches_of_half,
    pointing_hits,
    principal_filters,
    without_patches,
)
from vit_train.figures.charts import save
from vit_train.figures.maps import draw_distances, draw_filters, draw_maps, map_title
from vit_train.model.build import images_at_once
from vit_train.model.patches import PatchEmbed
from vit_train.model.vit import VisionTransformer
from vit_train.runs.trained import Meta, Trained

logger = logging.getLogger(__name__)

# Images that are explained at once, at most.
BATCH = 64
FILTERS = 28
# The files that are written for a classifier.
WRITTEN = ("maps.png", "distances.png", "filters.png")
LEGENDS = {
    "relevance": "how much each patch raised {raised} (relevance: attention × gradient)",
    "rollout": "attention through all layers (rollout)",
    "attention": "attention of layer {layer}, the mean of its heads",
}
TOO_LARGE = "the attention for one image would take more than 1 GB: choose a smaller image size"
# Shares of the patches that are deleted: for a curve, and for one figure.
CURVE, DELETED = (0.05, 0.1, 0.2, 0.3, 0.5), 0.1


class Explainer:
    """Explains the answers of one model by one method.

    `layer`, counted from 1, is for method="attention"; `target` is the explained class, None the
    predicted one. The answers are computed in `precision`, by default the model's own.
    """

    def __init__(
        self,
        trained: Trained,
        method: str = "relevance",
        layer: int = -1,
        target: str | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.trained, self.meta = trained, trained.meta
        self.precision = precision or trained.precision
        self.method = method
        if not isinstance(trained.model, VisionTransformer):
            raise ValueError(
                f"this needs a classifier with attention: model.name={self.meta.config.model.name} "
                f"with task={self.meta.config.task.name} is none"
            )
        self.model = trained.model
        self.has_class = self.model.config.has_class_token
        self.layer = layer_index(layer, self.model.config.depth, "model")
        if target is not None and target not in self.meta.classes:
            near = difflib.get_close_matches(target, self.meta.classes, n=1)
            hint = f"did you mean {near[0]}?" if near else listed(self.meta.classes)
            raise ValueError(f"target={target} is not a class of the model: {hint}")
        self.target = None if target is None else self.meta.classes.index(target)
        self.batch = min(BATCH, images_at_once(self.model), trained.at_once)
        if not self.batch:
            raise ValueError(TOO_LARGE)
        self.normalize = trained.normalize

    def draw(self, folder: Path, images: Tensor, truths: Sequence[str]) -> list[str]:
        """Draw everything into the folder and return the files' names."""
        maps, distances, filters = WRITTEN
        self.draw_maps(folder / maps, images, truths)
        even = even_distance(self.model.grid, self.model.config.patch_size)
        size = images.shape[-1]
        save(draw_distances(self.distances(images), size, even), folder / distances)
        written = [maps, distances]
        if isinstance(self.model.patch_embed, PatchEmbed):
            found = principal_filters(self.model.patch_embed.proj.weight.cpu(), FILTERS)
            save(draw_filters(*found), folder / filters)
            written.append(filters)
        return written

    def draw_maps(self, path: Path, images: Tensor, truths: Sequence[str]) -> None:
        """Draw uint8 images (N,3,S,S) with their maps into a PNG file.

        `truths` are their titles: the true classes or the files' names.
        """
        maps, probabilities = self.explained(images)
        best, answers = (each.tolist() for each in probabilities.max(dim=1))
        chances = [f" {100 * probability:.0f} %" for probability in best]
        target = None if self.target is None else self.meta.classes[self.target]
        if target is not None:
            for number, probability in enumerate(probabilities[:, self.target].tolist()):
                if answers[number] != self.target:
                    chances[number] += f", {shortened(target, 12)} {100 * probability:.0f} %"
        titles = [
            map_title(truth, self.meta.classes[answer], chance)
            for truth, answer, chance in zip(truths, answers, chances, strict=True)
        ]
        raised = "the predicted class" if target is None else shortened(target)
        legend = LEGENDS[self.method].format(layer=self.layer + 1, raised=raised)
        save(draw_maps(images, maps, titles, legend), path)

    def normalized(self, images: Tensor) -> Tensor:
        return self.normalize.forward(images.to(self.trained.device))

    def explained(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return maps (N,G,G) and probabilities (N,K), those of vit-predict, of uint8 images."""
        how = self.has_class, self.method, self.layer
        parts = []
        for each in images.split(self.batch):
            pixels = self.normalized(each)
            probabilities = self.trained.probabilities(pixels, self.precision)
            explained = probabilities.argmax(1)
            if self.target is not None:
                explained.fill_(self.target)
            maps, *_ = answer_maps(self.model, pixels, *how, explained)
            parts.append((maps.cpu(), probabilities.cpu()))
        maps, probabilities = map(torch.cat, zip(*parts, strict=True))
        return maps, probabilities

    @torch.no_grad()
    def distances(self, images: Tensor) -> list[list[float]]:
        """Return the mean attention distance of each head of each layer, in pixels."""
        _, layers = self.model(self.normalized(images[: self.batch]), return_attention=True)
        size = self.model.config.patch_size
        return [attention_distances(each, self.has_class, size).tolist() for each in layers]

    def score(self, part: ImageSet) -> None:
        """Measure the method on these images, with the score of chance."""
        maps, probabilities = self.explained(part.images)
        name, count = self.method, len(part)
        images = counted(count, "image")
        if part.masks is not None:
            hits, chance = pointing_hits(maps, part.masks)
            low, high = wilson_interval(int(hits.sum()), count)
            share, expected = hits.double().mean().item(), chance.mean().item()
            times = f"{share / expected:.1f} times chance, which is" if expected else "chance is"
            logger.info(
                f"pointing game, {name}: {share:.1%} of {images} (95 % interval {low:.1%} "
                f"to {high:.1%}), {times} {expected:.1%}"
            )
        deleted = list(dict.fromkeys(map(self.patches, CURVE)))
        marked, random = self.kept(part.images, maps, probabilities.argmax(1), deleted)
        for title, kept in ((f"{name}'s order", marked), ("random order", random)):
            same = zip(deleted, kept, strict=True)
            shares = (f"{k.double().mean():.1%} at {d / maps[0].numel():.0%}" for d, k in same)
            logger.info(
                f"deleting patches of {images} in {title}, share of predictions kept: "
                f"{', '.join(shares)}"
            )

    def patches(self, share: float) -> int:
        """Return how many patches are this share of all, at least one."""
        return max(1, round(share * self.model.grid**2))

    def focus(self, images: Tensor) -> Focus:
        """Measure where the maps of uint8 images (N,3,S,S) lie, and if the answers need it."""
        maps, probabilities = self.explained(images)
        deleted = self.patches(DELETED)
        (marked,), (random,) = self.kept(images, maps, probabilities.argmax(1), [deleted])
        only_marked, only_random = (~marked & random).sum(), (marked & ~random).sum()
        return Focus(
            images=len(images),
            patches_of_half=patches_of_half(maps).mean().item(),
            middle=middle_share(maps).mean().item(),
            deleted=deleted / maps[0].numel(),
            changed=1 - marked.double().mean().item(),
            changed_at_random=1 - random.double().mean().item(),
            p_value=Paired(len(images), int(only_marked), int(only_random)).p_value,
        )

    def kept(
        self, images: Tensor, maps: Tensor, answers: Tensor, deleted: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the predictions that stay, bool (N,), without each of these numbers of patches.

        The first list deletes the patches in the order of the maps, the second in a random one.
        """
        generator = torch.Generator().manual_seed(0)
        marked = maps.flatten(1).argsort(dim=1, descending=True)  # (N,G²)
        random = torch.rand(marked.shape, generator=generator).argsort(dim=1)
        first, second = (
            [self.answers_without(images, order, count) == answers for count in deleted]
            for order in (marked, random)
        )
        return first, second

    def answers_without(self, images: Tensor, order: Tensor, count: int) -> Tensor:
        """Return the answers (N,) to images without their first `count` patches in `order`."""
        answers, size = [], self.model.config.patch_size
        for part, first in zip(images.split(self.batch), order.split(self.batch), strict=True):
            batch = self.normalized(part)
            first = first.to(batch.device)
            less = without_patches(batch, first, count, size)
            answers.append(self.trained.probabilities(less, self.precision).argmax(1).cpu())
        return torch.cat(answers)


def true_classes(images: ImageSet, meta: Meta) -> list[str]:
    return [f"true: {meta.classes[label]}" for label in images.labels.tolist()]
