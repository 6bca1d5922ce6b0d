"""Safe display of text from outside, such as file and class names.

Control characters and markup in it have no effect.
"""

import logging
import re


def printable(text: str, keep: str = "\n") -> str:
    """Escape all characters that could move the cursor, color or reverse text, except `keep`."""

    def shown(character: str) -> str:
        if character.isprintable() or character in keep:
            return character
        return character.encode("unicode_escape").decode()

    return "".join(map(shown, text))


def markdown_cell(text: str) -> str:
    """Escape text for a cell of a Markdown table.

    The result is one line that cannot end the cell, start markup or make a link.
    """
    return re.sub(r"[\\|<*`]|\](?=\()", r"\\\g<0>", printable(text, keep=""))


class PrintableFormatter(logging.Formatter):
    """Formatter that makes every log line printable, on the terminal and in the file."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
