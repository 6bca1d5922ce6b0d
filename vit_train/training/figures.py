"""The figures that TensorBoard shows of a run: its first images, and its validation."""

from collections.abc import Iterator

from torch import nn

from vit_train.data.dataset import ImageSet
from vit_train.data.splits import sample
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.explain.attribution import answer_maps
from vit_train.figures.charts import Figure
from vit_train.figures.heatmaps import draw_maps, map_title
from vit_train.figures.measures import METRICS
from vit_train.figures.sheet import draw_mistakes, image_grid, label_lines
from vit_train.model.cost import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.training.setup import Setup

# Images of the first batch that are shown.
FIRST = 18
# Images that are shown with what their predictions come from, one below the other: a card of
# TensorBoard is as wide as one of them.
SHOWN = 4


def draw_first_batch(setup: Setup) -> Figure:
    """Draw the first augmented images of epoch 0 with their labels."""
    pixels, targets = next(setup.image_loader.epoch(0))
    labels = [label_lines(target, setup.data.classes) for target in targets[:FIRST]]
    return image_grid(setup.normalize.undo(pixels[:FIRST]), labels)


def validation_figures(
    setup: Setup, model: nn.Module, result: Evaluation | None
) -> Iterator[tuple[str, Figure]]:
    """Yield what is confused, the most wrong answers, and where some predictions come from."""
    images, classes = setup.splits.val, setup.data.classes
    if images is None or not isinstance(result, Classification):
        return
    yield "confusion", METRICS["confusion"].draw(result.answers, classes)
    names = images.all_names.tolist()
    yield "mistakes", draw_mistakes(result.answers, images.images, classes, names)
    if isinstance(model, VisionTransformer) and (most := images_at_once(model)):
        yield "relevance", draw_relevance(setup, model, sample(images, min(SHOWN, most)))


def draw_relevance(setup: Setup, model: VisionTransformer, shown: ImageSet) -> Figure:
    """Draw how much each patch of some images raised the predicted class."""
    classes = setup.data.classes
    batch = setup.normalize(shown.images.to(setup.device))
    maps, _, predicted = answer_maps(model, batch, model.config.has_class_token)
    titles = [
        map_title(f"true: {classes[label]}", classes[answer])
        for label, answer in zip(shown.labels.tolist(), predicted.tolist(), strict=True)
    ]
    return draw_maps(shown.images, maps, titles, "what raised the class", columns=1)
