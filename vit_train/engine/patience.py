"""Early stopping: a run ends once validation has stopped improving (Prechelt 1998)."""

import math
from dataclasses import dataclass

from vit_train.engine.metrics import Evaluation


@dataclass(frozen=True)
class PatienceState:
    """The best validation score so far, if there is one, and the epochs since then."""

    best_score: float | None = None
    waited: int = 0


class Patience:
    """Counts the epochs since the best one; `epochs` is how many are waited for, None for ever."""

    def __init__(self, epochs: int | None) -> None:
        self.epochs = epochs
        self.best_score: float | None = None
        self.waited = 0

    def note(self, val: Evaluation | None) -> None:
        """Count an epoch, given its validation; an equal score is not better."""
        self.waited += 1
        before = -math.inf if self.best_score is None else self.best_score
        if val is not None and val.score > before:
            self.best_score, self.waited = val.score, 0

    @property
    def is_over(self) -> bool:
        return self.epochs is not None and self.waited >= self.epochs

    def state(self) -> PatienceState:
        return PatienceState(self.best_score, self.waited)

    def restore(self, state: PatienceState) -> None:
        self.best_score, self.waited = state.best_score, state.waited
