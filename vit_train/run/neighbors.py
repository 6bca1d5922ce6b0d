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

# Of the training images, one in EVERY is compared with as many validation images; at least FEWEST.
EVERY = 40
FEWEST = 100


class Neighbors(Callback):
    """Adds `knn_acc` to the validation: the accuracy of k-nearest neighbors.

    They are fitted to a few training images, and tested on a few of the validation images `val`.
    """

    def __init__(self, run: Run, val: ImageSet) -> None:
        self.run = run
        count = max(FEWEST, len(run.data.train) // EVERY)
        self.train = sample(run.data.splits.train, count)
        self.val = sample(val, count)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        assert val is not None
        model = Features(trainer.eval_model)
        train, own = (self.features(model, each, trainer) for each in (self.train, self.val))
        classes = len(self.run.data.facts.classes)
        predicted = neighbor_votes(train, self.train.labels, own, classes).argmax(1)
        val.more["knn_acc"] = (predicted == self.val.labels).double().mean().item()

    def features(self, model: Features, images: ImageSet, trainer: Trainer) -> Tensor:
        """Return the features (N,D) of images, float32 on the CPU."""
        run = self.run
        size = run.config.train.eval_batch_size
        batches = EvalBatches(images, run.data.normalize, size, run.precision.device)
        compute = without_gradients(model.forward, run.precision)
        return outputs(model, compute, ((each,) for each, _ in batches), trainer.workers).float()


def neighbors_of(run: Run) -> list[Callback]:
    """Return the callback, if the run's images have classes and some of them are validated on."""
    val = run.data.splits.val
    has_classes = len(run.data.facts.classes) > 1 and not run.data.splits.train.has_tags
    return [Neighbors(run, val)] if has_classes and val is not None else []
