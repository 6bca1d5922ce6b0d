import numpy as np
import pytest
import torch
from torch import Tensor

from vit_train.config.augment import AugmentConfig
from vit_train.config.model import ViTConfig
from vit_train.config.tasks import ReconstructConfig
from vit_train.data.batches import EvalBatches, Normalize, TrainBatches
from vit_train.data.dataset import ImageSet, Statistics
from vit_train.model.patches import patchify
from vit_train.tasks.pixels import Reconstruct, random_orders

CPU = torch.device("cpu")
VIT = ViTConfig(patch_size=4, embed_dim=16, depth=1, num_heads=2)
NORMALISE = Normalize(Statistics((0.5,) * 3, (0.25,) * 3), CPU)


def task(**config: object) -> Reconstruct:
    return Reconstruct(ReconstructConfig(**config), VIT, (3, 16, 16), 10)


def photos(count: int = 40) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return ImageSet(pixels, torch.zeros(count, dtype=torch.long))


def train_loader(rank: int = 0, ranks: int = 1) -> TrainBatches:
    return TrainBatches(photos(), 10, NORMALISE, AugmentConfig(), 12, 0, CPU, rank, ranks)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, 3, 16, 16, generator=generator)
    return images, random_orders(np.random.default_rng(0), 3, 16)


@pytest.mark.parametrize("normalize_target", [False, True])
def test_the_loss_is_the_mean_over_the_hidden_pixels(normalize_target: bool) -> None:
    images, orders = batch()
    predicted = torch.randn(3, 16, 48)
    learning = task(normalize_target=normalize_target)
    losses = learning.sample_outputs(lambda images, visible: predicted, images, orders)
    patches = patchify(images, 4)
    for image in range(3):
        squares = []
        for patch in orders[image, 4:]:  # 12 of 16 are hidden
            truth = patches[image, patch]
            if normalize_target:
                truth = (truth - truth.mean()) / (truth.var() + 1e-6).sqrt()
            squares.append((predicted[image, patch] - truth) ** 2)
        assert losses[image, 0].item() == pytest.approx(torch.cat(squares).mean().item(), rel=1e-5)
    total = learning.step_sums(lambda images, visible: predicted, images, orders)
    torch.testing.assert_close(total, losses.sum(0))


def test_each_batch_and_epoch_hides_other_patches_and_the_seed_decides_which() -> None:
    def orders(epoch: int) -> list[Tensor]:
        return [order for _, order in task().train_loader(train_loader()).epoch(epoch)]

    first, again, later = orders(0), orders(0), orders(1)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], later[0])
    assert torch.equal(first[0].sort(1).values, torch.arange(16).expand(12, -1))


def test_processes_hide_their_shares_of_the_same_batch() -> None:
    def orders(rank: int = 0, ranks: int = 1) -> Tensor:
        return next(task().train_loader(train_loader(rank, ranks)).epoch(0))[1]

    assert torch.equal(torch.cat([orders(rank, 3) for rank in range(3)]), orders())


def test_evaluation_hides_the_same_patches_whatever_the_batches() -> None:
    def orders(batch_size: int) -> Tensor:
        batches = EvalBatches(photos(), NORMALISE, batch_size, CPU)
        return torch.cat([order for _, order in task().eval_loader(batches)])

    assert torch.equal(orders(7), orders(40))


def test_pictures_show_the_visible_patches_and_the_reconstruction() -> None:
    learning = task()
    model, (images, orders) = learning.build_model(), batch()
    with torch.no_grad():
        original, masked, reconstructed = learning.pictures(model, images, orders)
    assert torch.equal(original, images)
    patches = [patchify(each, 4) for each in (images, masked, reconstructed)]
    for image in range(3):
        visible, hidden = orders[image, :4], orders[image, 4:]
        for shown in patches[1:]:
            assert torch.equal(shown[image, visible], patches[0][image, visible])
        assert (patches[1][image, hidden] == 0).all()
        assert not torch.equal(patches[2][image, hidden], patches[0][image, hidden])


def test_predicted_normalized_patches_are_shown_in_their_own_colors() -> None:
    """A model that is right about everything shows the image itself."""
    learning, (images, orders) = task(normalize_target=True), batch()
    truth = patchify(images, 4)
    deviation = (truth.var(2, keepdim=True) + 1e-6).sqrt()

    class Right(torch.nn.Module):
        def forward(self, images: Tensor, visible: Tensor) -> Tensor:
            return (truth - truth.mean(2, keepdim=True)) / deviation

    assert learning.sample_outputs(Right(), images, orders).abs().max() < 1e-10
    _, _, shown = learning.pictures(Right(), images, orders)
    torch.testing.assert_close(shown, images)


def test_a_splits_loss_is_the_mean_over_its_images() -> None:
    result = task().evaluation(torch.tensor([[1.0], [2.0], [6.0]]).double())
    assert (result.count, result.loss, task().best_by) == (3, 3.0, "loss")


@pytest.mark.parametrize("depth, blocks", [(None, 1), (3, 3)])
def test_the_decoder_has_its_own_depth(depth: int | None, blocks: int) -> None:
    assert len(task(decoder_depth=depth).build_model().decoder.blocks) == blocks
