"""Explanations of a model's predictions.

For a classifier: heat maps, attention distances, filters and scores. For a model that predicts
pixels: its decoder's attention from a hidden patch.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.text import counted, listed, shortened
from vit_train.config.fields import Size
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.explain.attribution import (
    attention_distances,
    deletion_orders,
    even_distance,
    pointing_hits,
    prediction_maps,
    principal_filters,
)
from vit_train.figures.charts import Figure
from vit_train.figures.images import draw_distances, draw_filters, draw_maps
from vit_train.loop.device import Precision
from vit_train.loop.metrics import Paired, wilson_interval
from vit_train.model.attention import attention_of
from vit_train.model.autoencoder import Autoregressor, EncoderDecoder
from vit_train.model.build import images_at_once
from vit_train.model.patches import PatchEmbed, show_only
from vit_train.model.vit import VisionTransformer, layer_index
from vit_train.tasks.pixels import Reconstruct
from vit_train.trained.model import Meta, Trained

# The most images to explain at once.
BATCH = 64
FILTERS = 28
LEGENDS = {
    "relevance": "how much each patch raised the logit of {raised} "
    "(relevance: attention × gradient)",
    "rollout": "attention through all layers (rollout)",
    "attention": "attention of layer {layer}, mean of all heads",
}
# The share of the patches to delete.
DELETED = 0.1
# Maximum number of characters in a title, and in a class name within it.
TITLE_LENGTH = 44
NAME_LENGTH = 30


class Explainer:
    """Explains the predictions of a model by one method or, with method="all", by all methods.

    `layer` is the layer to draw for method="attention" and "all". It counts from 1 or, if negative,
    from the end. `target` is the class to explain, by default each image's predicted class. The
    predictions are made in `precision`, by default the model's own.
    """

    def __init__(
        self,
        trained: Trained,
        method: str = "relevance",
        layer: int = -1,
        target: str | None = None,
        precision: Precision | None = None,
    ) -> None:
        model, meta = trained
        if not (isinstance(model, VisionTransformer) and meta.task.needs_labels):
            raise ValueError(
                "vit-explain needs a classifier with attention, but the checkpoint has "
                f"model.name={meta.config.model.name} and task={meta.config.task.name}"
            )
        if not attention_of(model.config).has_weights:
            raise ValueError(
                f"model.attention={model.config.attention} has no weights for vit-explain to draw"
            )
        if target is not None and target not in meta.classes:
            raise ValueError(
                f"target={target} is not a class of the model: choose from {listed(meta.classes)}"
            )
        self.trained = trained
        self.model = model
        self.precision = precision or trained.precision
        self.methods = list(LEGENDS) if method == "all" else [method]
        self.layer = layer_index(layer, model.config.depth, "model")
        self.target = None if target is None else meta.classes.index(target)
        self.batch = min(BATCH, images_at_once(model), trained.at_once)
        if not self.batch:
            raise ValueError(
                "the attention for one image would take more than 1 GB: choose a smaller "
                "data.image_size"
            )

    def figures(
        self, images: Tensor, titles: Sequence[str], shown: Tensor | None = None
    ) -> dict[str, Figure]:
        """Draw the maps of uint8 images (N,3,H,W), the heads' attention distances and the filters.

        `shown` are the same images at another size, over which the maps are drawn.
        """
        even = even_distance(self.model.grid, self.model.config.patch_size)
        found = {
            "maps": self.draw_maps(images, titles, shown),
            "distances": draw_distances(self.distances(images), max(images.shape[2:]), even),
        }
        if isinstance(self.model.patch_embed, PatchEmbed):
            weight = self.model.patch_embed.proj.weight.cpu()
            found["filters"] = draw_filters(*principal_filters(weight, FILTERS))
        return found

    def draw_maps(
        self, images: Tensor, titles: Sequence[str], shown: Tensor | None = None
    ) -> Figure:
        """Draw uint8 images (N,3,H,W) with their maps.

        `shown` are the same images at another size, which are drawn instead. Below each image are
        its title, such as the true class, and the predicted and explained classes with their
        probabilities.
        """
        probabilities = self.probabilities(images)
        predictions = probabilities.argmax(1)
        maps = [self.maps(images, predictions, method) for method in self.methods]
        meta = self.trained.meta
        names = [shortened(name, NAME_LENGTH) for name in meta.classes]
        adjective, noun = (
            ("predicted", "class") if meta.task.one_class else ("most probable", "tag")
        )
        lines = []
        for title, chances, predicted in zip(titles, probabilities, predictions, strict=True):
            results = [f"{adjective}: {names[predicted]} {100 * chances[predicted]:.0f} %"]
            if self.target not in (None, predicted):
                results.append(f"{names[self.target]} {100 * chances[self.target]:.0f} %")
            lines.append([shortened(title, TITLE_LENGTH), *results])
        raised = f"the {adjective} {noun}" if self.target is None else names[self.target]
        legend = "; ".join(LEGENDS[method] for method in self.methods)
        legend = legend.format(layer=self.layer + 1, raised=raised)
        if len(self.methods) > 1:
            legend = f"from left to right: {legend}"
        return draw_maps(images if shown is None else shown, torch.stack(maps, 1), lines, legend)

    def in_batches(self, compute: Callable[..., Tensor], images: Tensor, *more: Tensor) -> Tensor:
        """Compute something for normalized images, a batch at a time, and return it on the CPU.

        `compute` gets a batch of the `images`, uint8 (N,3,H,W), normalized and on the model's
        device, with the batch's rows of the tensors in `more`.
        """
        device = self.trained.device
        found = []
        for parts in zip(*(each.split(self.batch) for each in (images, *more)), strict=True):
            pixels, *rows = (part.to(device) for part in parts)
            found.append(compute(self.trained.normalize.forward(pixels), *rows).cpu())
        return torch.cat(found)

    def probabilities(self, images: Tensor, *visible: Tensor) -> Tensor:
        """Return vit-predict's probabilities (N,K) for uint8 images (N,3,H,W).

        With `visible` (N,M), the model sees only these patches of each image; the others take the
        mean color, which is 0 in normalized images.
        """

        def compute(batch: Tensor, *patches: Tensor) -> Tensor:
            if patches:
                batch = show_only(batch, patches[0], self.model.config.patch_size)
            return self.trained.probabilities(batch, self.precision)

        return self.in_batches(compute, images, *visible)

    def maps(self, images: Tensor, predicted: Tensor, method: str) -> Tensor:
        """Return maps (N,R,C) of the `target`, or of the `predicted` classes (N,)."""

        def compute(batch: Tensor, targets: Tensor) -> Tensor:
            return prediction_maps(self.model, batch, method, self.layer, targets)[0]

        targets = predicted if self.target is None else torch.full_like(predicted, self.target)
        return self.in_batches(compute, images, targets)

    @torch.no_grad()
    def distances(self, images: Tensor) -> list[list[float]]:
        """Return the mean attention distance, in pixels, of each head in each layer.

        Only the first `batch` images are used.
        """
        batch = self.trained.normalize.forward(images[: self.batch].to(self.trained.device))
        _, layers = self.model(batch, return_attention=True)
        config = self.model.config
        sizes = self.model.grid, config.num_prefix_tokens, config.patch_size
        return [attention_distances(each, *sizes).tolist() for each in layers]

    def score(self, part: ImageSet, method: str) -> None:
        """Log how well a method marks important patches, compared with chance.

        If the images have object masks, also play the pointing game.
        """
        maps, *kept = self.after_deletion(part.images, method)
        images = counted(len(part), "image")
        if part.masks is not None:
            hits, chance = pointing_hits(maps, part.masks)
            low, high = wilson_interval(int(hits.sum()), len(part))
            logger.info(
                f"pointing game, {method}: {hits.double().mean():.1%} of {images} (95 % interval "
                f"{low:.1%} to {high:.1%}); chance: {chance.mean():.1%}"
            )
        count = self.patch_count()
        marked, random = (each.double().mean() for each in kept)
        logger.info(
            f"{method}: deleting {count} of {maps[0].numel()} patches keeps the predictions of "
            f"{marked:.1%} of {images} if the map chooses the patches, of {random:.1%} if they are "
            "random"
        )

    def patch_count(self) -> int:
        """Return the number of patches to delete: a share of all, rounded, but at least one."""
        return max(1, round(DELETED * math.prod(self.model.grid)))

    def focus(self, images: Tensor) -> dict[str, float]:
        """Measure how much the predictions for uint8 images (N,3,H,W) depend on marked patches.

        `changed` is the share of predictions that change when the patches with the largest values
        are deleted; `changed_at_random` is the share that change when as many random patches are
        deleted. `deleted` is the share of patches that are deleted. `p_value` compares `changed`
        and `changed_at_random` by McNemar's exact test.
        """
        maps, marked, random = self.after_deletion(images, self.methods[0])
        return {
            "images": len(images),
            "deleted": self.patch_count() / maps[0].numel(),
            "changed": 1 - marked.double().mean().item(),
            "changed_at_random": 1 - random.double().mean().item(),
            "p_value": Paired.of(random.numpy(), marked.numpy()).p_value,
        }

    def after_deletion(self, images: Tensor, method: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return maps (N,R,C), and two bool tensors (N,) for the predictions that stay the same.

        The first is for deleting the patches with the highest values, the second for deleting as
        many random patches.
        """
        predicted = self.probabilities(images).argmax(1)
        maps = self.maps(images, predicted, method)
        marked, random = (
            self.probabilities(images, order[:, self.patch_count() :]).argmax(1) == predicted
            for order in deletion_orders(maps)
        )
        return maps, marked, random


def true_classes(images: ImageSet, meta: Meta) -> list[str]:
    """Return a title for each image with its true labels; return [] for tasks without labels."""
    names = images.label_names(meta.classes) if meta.task.needs_labels else []
    return [f"true: {name or 'no tag'}" for name in names]


def most_central(patches: Tensor, grid: Size) -> Tensor:
    """Return the patch nearest to the image's center among each image's patches: (B,M) → (B,)."""
    height, width = grid
    down = patches // width - (height - 1) / 2
    across = patches % width - (width - 1) / 2
    nearest = (down**2 + across**2).argmin(dim=1, keepdim=True)
    return patches.gather(1, nearest).squeeze(1)


def masked(images: Tensor, visible: Tensor, query: Tensor, patch_size: int) -> Tensor:
    """Return uint8 images (B,3,H,W) with hidden patches in gray, and the patch `query` (B,) in red.

    `visible` (B,V) are the patches that stay visible.
    """
    is_seen, is_query = (
        show_only(torch.ones(images.shape), patches, patch_size) > 0
        for patches in (visible, query.unsqueeze(1))
    )
    red, gray = torch.tensor([[200, 40, 40], [200] * 3], dtype=torch.uint8).view(2, 3, 1, 1)
    return torch.where(is_seen, images, torch.where(is_query, red, gray))


@torch.no_grad()
def decoder_figures(trained: Trained, layer: int, images: Tensor) -> dict[str, Figure]:
    """Draw uint8 images (N,3,H,W) with a decoder's attention from one hidden patch.

    The hidden patch is the one nearest to the center. `layer` counts from 1 or, if negative, from
    the end. Raise ValueError if the decoder does not have this layer, or if no patch is visible
    (task.given_rows=0).
    """
    model, meta = trained
    assert isinstance(model, EncoderDecoder)
    index = layer_index(layer, len(model.decoder.blocks), "decoder")
    grid = model.encoder.grid
    unlabeled = ImageSet(images, torch.zeros(len(images), dtype=torch.long))
    batches = EvalBatches(unlabeled, trained.normalize, len(images), trained.device)
    batch, order = next(iter(meta.task.eval_loader(batches)))
    if isinstance(model, Autoregressor):  # predicts all but the first patches
        num_visible = first_predicted = model.num_given
        order = torch.arange(math.prod(grid), device=trained.device).expand(len(images), -1)
        inputs: tuple[Tensor, ...] = (batch,)
    else:
        assert isinstance(meta.task, Reconstruct)
        num_visible = meta.task.num_visible
        first_predicted = 0  # the decoder predicts the visible patches, too
        inputs = (batch, order[:, :num_visible])
    if not num_visible:
        raise ValueError(
            "task.given_rows=0: the model is given no patches, so there is no attention to draw"
        )
    _, attention = model.forward(*inputs, return_attention=True)
    weights = attention[index][1].mean(dim=1)  # cross-attention, mean over the heads: (B,Q,T)
    meta.require_finite(weights)
    visible = order[:, :num_visible]
    query = most_central(order[:, num_visible:], grid)
    numbers = torch.arange(len(images), device=query.device)
    # The visible patches are the last tokens; the other tokens have no place in the map.
    values = weights[numbers, query - first_predicted, -num_visible:]
    maps = values.new_zeros(order.shape).scatter(1, visible, values).unflatten(1, grid)
    shown = masked(images, visible.cpu(), query.cpu(), model.encoder.config.patch_size)
    legend = f"attention of the red patch to the visible patches, decoder layer {index + 1}"
    return {"decoder": draw_maps(shown, maps, [[]] * len(images), legend)}
