"""Features of images, and what nearest neighbors and a linear classifier make of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Run, SmallRun, csv_rows, write_images
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import vit_train
from vit_train.base.reading import read_json
from vit_train.config.model import CnnConfig
from vit_train.config.tools import EvalDataConfig
from vit_train.data.dataset import ImageSet
from vit_train.data.splits import sample
from vit_train.evaluate.features import DECAYS, linear_logits, neighbor_votes, probed
from vit_train.loop.metrics import wilson_interval
from vit_train.model.build import build
from vit_train.model.features import Features
from vit_train.model.vit import encoder_of
from vit_train.run.neighbors import LEAST_COMPARED
from vit_train.trained.images import evaluated_images


def test_neighbors_and_the_linear_probe_are_scikit_learns() -> None:
    centers = torch.randn(4, 8)
    labels = torch.randint(4, (3, 200))
    train, val, tested = centers[labels] + torch.randn(3, 200, 8)
    votes = neighbor_votes(train, labels[0], tested, 4)
    neighbors = KNeighborsClassifier(20, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
    shares = neighbors.fit(train, labels[0]).predict_proba(tested)
    np.testing.assert_allclose(votes / votes.sum(1, keepdim=True), shares, atol=1e-5)

    logits, decay = linear_logits(train, labels[0], val, labels[1], tested, 4)
    parts = (train, val, tested)
    scaled = [((each - train.mean(0)) / train.std(0)).double().numpy() for each in parts]
    fits = [LogisticRegression(C=1 / (each * 200), tol=1e-5, max_iter=1000) for each in DECAYS]
    scores = [each.fit(scaled[0], labels[0]).score(scaled[1], labels[1]) for each in fits]
    best = int(np.argmax(scores))
    assert decay == DECAYS[best]
    expected = fits[best].predict_proba(scaled[2])
    np.testing.assert_allclose(logits.softmax(1), expected, atol=5e-3)


def test_features_are_what_the_head_reads_whatever_the_images_come_as(
    small_run: SmallRun,
) -> None:
    trained = vit_train.load(small_run("finished"))
    model = trained.model
    (path,) = write_images(".", ["a.png"])
    pixels = trained.pixels(path)
    found = trained.features(path)
    assert found.shape == (16,)
    torch.testing.assert_close(model.head(found), model(trained.preprocess(path)[None])[0])
    same = [Image.open(path), pixels, trained.preprocess(path), trained.preprocess(path).double()]
    for image in same:
        torch.testing.assert_close(trained.features(image), found, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        trained.features([path, path]), trained.features(torch.stack([pixels] * 2))
    )
    first = trained.features(path, layer=1, tokens="mean")
    tokens, _ = model.blocks[0](model.tokens(trained.preprocess(path)[None]) + model.positions(0))
    torch.testing.assert_close(first, tokens[0, 1:].mean(0))
    for image, words in (
        (torch.zeros(2, 3, 8, 8), r"\(N, 3, 32, 32\), .+, got \(2, 3, 8, 8\), float32"),
        (pixels.long(), r"got \(1, 3, 32, 32\), int64"),
        ("nowhere.png", "cannot read nowhere.png"),
    ):
        with pytest.raises(ValueError, match=words):
            trained.features(image)
    assert trained.features([]).shape == (0, 16)
    with pytest.raises(ValueError, match="layer=3: the model has layers 1 to 2"):
        trained.features(path, layer=3)


def test_a_network_without_tokens_has_the_features_that_its_head_reads() -> None:
    cnn = build(CnnConfig(widths=[4]), (3, 8, 8), 5).eval()
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(cnn.head(Features(cnn)(images)), cnn(images))
    with pytest.raises(ValueError, match="only"):
        Features(cnn, tokens="mean")


def test_an_autoencoder_is_probed_while_it_trains_and_when_it_is_evaluated(
    run: Run, small_run: SmallRun
) -> None:
    small_run("reconstruct")
    probed = run.says("probe, knn: ", "vit-eval", "ckpt=run", "probe=true")
    written = run.says("train_features (180, 16)", "vit-features", "ckpt=run")
    assert "trained on these images" not in probed.said + written.said
    words = "no validation features: the validation images are known only for"
    run.says(words, "vit-features", "ckpt=run", "data.image_size=48", "out=larger.npz")
    splits = ("train", "val", "test")
    (results,) = Path("run").glob("eval-test-*/results.json")
    assert "What its features know" in results.with_name("report.html").read_text(encoding="utf-8")
    assert set(np.load("features.npz")) == {
        "classes",
        *(f"{split}_{kind}" for split in splits for kind in ("features", "labels", "names")),
    }
    arrays = {
        name: torch.from_numpy(each)
        for name, each in np.load("features.npz").items()
        if each.dtype.kind != "U"
    }
    parts = [arrays[f"{split}_{kind}"] for split in splits for kind in ("features", "labels")]
    probe = read_json(results)["probe"]
    for name, found in (
        ("knn", neighbor_votes(parts[0], parts[1], parts[4], 10)),
        ("linear", linear_logits(*parts[:5], 10)[0]),
    ):
        right = int((found.argmax(1) == parts[5]).sum())
        expected = {"acc": right / 60, "acc_interval_95": [*wilson_interval(right, 60)]}
        assert probe[name] == expected

    # Its features are the mean of the patches, and the curve is of some of them.
    last = vit_train.load("run/checkpoints/last.safetensors")
    encoder = encoder_of(last.model)
    assert encoder is not None
    (train, val, *_), _ = evaluated_images(EvalDataConfig(), "train", last.meta)
    train = sample(train, LEAST_COMPARED)
    tokens = encoder.encode_visible(last.normalize(train.images), torch.arange(64).repeat(100, 1))
    features = last.features(train.images)
    torch.testing.assert_close(features, tokens[:, 1:].mean(1).detach(), atol=1e-5, rtol=1e-4)
    assert val is not None
    votes = neighbor_votes(features, train.labels, last.features(val.images), 10)
    right = (votes.argmax(1) == val.labels).double().mean()
    assert float(csv_rows("run/metrics.csv")[-1]["val_knn_acc"]) == pytest.approx(float(right))


def test_a_probe_is_fitted_to_images_with_a_weight_and_one_of_several_classes() -> None:
    images = torch.zeros(3, 3, 2, 2, dtype=torch.uint8)
    weighted = ImageSet(images, torch.tensor([0, 1, 2]), weights=torch.tensor([1.0, 0.5, 0]))
    assert probed(weighted).labels.tolist() == [0, 1]
    weighted = replace(weighted, labels=torch.tensor([0, 0, 1]))
    tagged = ImageSet(images, torch.eye(3))
    for unfit in (None, weighted, tagged, tagged.subset(torch.zeros(0, dtype=torch.int64))):
        with pytest.raises(ValueError, match="at least two classes, each with one class"):
            probed(unfit)


@pytest.mark.parametrize(
    "chosen, layer",
    [([], {}), (["layer=-2", "tokens=class"], {"layer": 1, "tokens": "class"})],
)
def test_features_of_own_photos_have_their_names(
    run: Run, small_run: SmallRun, chosen: list[str], layer: dict[str, int | str]
) -> None:
    small_run("finished")
    write_images("photos", ["a.png", "b.png"])
    run.succeeds("vit-features", "ckpt=run", "images=photos", *chosen, "out=own/photos.npz")
    found, names = np.load("own/photos.npz"), ["photos/a.png", "photos/b.png"]
    assert found["names"].tolist() == names
    expected = vit_train.load("run").features(names, **layer)
    np.testing.assert_allclose(found["features"], expected, atol=1e-5)
    run.fails("that ends in .npz", "vit-features", "ckpt=run", "out=features.csv")
    run.fails("has layers 1 to 2", "vit-features", "ckpt=run", "layer=3", "images=nowhere")
    words = "data.train_subset cannot be set here: it comes from the run"
    run.fails(words, "vit-features", "ckpt=run", "data.train_subset=9")
    run.fails("choose split=test or val", "vit-eval", "ckpt=run", "probe=true", "split=train")
    Path("photos/broken.png").write_bytes(b"not an image")
    run.fails(
        "cannot read photos/broken.png: ",
        *("vit-features", "ckpt=run", "images=photos", "out=own/photos.npz"),
    )
    assert len(np.load("own/photos.npz")["names"]) == 2
