"""`vit-augment` after its arguments are accepted: a picture of the model's training images."""

import logging
from pathlib import Path

import torch

from vit_train.data.batches import Normalize, TrainBatches
from vit_train.data.dataset import channel_statistics
from vit_train.data.memory import require_images_fit
from vit_train.data.splits import make_splits
from vit_train.files.writing import replacing
from vit_train.runs.config import SheetConfig
from vit_train.viz.augmentation import label_title
from vit_train.viz.figures import ignore_missing_glyphs, image_grid

logger = logging.getLogger(__name__)

DRAWN_BYTES = 40  # per pixel of a picture, while matplotlib scales it


def draw_contact_sheet(config: SheetConfig) -> None:
    """Draw one row per image: the original, then `variants` augmented versions."""
    data = config.data.load()
    train = make_splits(data, config.data).train
    pictures, size = config.images * (1 + config.variants), data.image_shape[1]
    require_images_fit(
        pictures, size, f"images={config.images}, variants={config.variants}", DRAWN_BYTES
    )
    normalize = Normalize(channel_statistics(train.images), torch.device("cpu"))
    batches = TrainBatches(
        train,
        len(data.classes),
        normalize,
        config.augment,
        config.images,
        config.seed,
        torch.device("cpu"),
    )
    chosen = torch.from_numpy(batches.generator().permutation(len(train))[: config.images])
    columns = [(train.images[chosen], train.labels[chosen])]
    for variant in range(config.variants):
        pixels, targets = batches.batch(*batches.draw(chosen, batches.generator(variant)))
        columns.append((normalize.undo(pixels), targets))

    images = torch.stack([images for images, _ in columns], dim=1).flatten(0, 1)
    titles = [
        label_title(targets[row], data.classes)
        for row in range(len(chosen))
        for _, targets in columns
    ]
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ignore_missing_glyphs(), replacing(out) as file:
        image_grid(images, titles, columns=len(columns)).savefig(file, format=out.suffix[1:])
    logger.info(f"{len(chosen)} images of {config.data.name} written to {config.out}")
