"""Previews of a run: `vit-augment` draws its images, `vit-inspect` describes its model."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from vit_train.base.log import logger
from vit_train.base.text import counted
from vit_train.config.fields import ImageShape, sides
from vit_train.config.tools import InspectConfig, SheetConfig
from vit_train.data.batches import Normalize, TrainBatches
from vit_train.data.dataset import channel_statistics, load_dataset, valid_statistics
from vit_train.data.splits import make_splits
from vit_train.figures.charts import save
from vit_train.figures.images import (
    draw_positions,
    has_position_table,
    image_grid,
    label_lines,
)
from vit_train.loop.device import CPU
from vit_train.model.build import (
    attention_gradient_bytes,
    on_meta,
    parameter_breakdown,
    require_model_fits,
)
from vit_train.model.vit import Encoder, VisionTransformer
from vit_train.tasks import count_flops, make_task


def draw_contact_sheet(config: SheetConfig) -> None:
    """Draw one row per image: the original, then `variants` augmented versions."""
    given = config.data
    data = load_dataset(given)
    train = make_splits(data, given).train
    statistics = channel_statistics(train.images)
    if given.mean is not None and given.std is not None:
        statistics = valid_statistics(given.mean, given.std)
    normalize = Normalize(statistics)
    augment = replace(config.augment, policy_epochs=None, mix_epochs=None)  # in all variants
    batches = TrainBatches(
        train, len(data.classes), normalize, augment, config.images, config.seed, CPU
    )
    chosen = torch.from_numpy(batches.generator().permutation(len(train))[: config.images])
    columns = [(train.images[chosen], train.labels[chosen])]
    for variant in range(config.variants):
        draws = batches.draw_batch(chosen, batches.generator(variant), variant)
        pixels, targets = batches.batch(*draws)
        columns.append((normalize.undo(pixels), targets))
    images = torch.stack([pixels for pixels, _ in columns], dim=1).flatten(0, 1)
    rows = zip(*(targets for _, targets in columns), strict=True)
    labels = [label_lines(target, data.classes) for row in rows for target in row]
    save(image_grid(images, labels, columns=len(columns)), Path(config.out))
    logger.info(f"{counted(len(chosen), 'image')} of {config.data.title} written to {config.out}")


def inspect_model(config: InspectConfig) -> None:
    """Print a new model's parameters and its FLOPs.

    For a Vision Transformer that classifies, also print a permutation test and draw the position
    embeddings, if the model has any.
    """
    if config.init_from is not None:
        logger.warning(f"init_from={config.init_from} is not read: vit-inspect shows a new model")
    image_shape, classes = subject(config)
    task = make_task(config.task, config.model, image_shape, classes)
    require_model_fits(
        config.model,
        on_meta(task.build_model, config.model),
        image_shape,
        copies=3,  # a second model, in float64, is built below
        more=attention_gradient_bytes(config.model, image_shape[1:]),
    )
    torch.manual_seed(config.seed)
    model = task.build_model()
    logger.info(parameter_breakdown(model))
    flops = count_flops(config.task, config.model, image_shape, classes).forward
    logger.info(f"{flops / 1e9:.3f} GFLOP for a forward pass of one image")
    if not isinstance(model, VisionTransformer):
        return
    without_positions = replace(model.config, positions="none", positions_at="stem")
    bare = VisionTransformer(without_positions, image_shape[1:], image_shape[0], classes)
    logger.info(
        "permutation test (largest difference between encoding permuted patches and "
        f"permuting encoded patches): {order_error(bare):.0e} without positions, "
        f"{order_error(model):.0e} with model.positions={model.config.positions}"
    )
    if has_position_table(model):
        save(draw_positions(model), Path(config.out))
        logger.info(f"plot of the position embeddings written to {config.out}")


def subject(config: InspectConfig) -> tuple[ImageShape, int]:
    """Return the shape of the images (C,H,W) and the number of classes.

    The images are not loaded, so raise ValueError if the settings do not determine both.
    """
    data = config.data
    size = data.value("image_size") or data.own_size
    classes = config.classes or getattr(data, "num_classes", data.own_classes)
    if size is None or classes is None:
        raise ValueError(
            f"vit-inspect does not load the images of data={data.name}: set classes=N and "
            "data.image_size=N (vit-data describes the images)"
        )
    return (3, *sides(size)), classes


@torch.no_grad()
def order_error(encoder: Encoder) -> float:
    """Return max |f(Px) − P f(x)| for the encoder's blocks f and random tokens x.

    P permutes the patches at random, and leaves the other tokens in place. Up to rounding, the
    result is 0 if and only if the encoder ignores the positions of the patches.
    """
    generator = torch.Generator().manual_seed(0)
    patches = math.prod(encoder.grid)
    first = encoder.config.num_prefix_tokens
    shape = (1, patches + first, encoder.config.embed_dim)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    order = torch.cat((torch.arange(first), first + torch.randperm(patches, generator=generator)))
    encoder.double().eval()
    permuted, _ = encoder.encode(x[:, order])
    straight, _ = encoder.encode(x)
    return (permuted - straight[:, order]).abs().max().item()
