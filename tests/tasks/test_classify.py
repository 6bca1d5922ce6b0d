import torch
import torch.nn.functional as F

from vit_train.model.config import ModelConfig
from vit_train.tasks.classify import Classify, correct_answers
from vit_train.tasks.config import ClassifyConfig


def test_the_loss_is_smoothed_in_training_and_plain_in_evaluation() -> None:
    logits, labels = torch.randn(6, 4), torch.randint(4, (6,))
    task = Classify(ClassifyConfig(label_smoothing=0.2), ModelConfig(), (3, 8, 8), 4)
    loss, correct = task.sums(lambda images: logits, torch.empty(6), labels)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert correct == (logits.argmax(1) == labels).sum()
    result = task.evaluation(task.outcomes(lambda images: logits, torch.empty(6), labels))
    torch.testing.assert_close(result.loss, F.cross_entropy(logits, labels).item())


def test_of_a_mixed_target_the_predicted_share_counts() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    mixed = torch.tensor([[0.3, 0.7, 0.0], [0.1, 0.0, 0.9]])
    torch.testing.assert_close(correct_answers(logits, mixed), torch.tensor(0.3 + 0.9))
