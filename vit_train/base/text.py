"""Make untrusted text, such as file names and class names, safe to display and to write.

Escaping removes the effect of control characters, markup and spreadsheet formulas.
"""

import csv
import hashlib
import io
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow, and only needed for pages
    from jinja2 import Environment

# The number of bytes of a long name to keep.
NAME_BYTES = 40
# The number of characters of a class name to show in a line of text.
CLASS_NAME = 40


def printable(text: str, keep: str = "") -> str:
    """Escape control characters and other unprintable characters, except those in `keep`."""
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def file_name(text: str) -> str:
    """Turn text into a file name of at most 47 bytes; different texts give different names."""
    plain = re.sub(r"[^\w.-]+|^\.+$", "_", text)  # . and .. name folders
    if plain == text and len(plain.encode()) <= NAME_BYTES:
        return plain
    mark = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]
    return f"{plain.encode()[:NAME_BYTES].decode(errors='ignore')}-{mark}"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV text, with a ' before cells that a spreadsheet would run as formulas."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(map(plain_cell, row) for row in rows)
    return text.getvalue()


def plain_cell(cell: object) -> object:
    """Return a cell, with a ' in front of text that a spreadsheet would run as a formula.

    Some spreadsheets begin another cell after a semicolon. Numbers, such as "-1.5", stay unchanged.
    """
    if not isinstance(cell, str) or re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", cell):
        return cell
    return re.sub(r"(^|;)(?=[=+@\t\r-])", r"\1'", cell)


def markdown_cell(text: str) -> str:
    """Escape text for a cell of a Markdown table.

    The result is a single line that cannot end the cell, format text or form a link.
    """
    return re.sub(r"[\\|<*`~]|(?<![^\W_])_|_(?![^\W_])|\](?=\()", r"\\\g<0>", printable(text))


def replace_unencodable_characters() -> None:
    """Make stdout and stderr print "?" for characters that their encodings cannot represent."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def counted(number: int, noun: str) -> str:
    """Return a number with a noun in the singular or plural: "1 step", "2 steps" or "2 classes"."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def shortened(title: str, length: int = 22) -> str:
    """Escape control characters in a title, and shorten the title to `length` characters.

    A shortened title ends with "…".
    """
    title = printable(title)
    return title if len(title) <= length else f"{title[: length - 1]}…"


def listed(names: Sequence[str]) -> str:
    """Join the first ten names, each shortened, with commas; add "… N more" for any others."""
    more = [f"… {len(names) - 10} more"] if len(names) > 10 else []
    return ", ".join([*(shortened(name) for name in names[:10]), *more])


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, plus the second if the first ends with a colon.

    The result has at most 300 characters. For an empty message, return the name of the error's
    class.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    return " ".join(kept)[:300] or type(error).__name__


def render(package: str, template: str, **content: object) -> str:
    """Fill in a Jinja template with `content`, and return the text.

    The template is in the subpackage `package` of vit_train, such as "explain". Control characters
    in `content` are escaped and, on HTML pages, markup.
    """
    return environment(package).get_template(template).render(content)


@cache
def environment(package: str) -> "Environment":
    """Return the Jinja environment of a subpackage's templates, which it compiles once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    found = Environment(
        loader=PackageLoader(f"vit_train.{package}"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["base64"] = lambda content: b64encode(content).decode()
    found.filters["cell"] = markdown_cell
    found.globals["counted"] = counted
    return found
