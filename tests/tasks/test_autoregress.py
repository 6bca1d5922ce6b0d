import pytest
import torch
from torch import Tensor

from vit_train.config.model import ViTConfig
from vit_train.config.tasks import AutoregressConfig
from vit_train.model.patches import patchify
from vit_train.tasks.pixels import Autoregress

VIT = ViTConfig(patch_size=4, embed_dim=16, depth=1, num_heads=2)
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
NO_LABELS = torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize("given_rows", [0, 1, 3])
def test_the_loss_is_each_predicted_patch_against_the_one_in_its_place(given_rows: int) -> None:
    given, truth = 4 * given_rows, patchify(IMAGES, 4)
    noise = torch.randn(truth.shape)

    def model(images: Tensor) -> Tensor:
        return (truth + noise)[:, given:]

    task = Autoregress(AutoregressConfig(given_rows=given_rows), VIT, (3, 16, 16), 10)
    losses = task.sample_outputs(model, IMAGES, NO_LABELS)
    expected = noise[:, given:].square().flatten(1).mean(1, keepdim=True)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(task.step_sums(model, IMAGES, NO_LABELS), expected.sum(0))


def test_pictures_agree_where_the_image_is_given() -> None:
    task = Autoregress(AutoregressConfig(given_rows=1), VIT, (3, 16, 16), 10)
    model = task.build_model()
    with torch.no_grad():
        original, given, completion, ahead = task.pictures(model, IMAGES, NO_LABELS)
        torch.testing.assert_close(completion, model.generate(IMAGES))
        torch.testing.assert_close(patchify(ahead, 4)[:, 4:], model(IMAGES))
    assert torch.equal(original, IMAGES)
    for picture in (given, completion, ahead):
        assert torch.equal(picture[:, :, :4], IMAGES[:, :, :4])
        assert not torch.equal(picture[:, :, 4:], IMAGES[:, :, 4:])
    assert (given[:, :, 4:] == 0).all()
    assert not torch.allclose(completion, ahead)  # one goes on from what it has predicted
    # The first predicted patch has only true ones before it, in both ways of going on.
    torch.testing.assert_close(completion[:, :, 4:8, :4], ahead[:, :, 4:8, :4])
