"""Early stopping: a run ends once validation has stopped improving (Prechelt 1998)."""

import math
from typing import Any

from vit_train.engine.metrics import Evaluation


class Patience:
    """Counts the epochs since the best one; `epochs` is how many are waited for, None for ever."""

    def __init__(self, epochs: int | None) -> None:
        self.epochs = epochs
        self.best_score = -math.inf
        self.waited = 0

    def note(self, val: Evaluation | None) -> None:
        """Count an epoch, given its validation; an equal score is not better."""
        better = val is not None and val.score > self.best_score
        self.waited = 0 if better else self.waited + 1
        if val is not None and better:
            self.best_score = val.score

    @property
    def is_over(self) -> bool:
        return self.epochs is not None and self.waited >= self.epochs

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_score, self.waited = float(state["best_score"]), int(state["waited"])
