import numpy as np
import pytest
import torch

from vit_train.data.train_batches import balanced


@pytest.mark.parametrize("counts", [[50, 10, 3], [1, 40], [5, 5, 5, 5], [7]])
def test_every_class_is_taken_equally_often_and_its_images_evenly(counts: list[int]) -> None:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels))]
    order = balanced(labels, np.random.default_rng(3))
    assert len(order) == len(labels)
    taken = labels[order].bincount()
    assert taken.max() - taken.min() <= 1
    for label in range(len(counts)):
        times = order.bincount(minlength=len(labels))[labels == label]
        assert times.max() - times.min() <= 1
    assert torch.equal(order, balanced(labels, np.random.default_rng(3)))
    if len(counts) > 1:
        assert not torch.equal(order, balanced(labels, np.random.default_rng(4)))


def test_a_class_without_images_is_not_missed_and_one_left_over_is() -> None:
    labels = torch.tensor([0, 4, 4])
    order = balanced(labels, np.random.default_rng(0))
    assert sorted(labels[order].bincount(minlength=5).tolist()) in ([0, 0, 0, 1, 2],)
    few = torch.arange(5)
    assert sorted(balanced(few, np.random.default_rng(0)).tolist()) == few.tolist()
