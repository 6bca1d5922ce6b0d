"""Text from outside, such as the names of files and classes, shown without being obeyed."""

import logging
import re


def printable(text: str, keep: str = "\n") -> str:
    """Whatever could move the cursor, colour or reverse the text, as an escape; `keep` stays."""

    def shown(character: str) -> str:
        if character.isprintable() or character in keep:
            return character
        return character.encode("unicode_escape").decode()

    return "".join(map(shown, text))


def markdown_cell(text: str) -> str:
    """For a table: one line that ends no cell, begins no markup and links nowhere."""
    return re.sub(r"[\\|<*`]|\](?=\()", r"\\\g<0>", printable(text, keep=""))


class PrintableFormatter(logging.Formatter):
    """For every line of the log, on the terminal and in the file."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
