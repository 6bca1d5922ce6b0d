"""vit-results: combine many runs into one table and plots."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from vit_train.base.text import printable
from vit_train.commands.command import version_line
from vit_train.commands.errors import short_errors

WRITES = """\
It writes into the folder given, or the one that holds all that are given:
  results.md    the table; runs that differ only in seed or fold are one row
  results.png   the final results
  curves.png    the training curves, if every run has its metrics.csv
  images.png    the results by number of training images, if there are three or more such numbers
Earlier files of these names are replaced."""


class Parser(argparse.ArgumentParser):
    """A parser that repeats wrong arguments in print only."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message, keep="\n"))


def given(text: str) -> Path:
    """Return a path; an empty one, as of an unset variable, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("no folder is given: the argument is empty")
    return Path(text)


def main() -> None:
    parser = Parser(
        prog="vit-results",
        description="Gather finished runs into one Markdown table and plots.",
        epilog=WRITES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version_line())
    parser.add_argument("runs", nargs="+", type=given, help="run folders, or folders of them")
    parser.add_argument("--out", type=given, help="write into this folder instead")
    arguments = parser.parse_args()
    with short_errors("vit-results"):
        from vit_train.results.table import gather

        text, out = gather(arguments.runs, arguments.out)
        print(text)
        print(printable(f"written to {out}/: results.md and its pictures"), file=sys.stderr)


if __name__ == "__main__":
    main()
