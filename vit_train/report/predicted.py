"""What a model predicts for files: lines for the terminal, rows of CSV, lines of JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vit_train.files.writing import replacing
from vit_train.runs.trained import PredictionOrError
from vit_train.text import CLASS_NAME, csv_text, printable, shortened


def shown(path: Path) -> str:
    return printable(str(path))


def terminal_line(path: Path, prediction: PredictionOrError, width: int) -> str:
    """Format what was predicted for a file, for the terminal."""
    name = shown(path)
    if len(name) > width and sys.stdout.isatty():  # the end says more than the beginning
        name = f"…{name[1 - width :]}"
    if isinstance(prediction, str):
        return f"{name:<{width}}  cannot be read: {printable(prediction)}"
    classes = (f"{shortened(label, CLASS_NAME)} {chance:.1%}" for label, chance in prediction.top)
    return f"{name:<{width}}  {'  '.join(classes)}"


@contextmanager
def written_to(out: str | None, topk: int) -> Iterator[Callable[[Path, PredictionOrError], object]]:
    """Yield a function that writes a row; the file, CSV or JSON lines, is complete or absent.

    Without `out` nothing is written.
    """
    if out is None:
        yield lambda path, prediction: None
        return
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(out)) as file:
        if out.endswith(".jsonl"):
            yield lambda path, prediction: file.write(json_line(path, prediction).encode())
            return
        header = ["image", "predicted", "probability"]
        for place in range(2, topk + 1):
            header += [f"predicted_{place}", f"probability_{place}"]
        file.write(csv_text([[*header, "error"]]).encode())
        yield lambda path, prediction: file.write(
            csv_text([cells(path, prediction, topk)]).encode()
        )


def cells(path: Path, prediction: PredictionOrError, topk: int) -> Iterable[str]:
    yield shown(path)
    if isinstance(prediction, str):
        yield from [""] * (2 * topk)
        yield printable(prediction)
        return
    for label, chance in prediction.top:
        yield printable(label)
        yield f"{chance:.6f}"
    yield ""


def json_line(path: Path, prediction: PredictionOrError) -> str:
    content: dict[str, Any] = {"image": shown(path)}
    if isinstance(prediction, str):
        content["error"] = printable(prediction)
    else:
        content |= {"predicted": prediction.label, "probability": round(prediction.probability, 6)}
        content["top"] = [[label, round(chance, 6)] for label, chance in prediction.top]
    return json.dumps(content, allow_nan=False) + "\n"
