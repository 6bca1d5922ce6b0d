import pytest
import torch
import torch.nn.functional as F

from vit_train.model.config import CnnConfig, ModelConfig, ViTConfig
from vit_train.tasks.classify import Classify, correct_answers
from vit_train.tasks.config import ClassifyConfig


def test_the_loss_is_smoothed_in_training_and_plain_in_evaluation() -> None:
    logits, labels = torch.randn(6, 4), torch.randint(4, (6,))
    task = Classify(ClassifyConfig(label_smoothing=0.2), ModelConfig(), (3, 8, 8), 4)
    loss, correct = task.step_sums(lambda images: logits, torch.empty(6), labels)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert correct == (logits.argmax(1) == labels).sum()
    result = task.evaluation(task.sample_outputs(lambda images: logits, torch.empty(6), labels))
    assert result.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def test_of_a_mixed_target_the_predicted_share_counts() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    mixed = torch.tensor([[0.3, 0.7, 0.0], [0.1, 0.0, 0.9]])
    torch.testing.assert_close(correct_answers(logits, mixed), torch.tensor(0.3 + 0.9))


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
    assert len(pictures) == len(task.columns) == 2 + task.model.num_heads
    original, together, first, second = pictures
    assert torch.equal(original, images)
    assert first[1].max() == 0 and second[1].flatten().nonzero().tolist() == [[15]]
    assert torch.equal(together, (first + second) / 2)
    assert together.flatten(1).argmax(1).tolist() == [5, 15] and together[1].max() == 0.25


def test_what_has_no_class_token_has_no_such_picture() -> None:
    heads = Classify(ClassifyConfig(), ViTConfig(num_heads=2), (3, 16, 16), 10).columns
    assert heads == ("image", "mean of the heads", "head 1", "head 2")
    for model in (CnnConfig(), ViTConfig(head="gap")):
        assert Classify(ClassifyConfig(), model, (3, 16, 16), 10).columns == ()
