"""What a model says of files: lines for the terminal, rows of CSV, lines of JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_train.files.writing import replacing
from vit_train.text import csv_text, printable


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image: its most probable classes with their probabilities."""

    label: str
    probability: float
    # The most probable classes, the first of which is `label`.
    top: list[tuple[str, float]]


# The answer to a file, or why the file cannot be read.
PredictionOrError = Prediction | str


def shown(path: Path) -> str:
    return printable(str(path))


def terminal_line(path: Path, said: PredictionOrError, width: int) -> str:
    """Format what was said of a file for the terminal."""
    name = shown(path)
    if len(name) > width and sys.stdout.isatty():  # the end says more than the beginning
        name = f"…{name[1 - width :]}"
    if isinstance(said, str):
        return f"{name:<{width}}  cannot be read: {printable(said)}"
    classes = (f"{printable(label)} {chance:.1%}" for label, chance in said.top)
    return f"{name:<{width}}  {'  '.join(classes)}"


@contextmanager
def written_to(out: str | None, topk: int) -> Iterator[Callable[[Path, PredictionOrError], object]]:
    """Yield a function that writes a row; the file, CSV or JSON lines, is complete or absent.

    Without `out` nothing is written.
    """
    if out is None:
        yield lambda path, said: None
        return
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(out)) as file:
        if out.endswith(".jsonl"):
            yield lambda path, said: file.write(json_line(path, said).encode())
            return
        header = ["image", "predicted", "probability"]
        for place in range(2, topk + 1):
            header += [f"predicted_{place}", f"probability_{place}"]
        file.write(csv_text([[*header, "error"]]).encode())
        yield lambda path, said: file.write(csv_text([cells(path, said, topk)]).encode())


def cells(path: Path, said: PredictionOrError, topk: int) -> Iterable[str]:
    yield shown(path)
    if isinstance(said, str):
        yield from [""] * (2 * topk)
        yield printable(said)
        return
    for label, chance in said.top:
        yield printable(label)
        yield f"{chance:.6f}"
    yield ""


def json_line(path: Path, said: PredictionOrError) -> str:
    content: dict[str, Any] = {"image": shown(path)}
    if isinstance(said, str):
        content["error"] = printable(said)
    else:
        content |= {"predicted": said.label, "probability": round(said.probability, 6)}
        content["top"] = [[label, round(chance, 6)] for label, chance in said.top]
    return json.dumps(content) + "\n"
