"""Classification: its loss, the weights of classes, and its pictures."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from small_trainers import GivenBatches, batches_of, make_trainer
from torch import Tensor, nn

from vit_train.config.model import CnnConfig, ModelConfig, ViTConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.config.training import AdamWConfig
from vit_train.tasks.classify import Classify, correct_predictions


def test_the_loss_is_smoothed_in_training_and_plain_in_evaluation() -> None:
    logits, labels = torch.randn(6, 4), torch.randint(4, (6,))
    task = Classify(ClassifyConfig(label_smoothing=0.2), ModelConfig(), (3, 8, 8), 4)
    loss, correct = task.step_sums(lambda images: logits, torch.empty(6), labels)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert correct == (logits.argmax(1) == labels).sum()
    result = task.evaluation(task.sample_outputs(lambda images: logits, torch.empty(6), labels))
    assert result.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def test_a_mixed_target_counts_as_a_fraction() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    mixed = torch.tensor([[0.3, 0.7, 0.0], [0.1, 0.0, 0.9]])
    torch.testing.assert_close(correct_predictions(logits, mixed), torch.tensor(0.3 + 0.9))


def test_pictures_are_maps_of_where_the_class_token_looks() -> None:
    task = Classify(ClassifyConfig(), ViTConfig(num_heads=2), (3, 16, 16), 10)
    attention = torch.zeros(2, 2, 17, 17)  # 2 heads, 4 × 4 patches and the class token
    attention[0, :, 0, 1 + 5] = 1.0
    attention[1, 1, 0, 1 + 15] = 0.5  # one head alone, and half of it at itself
    attention[1, 1, 0, 0] = 0.5

    class Model(torch.nn.Module):
        def forward(self, images: torch.Tensor, return_attention: bool) -> tuple[object, ...]:
            return None, [attention.flip(0), attention]

    images = torch.ones(2, 3, 16, 16)
    pictures = task.pictures(Model(), images, torch.zeros(2))
    assert task.columns == ("image", "mean of the heads", "head 1", "2")
    original, together, first, second = pictures
    assert torch.equal(original, images)
    assert first[1].max() == 0 and second[1].flatten().nonzero().tolist() == [[15]]
    assert torch.equal(together, (first + second) / 2)
    assert together.flatten(1).argmax(1).tolist() == [5, 15] and together[1].max() == 0.25


def test_a_model_without_a_class_token_has_no_pictures() -> None:
    for model in (CnnConfig(), ViTConfig(head="gap")):
        assert Classify(ClassifyConfig(), model, (3, 16, 16), 10).columns == ()


WEIGHTS = [0.3, 1.0, 2.5]


def weighted_mean(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Each sample's loss is that of its class, smoothed, times the class's weight.

    A mixed one is a part of a sample of each class. Without smoothing or mixing this is torch's.
    """
    shares = targets if targets.ndim > 1 else F.one_hot(targets, 3)
    parts = shares * torch.tensor(WEIGHTS).double()
    smooth = smoothing / 3 + (1 - smoothing) * torch.eye(3).double()
    losses = -logits.log_softmax(1) @ smooth
    return (parts * losses).sum() / parts.sum()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_step_is_on_the_weighted_mean(mixed: bool, smoothing: float) -> None:
    """Also in micro-batches that do not divide the batch, each with other weights."""
    targets = torch.rand(48, 3).double().softmax(1) if mixed else torch.randint(3, (48,))
    data = GivenBatches(batches_of(torch.randn(48, 5).double(), targets))
    model = nn.Linear(5, 3).double()
    reference = copy.deepcopy(model)
    config = ClassifyConfig(label_smoothing=smoothing, class_weights=WEIGHTS)
    task = Classify(config, ModelConfig(), (1, 1, 5), 3)
    task = task.for_training(torch.zeros(1, dtype=torch.long), False, "acc")
    optim = AdamWConfig(lr=0.02, warmup_epochs=0, min_lr=0.02, weight_decay=0, clip_norm=None)
    trainer = make_trainer(model, data, task, optim=optim, epochs=1, micro_batch=3)
    for draws in trainer.train_loader.draws(0):
        trainer.train_on(draws)
    log = trainer.end_epoch()

    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.02, weight_decay=0)
    losses = []
    for x, y in data.draws(0):
        optimizer.zero_grad()
        loss = weighted_mean(reference(x), y, smoothing)
        if not (mixed or smoothing):
            weights = torch.tensor(WEIGHTS).double()
            torch.testing.assert_close(loss, F.cross_entropy(reference(x), y, weights))
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(model.weight, reference.weight, rtol=0, atol=1e-7)
    assert log is not None and log.values["loss"] == pytest.approx(sum(losses) / 6, rel=1e-6)


def test_automatic_weights_are_scikit_learns() -> None:
    labels = torch.tensor([0] * 7 + [1] + [3] * 5)
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels.numpy())
    weights = Classify(ClassifyConfig(), ModelConfig(), (3, 8, 8), 4).balanced_weights(labels)
    assert weights[[0, 1, 3]].tolist() == pytest.approx(expected.tolist()) and weights[2] == 1
