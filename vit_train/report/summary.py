"""summary.json: a run's config and results in one file that other programs read."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vit_train.engine.metrics import Classification, Evaluation


def result_dict(result: Evaluation) -> dict[str, Any]:
    interval = {}
    if isinstance(result, Classification):
        interval = {"acc_interval_95": list(result.interval)}
    return asdict(result) | interval


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Written beside and renamed, so that no reader sees half a file."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
