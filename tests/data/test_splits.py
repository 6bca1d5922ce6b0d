from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from conftest import SMALL_MODEL, Run, csv_rows

from vit_train.config.data import DataConfig
from vit_train.data.dataset import Dataset, ImageSet
from vit_train.data.splits import Splits, hold_out, make_splits, sample


def numbered(count: int, offset: int) -> ImageSet:
    """Images that carry their own number, in unequal classes: 0 is half of all."""
    numbers = torch.arange(offset, offset + count)
    labels = (torch.arange(count) % 4).clamp(max=2)
    return ImageSet(numbers.view(-1, 1, 1, 1), labels, numbers.view(-1, 1, 1) > 0)


DATA = Dataset(numbered(400, 0), numbered(100, 1000), ("a", "b", "c"))


def ids(part: ImageSet | None) -> set[int]:
    assert part is not None
    return set(part.images.flatten().tolist())


def test_no_image_is_in_two_splits_and_none_is_lost() -> None:
    splits = make_splits(DATA, DataConfig())
    assert ids(splits.train) | ids(splits.val) == ids(DATA.train)
    assert not ids(splits.train) & ids(splits.val)
    assert ids(splits.test) == ids(DATA.test)
    assert len(splits.val or []) == 40
    assert ids(splits.val) == ids(make_splits(DATA, DataConfig()).val)
    assert ids(splits.val) != ids(make_splits(DATA, DataConfig(split_seed=1)).val)


@pytest.mark.parametrize("count, fraction, expected", [(96, 0.1, 10), (94, 0.1, 9), (4, 0.1, 1)])
def test_a_share_is_rounded_and_never_nothing(count: int, fraction: float, expected: int) -> None:
    data = Dataset(numbered(count, 0), numbered(10, 1000), ("a", "b", "c"))
    assert len(ids(make_splits(data, DataConfig(val_fraction=fraction)).val)) == expected


def test_the_training_subset_leaves_validation_as_it_was() -> None:
    whole, part = make_splits(DATA, DataConfig()), make_splits(DATA, DataConfig(train_subset=40))
    assert ids(whole.val) == ids(part.val)
    assert len(part.train) == 40 and ids(part.train) < ids(whole.train)


def test_a_sample_shows_every_class_in_the_order_of_the_images() -> None:
    labels = torch.arange(10).repeat_interleave(30)  # as a folder has them
    numbers = torch.arange(300)
    shown = sample(ImageSet(numbers.view(-1, 1, 1, 1), labels), 12)
    counts = torch.bincount(shown.labels, minlength=10)
    assert len(shown) == 12 and 1 <= counts.min() <= counts.max() <= 2
    assert shown.images.flatten().tolist() == sorted(shown.images.flatten().tolist())
    assert len(sample(shown, 100)) == 12


@pytest.mark.parametrize("seed", range(5))
def test_a_class_keeps_an_image_for_training_if_others_can_be_set_apart(seed: int) -> None:
    labels = torch.cat((torch.zeros(40), torch.arange(1, 31))).long()  # 30 classes of one image
    images = ImageSet(torch.zeros(70, 1, 1, 1), labels)
    left, taken = hold_out(images, "val_fraction", DataConfig(split_seed=seed))
    assert set(left.labels.tolist()) == set(range(31)) and set(taken.labels.tolist()) == {0}
    alone = ImageSet(torch.zeros(4, 1, 1, 1), torch.arange(4))  # where there are no others
    apart = hold_out(alone, "val_fraction", DataConfig(val_fraction=0.75, split_seed=seed))[1]
    assert len(apart) == 3


def test_other_protocols_and_what_they_refuse() -> None:
    assert make_splits(DATA, DataConfig(val="none")).val is None
    tested = make_splits(DATA, DataConfig(val="test", test_subset=10))
    assert ids(tested.val) == ids(tested.test) and len(tested.test) == 10
    with pytest.raises(ValueError, match="no split called 'val'"):
        make_splits(DATA, DataConfig(val="none")).named("val")


def test_subsets_are_stratified_and_drawn_by_the_seed() -> None:
    """The classes one after the other, as the files of a folder come."""
    order = DATA.train.labels.argsort(stable=True)
    ordered = Dataset(DATA.train.subset(order), DATA.test, DATA.classes)

    def parts(seed: int) -> Splits:
        config = DataConfig(train_subset=80, test_subset=20, split_seed=seed)
        return make_splits(ordered, config)

    for part, count in ((parts(0).train, 80), (parts(0).test, 20)):
        assert part is not None
        shares = torch.bincount(part.labels, minlength=3) / count
        assert (shares - torch.tensor([0.25, 0.25, 0.5])).abs().max() <= 1 / count
        # An image keeps its own label and mask.
        numbers = part.images.flatten()
        assert torch.equal(part.labels, (numbers % 4).clamp(max=2))
        assert part.masks is not None and torch.equal(part.masks.flatten(), numbers > 0)
    assert ids(parts(0).train) == ids(parts(0).train) != ids(parts(1).train)
    assert ids(parts(0).val) == ids(parts(0).val) != ids(parts(1).val)
    assert ids(parts(0).test) == ids(parts(0).test) != ids(parts(1).test)


@pytest.mark.parametrize("folds", [2, 3, 5])
@pytest.mark.parametrize("own", [False, True])
def test_every_image_is_validated_on_in_exactly_one_fold(folds: int, own: bool) -> None:
    """Those that a source sets apart for validation are among them."""
    data = Dataset(DATA.train, DATA.test, DATA.classes, numbered(17, 2000) if own else None)
    everything = ids(DATA.train) | (ids(data.val) if own else set())
    parts = [make_splits(data, DataConfig(cv_folds=folds, cv_fold=k)) for k in range(folds)]
    validated = [number for part in parts for number in ids(part.val)]
    assert sorted(validated) == sorted(everything)
    counts = torch.stack([part.val.labels.bincount(minlength=3) for part in parts])
    assert (counts.amax(0) - counts.amin(0)).max() <= 1
    assert counts.sum(1).max() - counts.sum(1).min() <= 1
    for part in parts:
        assert ids(part.train) == everything - ids(part.val) and ids(part.test) == ids(DATA.test)
        for images in (part.train, part.val):  # an image keeps its label
            numbers = images.images.flatten() % 1000
            assert torch.equal(images.labels, (numbers % 4).clamp(max=2))
    again = make_splits(data, DataConfig(cv_folds=folds, cv_fold=0, split_seed=1))
    assert ids(again.val) != ids(parts[0].val)


def test_the_images_of_a_class_are_shuffled_and_dealt_to_the_folds_in_turn() -> None:
    images = ImageSet(torch.arange(10), torch.zeros(10, dtype=torch.long))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    for fold in range(4):
        config = DataConfig(cv_folds=4, cv_fold=fold, split_seed=3)
        found = make_splits(Dataset(images, DATA.test, ("a",)), config).val
        assert ids(found) == set(order[fold::4].tolist())


def test_the_folds_of_a_sweep_are_one_row(run: Run) -> None:
    data = ["data.train_images=61", "data.test_images=20", "data.cv_folds=2", "train.epochs=1"]
    sweep = ["-m", "data.cv_fold=0,1", "hydra.sweep.dir=runs", "model.head=gap"]
    outcome = run.succeeds("vit-train", *SMALL_MODEL, *data, *sweep)
    assert "31 training, 30 validation" in outcome.out and "2 of 2 jobs finished" in outcome.out
    run.succeeds("vit-results", "runs")
    table = Path("runs/results.md").read_text(encoding="utf-8").splitlines()
    header, _, row = (line.strip("| ").split(" | ") for line in table if line.startswith("|"))
    cells = dict(zip(header, row, strict=True))
    curves = [csv_rows(f"runs/cv_fold_{fold}/metrics.csv") for fold in (0, 1)]
    found = [100 * float(curve[-1]["val_acc"]) for curve in curves]
    title = "validation accuracy, last epoch, mean of folds (%)"
    assert cells[title] == f"{mean(found):.2f} ± {stdev(found):.2f}" and stdev(found) > 0
    assert cells["folds"] == "0, 1 of 2" and cells["seeds"] == "0"


def test_images_with_tags_are_stratified_by_their_rarest_tag() -> None:
    labels = torch.tensor([[1, 1]] * 4 + [[1, 0]] * 36)
    images = ImageSet(torch.zeros(40, 3, 2, 2, dtype=torch.uint8), labels)
    for seed in range(5):
        _, part = hold_out(images, "val_fraction", DataConfig(val_fraction=0.5, split_seed=seed))
        assert part.labels[:, 1].sum() == 2
