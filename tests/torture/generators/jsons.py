"""summary.json, and metrics.csv beside it, with anything inside: for resume= and vit-results."""

import json
import random
from pathlib import Path
from typing import Any

from torture.forgery import put, somewhere
from torture.place import Place

DEEP = 100_000
# As they are written; JSON's reader takes NaN and Infinity, which are none.
WORDS = (
    "NaN", "Infinity", "-Infinity", "9" * 5000, "-" + "9" * 5000, "1e400", "1e-400", "-0.0", "null",
    "true", "[]", "{}", '""', '"x"', '"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"|<b>`$x_1"',
    "1e9999", "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 900 + "]" * 900,
    "[1, 2]", '{"name": "vit"}', '"vit"', '"finished"', "0", "-1", "9223372036854775808", "0.5",
    "[null]", '{"a": 1, "a": 2}', '"' + "x" * 10**6 + '"', '"${oc.env:HOME}"', '"???"', '"é"',
    "[[0.1, 0.9]]", '"' + "x\\n" * 1000 + '"', "1e308", "[" + "0," * 10**6 + "0]", '"<script>"',
    '"$\\\\frac{"',
)  # fmt: skip
FILES = (
    b"", b"x", b"{", b"[]", b"null", b"NaN", b"\xff\xfe", b"\x00" * 1000, b"[" * DEEP,
    b'{"a":' * DEEP, b"9" * 5000, b'{"status": "finished"}', b'{"status": []}',
    b'"' + b"x" * 10**7, b"\xef\xbb\xbf{}", b'{"status": "finished", "config": null}',
    b'{"status": "finished", "config": {}}', b"1" * 10**6,
)  # fmt: skip
MARK = "to be replaced"


def make(rng: random.Random, place: Place) -> None:
    kind = rng.choice(["finished", "finished", "reconstruct", "interrupted"])
    run = place.copy(kind)
    path = run / "summary.json"
    place.note(kind)
    if rng.random() < 0.2:
        data = rng.choice(FILES)
        place.note(data[:50])
    else:
        data = changed(json.loads(path.read_text(encoding="utf-8")), rng, place)
    path.write_bytes(data)
    rows = run / "metrics.csv"
    if rows.exists() and rng.random() < 0.3:
        change_rows(rows, rng, place)
    if rng.random() < 0.3:
        place.run("vit-train", "resume=run", "train.max_minutes=null", writes=["run"])
    else:
        runs = ["run"]
        if rng.random() < 0.5:
            place.copy(rng.choice(["finished", kind]), "other")
            runs.append("other")
        place.run("vit-results", *runs, "--out", "out", writes=["out"])


def changed(content: dict[str, Any], rng: random.Random, place: Place) -> bytes:
    """Some values are other words, or lost."""
    words = []
    for _ in range(rng.choice([1, 1, 3])):
        path, word = somewhere(content, rng), rng.choice(WORDS)
        place.note(f"{path}: {word[:50]}")
        put(content, path, MARK)
        words.append(word)
    text = json.dumps(content)
    for word in words:
        text = text.replace(f'"{MARK}"', word, 1)
    return text.encode()


CELLS = (
    "",
    "x",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "9" * 5000,
    "1_0",
    "٣",
    '"',
    "\x00",
    "1,2",
    "\r",
    "é",
)


def change_rows(path: Path, rng: random.Random, place: Place) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    way = rng.choice(["cell", "cell", "cut", "long", "no header", "noise", "many rows"])
    place.note(f"metrics.csv: {way}")
    if way == "cell":
        number = rng.randrange(len(lines))
        cells = lines[number].split(",")
        cells[rng.randrange(len(cells))] = rng.choice(CELLS)
        lines[number] = ",".join(cells)
    elif way == "no header":
        del lines[0]
    elif way == "long":
        lines[-1] += "," + "9" * 200_000
    elif way == "many rows":
        lines += lines[1:] * 20_000
    data = ("\n".join(lines) + "\n").encode(errors="surrogateescape")
    if way == "cut":
        data = data[: rng.randrange(len(data))]
    path.write_bytes(rng.randbytes(1000) if way == "noise" else data)
