"""`vit-augment` after its arguments are accepted: a picture of the model's training images."""

import logging
from pathlib import Path

import torch

from vit_train.data.batches import Normalize, TrainBatches
from vit_train.data.dataset import channel_statistics
from vit_train.data.memory import require_images_fit
from vit_train.data.sources import load_dataset
from vit_train.data.splits import make_splits
from vit_train.report.figure_file import save
from vit_train.runs.config import SheetConfig
from vit_train.text import counted
from vit_train.viz.sheet import image_grid, label_lines

logger = logging.getLogger(__name__)

DRAWN_BYTES = 40  # per pixel of a picture, while matplotlib scales it


def draw_contact_sheet(config: SheetConfig) -> None:
    """Draw one row per image: the original, then `variants` augmented versions."""
    data = load_dataset(config.data)
    train = make_splits(data, config.data).train
    pictures, size = config.images * (1 + config.variants), data.image_shape[1]
    require_images_fit(
        pictures, size, f"images={config.images}, variants={config.variants}", DRAWN_BYTES
    )
    normalize = Normalize(channel_statistics(train.images))
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
    labels = [
        label_lines(targets[row], data.classes)
        for row in range(len(chosen))
        for _, targets in columns
    ]
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    save(image_grid(images, labels, columns=len(columns)), out)
    logger.info(f"{counted(len(chosen), 'image')} of {config.data.title} written to {config.out}")
