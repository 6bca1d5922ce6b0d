import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vit_train.config.model import ModelConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.loop.objective import evaluate
from vit_train.loop.precision import Precision
from vit_train.tasks.classify import Classify

FP32 = Precision("fp32", torch.device("cpu"))
CLASSIFY = Classify(ClassifyConfig(), ModelConfig(), (1, 1, 10), 10)


def test_every_sample_counts_once_whatever_the_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(103, 10, generator=generator)
    labels = torch.randint(10, (103,), generator=generator)
    batches = zip(logits.split(25), labels.split(25), strict=True)  # the last one has 3
    result = evaluate(nn.Identity(), CLASSIFY, batches, FP32)
    assert result.count == 103
    assert result.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert sum(result.per_class_correct) == (logits.argmax(1) == labels).sum()
    assert result.per_class_count == torch.bincount(labels, minlength=10).tolist()


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_is_without_dropout_and_leaves_the_model_in_its_mode(training: bool) -> None:
    model = nn.Dropout(0.5).train(training)
    logits, labels = torch.randn(50, 10), torch.randint(10, (50,))
    result = evaluate(model, CLASSIFY, [(logits, labels)], FP32)
    assert result.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert model.training == training


def test_evaluation_keeps_no_graph() -> None:
    model, seen = nn.Linear(10, 10), []
    model.forward = lambda images: seen.append(F.linear(images, model.weight)) or seen[-1]
    batch = torch.randn(4, 10), torch.zeros(4, dtype=torch.long)
    evaluate(model, CLASSIFY, [batch, batch], FP32)
    assert [each.requires_grad for each in seen] == [False, False]
