"""`vit-features`, and how well features tell classes apart: nearest neighbors, a linear probe."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.writing import replacing
from vit_train.config.data import DataConfig
from vit_train.config.tools import FeaturesConfig
from vit_train.data.dataset import ImageSet
from vit_train.data.files import image_files
from vit_train.data.splits import hold_out
from vit_train.evaluate.summaries import Json
from vit_train.loop.metrics import Classification, Predictions
from vit_train.model.features import Features
from vit_train.trained.images import evaluated_images
from vit_train.trained.load import load_on
from vit_train.trained.model import Trained

# The number of neighbors, and the temperature of their votes (Wu et al. 2018, section 3.4, with
# the number of Caron et al. 2021).
NEIGHBORS = 20
TEMPERATURE = 0.07
# Number of images whose similarities to all training images are in memory at once.
ROWS_AT_ONCE = 1000
# The weight decays to choose from for the linear classifier; each starts from the one before.
DECAYS = [10.0**-power for power in range(1, 6)]


def write_features(config: FeaturesConfig) -> None:
    """Write the features of the run's images, or of `config.images`, to the file `config.out`."""
    trained = load_on(config.ckpt, config.device, config.weights, config.data.image_size)
    Features(trained.model, config.layer, config.tokens)  # may fail, which is best before reading
    features = partial(trained.features, layer=config.layer, tokens=config.tokens)
    if config.images is not None:
        paths = image_files(config.images)
        arrays = {"features": features(paths).numpy(), "names": np.array([*map(str, paths)])}
    else:
        arrays = {"classes": np.array(trained.meta.classes)}
        found, data = evaluated_images(config.data, "test", trained.meta, with_train=True)
        val = found.val if data.val == "split" else None
        if val is None and data.val == "split":
            logger.warning(
                "no validation features: the validation images are known only for the run's own "
                "images at its training size"
            )
        for split, images in (("train", found.train), ("val", val), ("test", found.images)):
            if images is not None:
                arrays[f"{split}_features"] = features(images.images).numpy()
                arrays[f"{split}_labels"] = images.labels.numpy()
                arrays[f"{split}_names"] = images.all_names.astype(str)
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    shapes = (f"{name} {each.shape}" for name, each in arrays.items())
    logger.info(f"written to {out}: {', '.join(shapes)}")


def probed(train: ImageSet | None) -> ImageSet:
    """Return the training images that a probe is fitted to: those whose weight is not 0.

    Raise ValueError for images with tags, and if there are fewer than two classes.
    """
    fitted = train and train.with_weight()
    if not fitted or fitted.has_tags or len(fitted.labels.unique()) < 2:
        raise ValueError(
            "probe=true needs training images of at least two classes, each with one class"
        )
    return fitted


def probe(
    trained: Trained, train: ImageSet, val: ImageSet | None, images: ImageSet, data: DataConfig
) -> Json:
    """Return the accuracies of k-nearest neighbors and of a linear classifier, with intervals.

    Both are fitted to the features of the images `train` and tested on `images`. The linear
    classifier's weight decay is chosen on the images `val` or, without them, on some of `train`,
    which are then left out of the fit.
    """
    logger.info("probe: fitting to the features of the training images")
    if val is None:
        train, val = hold_out(train, "val_fraction", data)
    fitted, chosen, tested = (trained.features(each.images) for each in (train, val, images))
    classes = 1 + int(torch.cat((train.labels, images.labels)).max())
    votes = neighbor_votes(fitted, train.labels, tested, classes)
    logits, decay = linear_logits(fitted, train.labels, chosen, val.labels, tested, classes)
    found: Json = {"training_images": len(train), "decay": decay}
    for name, scores in (("knn", votes), ("linear", logits)):
        result = Classification.of(Predictions(images.labels.numpy(), scores.double().numpy()))
        found[name] = {"acc": result.acc, "acc_interval_95": list(result.interval)}
        low, high = result.interval
        logger.info(f"probe, {name}: {result.acc:.2%} (95 % interval {low:.2%} to {high:.2%})")
    return found


def neighbor_votes(train: Tensor, labels: Tensor, tested: Tensor, classes: int) -> Tensor:
    """Return the votes for each class (M,K) of the nearest neighbors of features (M,D).

    The neighbors are the most similar of the training features (N,D) by cosine similarity s; each
    votes for its label, of `labels` (N,), with the weight exp(s / TEMPERATURE).
    """
    normalized = F.normalize(train)
    votes = []
    for part in F.normalize(tested).split(ROWS_AT_ONCE):
        similar, nearest = (part @ normalized.T).topk(min(NEIGHBORS, len(train)))
        empty = torch.zeros(len(part), classes)
        votes.append(empty.scatter_add_(1, labels[nearest], (similar / TEMPERATURE).exp()))
    return torch.cat(votes)


def linear_logits(
    train: Tensor, labels: Tensor, val: Tensor, val_labels: Tensor, tested: Tensor, classes: int
) -> tuple[Tensor, float]:
    """Return logits (M,K) of a linear classifier for features (M,D), and its weight decay.

    It is fitted to training features (N,D), which are standardized, with the weight decay of DECAYS
    that has the highest accuracy on validation features; the strongest of equals.
    """
    mean = train.mean(0)
    std = train.std(0).clamp(min=1e-6)
    fitted, chosen, inputs = (
        F.pad((features - mean) / std, (0, 1), value=1.0).double()  # 1, for the bias
        for features in (train, val, tested)
    )
    weights = torch.zeros(train.shape[1] + 1, classes, dtype=torch.float64)
    fits = []
    for decay in DECAYS:
        weights = fit_linear(fitted, labels, weights, decay)
        correct = (chosen @ weights).argmax(1) == val_labels
        fits.append((int(correct.sum()), decay, weights))
    _, decay, weights = max(fits)  # of equals, the strongest decay
    return inputs @ weights, decay


def fit_linear(inputs: Tensor, labels: Tensor, start: Tensor, decay: float) -> Tensor:
    """Return the weights (D+1,K) with the least cross-entropy plus decay / 2 · their squared sum.

    The last row, the biases, does not decay. L-BFGS starts from the weights `start`.
    """
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=500, tolerance_grad=1e-5, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        penalty = decay / 2 * weights[:-1].square().sum()
        value = F.cross_entropy(inputs @ weights, labels) + penalty
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach()
