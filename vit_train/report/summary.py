"""summary.json: a run's config and results in one file that other programs can read."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from vit_train.engine.metrics import Classification, Evaluation
from vit_train.files.writing import write_text
from vit_train.report.metrics import all_values


def result_dict(result: Evaluation) -> dict[str, Any]:
    """Return the numbers of a result, without the answers to single images."""
    numbers = {each.name: getattr(result, each.name) for each in fields(result)}
    if isinstance(result, Classification):
        del numbers["answers"]
        numbers["acc_interval_95"] = list(result.interval)
    return numbers | all_values(result)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON, with null for NaN and infinity, which JSON does not have."""
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_text(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")
