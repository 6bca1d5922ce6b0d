"""How well an autoencoder's features tell classes apart, measured after each epoch."""

from torch import Tensor

from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.data.splits import sample
from vit_train.evaluate.features import neighbor_votes
from vit_train.loop.metrics import Evaluation
from vit_train.loop.objective import outputs, without_gradients
from vit_train.loop.trainer import Callback, Trainer, TrainLog
from vit_train.model.features import Features
from vit_train.run.start import Run

# Of the labeled training images, one in EVERY, and at least LEAST_COMPARED, are compared with as
# many validation images.
EVERY = 40
LEAST_COMPARED = 100


class Neighbors(Callback):
    """Adds `knn_acc` to the validation: the accuracy of k-nearest neighbors.

    They are fitted to a few of the images `train`, and tested on a few of the images `val`.
    """

    def __init__(self, run: Run, train: ImageSet, val: ImageSet) -> None:
        self.run = run
        count = max(LEAST_COMPARED, len(train) // EVERY)
        self.train = sample(train, count)
        self.val = sample(val, count)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        assert val is not None
        model = Features(trainer.eval_model)
        train, own = (self.features(model, each, trainer) for each in (self.train, self.val))
        votes = neighbor_votes(train, self.train.labels, own, len(self.run.data.facts.classes))
        val.more["knn_acc"] = (votes.argmax(1) == self.val.labels).double().mean().item()

    def features(self, model: Features, images: ImageSet, trainer: Trainer) -> Tensor:
        """Return the features (N,D) of images, float32 on the CPU."""
        run = self.run
        size = run.config.train.eval_batch_size
        batches = EvalBatches(images, run.data.normalize, size, run.precision.device)
        compute = without_gradients(model.forward, run.precision)
        return outputs(model, compute, ((each,) for each, _ in batches), trainer.workers).float()


def neighbors_of(run: Run) -> list[Callback]:
    """Return the callback, if the run's images have classes and some of them are validated on."""
    train = run.data.splits.train.with_weight()
    val = run.data.splits.val
    has_classes = len(run.data.facts.classes) > 1 and not train.has_tags
    return [Neighbors(run, train, val)] if train and has_classes and val is not None else []
