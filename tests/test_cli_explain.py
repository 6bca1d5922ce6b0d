"""vit-explain: what is drawn and measured, and what is refused."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, SmallRun, write_images
from PIL import Image
from small_sets import small_cifar
from torch import Tensor

import vit_train
from vit_train.config.model import CnnConfig
from vit_train.data.dataset import load_dataset
from vit_train.data.splits import sample
from vit_train.explain import explainer
from vit_train.explain.attribution import deletion_orders, pointing_hits
from vit_train.explain.explainer import Explainer, decoder_figures, masked, most_central
from vit_train.loop.device import Precision
from vit_train.model import build as building
from vit_train.model.build import build
from vit_train.model.vit import VisionTransformer
from vit_train.trained.model import Trained


@pytest.mark.parametrize("method", ["relevance", "rollout", "attention"])
@pytest.mark.usefixtures("every_figure_is_drawn")
def test_each_method_is_drawn_and_measured(run: Run, small_run: SmallRun, method: str) -> None:
    small_run("finished")
    outcome = run.succeeds("vit-explain", "ckpt=run", f"method={method}", "count=5", "score=30")
    for name in ("maps", "distances", "filters"):
        folder = "explain" if method == "relevance" else f"explain-{method}"
        with Image.open(f"run/{folder}/{name}.png") as picture:
            assert min(picture.size) > 150
    said = re.search(r"pointing game, \w+: ([\d.]+)% of 30 images", outcome.out)
    trained = vit_train.load("run")
    explainer = Explainer(trained, method)
    part = sample(load_dataset(trained.meta.config.data).test, 30)
    predicted = explainer.probabilities(part.images).argmax(1)
    maps = explainer.maps(part.images, predicted, method)
    hits, _ = pointing_hits(maps, part.masks)
    assert said and float(said[1]) == pytest.approx(100 * hits.double().mean().item(), abs=0.06)
    deleted = f"{method}: deleting 6 of 64 patches keeps the predictions of "
    kept = re.search(rf"{deleted}([\d.]+)% of 30 .+ patches, of ([\d.]+)% if they", outcome.out)
    for order, share in zip(deletion_orders(maps), kept.groups(), strict=True):
        same = explainer.probabilities(part.images, order[:, 6:]).argmax(1) == predicted
        assert float(share) == pytest.approx(100 * same.double().mean().item(), abs=0.06)


def test_a_model_without_class_token_and_a_photo(run: Run) -> None:
    write_images(".", ["photo.jpg"])
    Path("broken.jpg").touch()
    small = [*SMALL, "model.head=gap", "train.max_minutes=1e-9", "hydra.run.dir=run"]
    run.succeeds("vit-train", *small)
    which = ["images=[photo.jpg,broken.jpg]", "target=square", "out=seen"]
    last = "ckpt=run/checkpoints/last.safetensors"
    run.says("broken.jpg cannot be read", "vit-explain", last, *which)
    assert Path("seen/maps.png").exists()


def test_an_image_is_never_replaced(run: Run) -> None:
    write_images("mine", ["filters.png", "photo.png"])
    before = Path("mine/filters.png").read_bytes()
    images = ["images=[mine/photo.png,mine/filters.png]", "out=mine/../mine"]
    words = "mine/filters.png: choose another out="
    run.fails(words, "vit-explain", "ckpt=builtin:cifar10", *images)
    assert Path("mine/filters.png").read_bytes() == before
    assert len(list(Path("mine").iterdir())) == 2


def test_a_model_without_attention_is_not_explained(small_run: SmallRun) -> None:
    cnn, meta = build(CnnConfig(), (3, 32, 32), 10), vit_train.load(small_run("finished")).meta
    with pytest.raises(ValueError, match="needs a classifier with attention"):
        Explainer(Trained(cnn, meta))


@pytest.mark.parametrize("task", ["reconstruct", "autoregress"])
@pytest.mark.usefixtures("every_figure_is_drawn")
def test_a_decoder_shows_what_it_takes_a_hidden_patch_from(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """Of images with other classes than in training, too."""
    small_run(task)
    small_cifar(monkeypatch, Path("data"))
    run.succeeds("vit-explain", "ckpt=run", "count=3", "layer=1")
    with Image.open("run/explain-layer1/decoder.png") as picture:
        assert min(picture.size) > 150
    other = ["data.name=cifar10", "data.root=data", "count=10"]
    run.succeeds("vit-explain", "ckpt=run", *other)
    assert Path("run/explain/decoder.png").exists()


@pytest.mark.parametrize("task", ["reconstruct", "autoregress"])
def test_a_decoders_map_has_the_weights_of_the_visible_patches_alone(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """The class token comes before them, and has no place in a map."""
    trained = vit_train.load(small_run(task))
    shares = torch.arange(65.0)  # of the class token, then of each patch
    given = trained.model(*trained.meta.task.example_inputs(), return_attention=True)[1]
    tokens = given[0][1].shape[3]
    fake = [(None, shares[:tokens].expand(2, *each.shape[1:])) for _, each in given]
    monkeypatch.setattr(trained.model, "forward", lambda *inputs, return_attention: (None, fake))
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(explainer, "draw_maps", lambda images, maps, *rest: drawn.append(maps))
    decoder_figures(trained, 1, torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    for image in drawn[0].flatten(1):
        assert image[image > 0].sort().values.tolist() == [*range(1, tokens)]


def test_only_visible_patches_are_shown_and_the_most_central_hidden_one_is_red() -> None:
    generator = torch.Generator().manual_seed(0)
    visible = torch.stack([torch.randperm(9, generator=generator)[:4] for _ in range(2)])
    images = torch.zeros(2, 3, 6, 6, dtype=torch.uint8)
    shown = masked(images, visible, torch.tensor([0, 1]), patch_size=2)[:, :, ::2, ::2].flatten(2)
    for image, patch in product(range(2), range(9)):
        color = [200, 40, 40] if patch == image else [200] * 3
        if patch in visible[image]:
            color = [0] * 3
        assert shown[image, :, patch].tolist() == color
    assert most_central(torch.tensor([[0, 8, 5], [3, 2, 4]]), (3, 3)).tolist() == [5, 4]
    assert most_central(torch.tensor([[0, 4, 9, 7]]), (2, 5)).tolist() == [7]


def test_relevance_is_attention_times_the_gradient_of_the_logit(small_run: SmallRun) -> None:
    """Through all layers, attention times its gradient, as in the paper on relevance."""
    small_run("finished")
    trained = vit_train.load("run")
    explainer = Explainer(trained, target="square")
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    probabilities = explainer.probabilities(images)
    maps = explainer.maps(images, probabilities.argmax(1), "relevance")
    batch = trained.normalize(images)
    expected = trained.model(batch).detach().double().softmax(1)
    torch.testing.assert_close(probabilities, expected)
    logits, layers = trained.model(batch, return_attention=True)
    square = trained.meta.classes.index("square")
    gradients = torch.autograd.grad(logits[:, square].sum(), layers)
    together = torch.eye(65).expand(2, -1, -1)
    for weights, gradient in zip(layers, gradients, strict=True):
        together = together + (weights * gradient).relu().mean(1) @ together
    expected = together[:, 0, 1:].unflatten(1, (8, 8)).detach()
    atol = 1e-3 * float(expected.abs().max())
    torch.testing.assert_close(maps, expected, rtol=1e-3, atol=atol)


@pytest.mark.usefixtures("every_figure_is_drawn")
@pytest.mark.parametrize("target", [None, "square"])
def test_below_a_map_is_the_prediction_whatever_class_is_explained(
    small_run: SmallRun, target: str | None
) -> None:
    trained = vit_train.load(small_run("finished"))
    images, expected = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8), []
    photos = [image.permute(1, 2, 0).numpy() for image in images]
    for title, found in zip("abc", trained.predict(photos, topk=99), strict=True):
        expected += [title, f"predicted: {found.label} {100 * found.probability:.0f} %"]
        if target not in (None, found.label):
            expected.append(f"square {100 * dict(found.top)['square']:.0f} %")
    (axes,) = Explainer(trained, target=target).draw_maps(images, ["a", "b", "c"]).axes
    heading, *drawn, _, _, legend = (text.get_text() for text in axes.texts)
    assert heading == "" and drawn == expected
    assert f"raised the logit of {target or 'the predicted class'}" in legend.replace("\n", " ")


@pytest.mark.usefixtures("every_figure_is_drawn")
def test_all_methods_are_drawn_side_by_side_over_the_image(small_run: SmallRun) -> None:
    explainer = Explainer(vit_train.load(small_run("finished")), "all")
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    larger = torch.nn.functional.interpolate(images, scale_factor=7)
    (axes,) = explainer.draw_maps(images, ["a", "b"], larger).axes
    assert axes.images[0].get_array().shape[:2] == (224, 4 * 224 + 3 * 7)
    legend = axes.texts[-1].get_text().replace("\n", " ")
    assert (
        legend.index("relevance") < legend.index("rollout") < legend.index("attention of layer 2")
    )


def test_attention_that_takes_too_much_memory_is_not_drawn(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run("finished", "before")
    monkeypatch.setattr(building, "EXPLAINED_BYTES", 10_000)
    run.fails("the attention for one image would take more", "vit-explain", "ckpt=before")
    run.says("not explained", "vit-eval", "ckpt=before")
    run.succeeds("vit-train", *SMALL, "train.epochs=1", "hydra.run.dir=run")
    for folder in ("before/eval-test", "run"):
        assert not Path(folder, "pictures.png").exists()


def test_focus_deletes_the_patches_that_the_map_marks_most(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    explainer, visible = Explainer(vit_train.load(small_run("finished"))), []
    images = torch.randint(256, (9, 3, 32, 32), dtype=torch.uint8)
    probabilities = explainer.probabilities

    def noted(images: Tensor, *patches: Tensor) -> Tensor:
        visible.extend(patches)
        return probabilities(images)

    monkeypatch.setattr(explainer, "probabilities", noted)
    assert explainer.focus(images)["deleted"] == pytest.approx(0.1, abs=1 / 64)
    predicted = explainer.probabilities(images).argmax(1)
    maps = explainer.maps(images, predicted, "relevance").flatten(1)
    for shown, values in zip(visible[0], maps, strict=True):
        deleted = values[~torch.isin(torch.arange(64), shown)]
        assert len(deleted) == 6 and deleted.min() >= values[shown].max()


def test_at_least_one_patch_is_deleted(small_run: SmallRun) -> None:
    """Of four patches that is a quarter."""
    meta = vit_train.load(small_run("finished")).meta
    model = VisionTransformer(replace(meta.config.model, patch_size=16), 32).eval()
    images = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8)
    assert Explainer(Trained(model, meta)).focus(images)["deleted"] == 0.25


@pytest.mark.parametrize("precision", [None, Precision("bf16", torch.device("cpu"))])
def test_predictions_with_and_without_patches_have_the_same_precision(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch, precision: Precision | None
) -> None:
    trained = vit_train.load(small_run("finished"))
    explainer, forward, in_bf16 = Explainer(trained, precision=precision), trained.model.forward, []

    def noted(images: torch.Tensor, *for_maps: bool) -> torch.Tensor:
        if not for_maps:
            in_bf16.append(torch.is_autocast_enabled("cpu"))
        return forward(images, *for_maps)

    monkeypatch.setattr(trained.model, "forward", noted)
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    predicted = explainer.probabilities(images).argmax(1)
    everything = torch.arange(64).expand(4, -1)
    assert (explainer.probabilities(images, everything).argmax(1) == predicted).all()
    assert set(in_bf16) == {precision is not None}


def test_a_hit_is_on_the_object() -> None:
    masks = torch.zeros(2, 8, 8, dtype=torch.bool)
    masks[0, :4, :4] = True  # one of four patches
    masks[1, :, 4:7] = True  # three quarters of two
    maps = torch.zeros(2, 2, 2)
    maps[0, 0, 1] = maps[1, 1, 1] = 1
    hits, chance = pointing_hits(maps, masks)
    assert hits.tolist() == [False, True] and chance.tolist() == [0.25, 0.5]
