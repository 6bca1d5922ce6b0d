"""Text from outside, such as file names and class names, made safe to display and to write.

Control characters, markup and formulas in it have no effect.
"""

import csv
import hashlib
import io
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence

# The number of bytes of a long name to keep.
NAME_BYTES = 40
# The number of characters of a class name to show in a line of text.
CLASS_NAME = 40


def printable(text: str, keep: str = "") -> str:
    """Escape all characters that could move the cursor, color text or reverse it, except `keep`."""
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def file_name(text: str) -> str:
    """Return text as a part of a file name of at most 47 bytes; different texts stay different."""
    plain = re.sub(r"[^\w.-]+", "_", text)
    if plain == text and len(plain.encode()) <= NAME_BYTES:
        return plain
    mark = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]
    return f"{plain.encode()[:NAME_BYTES].decode(errors='ignore')}-{mark}"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as lines of CSV; no text in them is a formula for a spreadsheet."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([plain_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def plain_cell(cell: object) -> object:
    """Return a cell with a leading ' if a spreadsheet would compute it; numbers stay numbers."""
    computed = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    if not computed or re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", str(cell)):
        return cell
    return f"'{cell}"


def markdown_cell(text: str) -> str:
    """Escape text for a cell of a Markdown table.

    The result is a single line that cannot end the cell, start markup or disguise a link.
    """
    return re.sub(r"[\\|<*`~]|(?<![^\W_])_|_(?![^\W_])|\](?=\()", r"\\\g<0>", printable(text))


def print_signs_in_any_encoding() -> None:
    """Make stdout and stderr print ? for characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def counted(number: int, noun: str) -> str:
    """Return "1 step", "2 steps" or "2 classes"."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def shortened(title: str, length: int = 22) -> str:
    """Return a title without control characters, ending in an ellipsis if it is too long."""
    title = printable(title)
    return title if len(title) <= length else f"{title[: length - 1]}…"


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, each shortened, and the number of the others."""
    more = [f"… {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*(shortened(name) for name in names[:most]), *more])


def reason(error: BaseException) -> str:
    """Return a message's first line, and its second line if the first ends with a colon.

    For an error without a message, return the name of its class.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    return " ".join(told)[:300] or type(error).__name__


def render(room: str, template: str, **content: object) -> str:
    """Return a page made from a template; `content` adds no markup or control characters."""
    from jinja2 import (
        Environment,
        PackageLoader,
        StrictUndefined,
    )  # slow, and only needed for pages

    environment = Environment(
        loader=PackageLoader(f"vit_train.{room}"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["base64"] = lambda content: b64encode(content).decode()
    environment.globals["counted"] = counted
    return environment.get_template(template).render(content)
