"""docs/vit_from_scratch.py: short, alone, and with the package's numbers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_sets import small_cifar
from small_trainers import GivenBatches, batches_of, fit, make_trainer
from torch import Tensor, nn

import vit_train
from docs import vit_from_scratch as scratch
from vit_train import VisionTransformer, ViTConfig
from vit_train.config.augment import AugmentConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.data.augment import Cropper
from vit_train.tasks.classify import Classify

DOCS = Path(scratch.__file__).parent
SMALL = ViTConfig(embed_dim=32, depth=2)
BUILTIN = "cifar10_token"


def renamed(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the package's model, under the names of the file's."""
    weights = {}
    for name, weight in model.state_dict().items():
        name = name.replace("patch_embed.proj.", "patch_embed.").replace(".0.weight", "")
        name = name.replace("mlp.fc1", "mlp.0").replace("mlp.fc2", "mlp.2")
        weights[name] = weight.flatten(1) if weight.ndim == 4 else weight.clone()
    return weights


def test_one_short_file_needs_only_torch_and_torchvision() -> None:
    text = Path(scratch.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    imported = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
    assert set(imported) == {"math", "torch", "torchvision"}


def test_the_page_quotes_the_file() -> None:
    text = Path(scratch.__file__).read_text(encoding="utf-8")
    page = (DOCS / "how_a_vit_works.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^```py\n(.+?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(quoted) > 8
    for code in quoted:
        lines = [f" *{re.escape(line)}\n" for line in code.splitlines()]
        assert re.search("^" + "".join(lines), text, re.MULTILINE), code


def test_it_starts_with_weights_like_the_packages() -> None:
    weights, others = scratch.ViT().state_dict(), renamed(VisionTransformer(ViTConfig()))
    assert sum(weight.numel() for weight in weights.values()) == 1_205_898
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert weight.shape == others[name].shape
        for measure in (Tensor.mean, Tensor.std):
            expected = float(measure(others[name]))
            assert float(measure(weight)) == pytest.approx(expected, rel=0.3, abs=0.01), name


def test_it_trains_as_the_package_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty steps in float64: the model, the loss, the optimizer, the rates and the clipping."""
    ours, model = scratch.ViT(dim=32, depth=2).double(), VisionTransformer(SMALL).double()
    ours.load_state_dict(renamed(model))
    start = ours.head.weight.clone()
    images, labels = torch.randn(80, 3, 32, 32).double(), torch.arange(80) % 10
    for name in ("augment", "normalize"):
        monkeypatch.setattr(scratch, name, lambda images: images)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randperm", torch.arange)
        scratch.train(ours, images, labels, epochs=2, batch_size=8)
    task = Classify(ClassifyConfig(), SMALL, (3, 32, 32), 10)
    batches = GivenBatches(batches_of(images, labels))
    trained = fit(make_trainer(model, batches, task, epochs=2)).model
    assert (ours.head.weight - start).abs().max() > 1e-3
    torch.testing.assert_close(ours.state_dict(), renamed(trained), rtol=0, atol=1e-6)


def test_it_shifts_and_mirrors_as_the_package_does() -> None:
    images = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8)
    torch.manual_seed(1)
    made = scratch.augment(images)
    torch.manual_seed(1)
    corners, mirrored = torch.randint(9, (2, 50)), torch.rand(1, 50) < 0.5
    cropper = Cropper(images, AugmentConfig(), torch.device("cpu"), seed=0)
    assert torch.equal(made, cropper.cut(torch.arange(50), torch.cat((corners, mirrored))))
    assert 10 < mirrored.sum() < 40


def test_it_computes_the_logits_of_a_trained_model() -> None:
    model = vit_train.load(f"builtin:{BUILTIN}").model
    ours = scratch.ViT()
    ours.load_state_dict(renamed(model))
    strip = np.asarray(Image.open(DOCS / "cifar10_test_images.png"))
    images = torch.from_numpy(np.stack(np.split(strip, 12, axis=1))).permute(0, 3, 1, 2)
    pixels = scratch.normalize(images)
    expected = model(pixels).detach()
    torch.testing.assert_close(ours(pixels).detach(), expected, rtol=0, atol=1e-4)
    assert scratch.accuracy(ours, images, expected.argmax(1)) == 1


def test_it_learns_from_the_files_that_torchvision_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = small_cifar(monkeypatch, Path("data"))
    images, labels = scratch.load(train=True)
    assert (
        torch.equal(images, torch.from_numpy(pixels[:100]))
        and labels.bincount().tolist() == [10] * 10
    )
    images = (20 * labels).byte().view(-1, 1, 1, 1).expand(images.shape)  # brighter by class
    model = scratch.ViT(patch=16, dim=64, depth=1)
    before = scratch.accuracy(model, images, labels)
    scratch.train(model, images, labels, epochs=21, batch_size=20)
    assert capsys.readouterr().out.startswith("step 0 of 105: loss 2.303\nstep 100 of 105: loss ")
    assert before == pytest.approx(0.1) and scratch.accuracy(model, images, labels) > 0.3
