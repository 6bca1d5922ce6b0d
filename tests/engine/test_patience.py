from vit_train.engine.metrics import Evaluation
from vit_train.engine.schedule import Patience


def test_patience_waits_from_the_best_epoch_not_from_the_last() -> None:
    patience = Patience(2)
    for loss, waited in ((0.5, 0), (0.9, 1), (0.7, 2)):  # better than the last, not than the best
        patience.note(Evaluation(count=1, loss=loss))
        assert patience.waited == waited
    assert patience.is_over
