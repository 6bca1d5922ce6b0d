"""vit-results: combine many runs into one table and plots."""

import argparse
import sys
from pathlib import Path

from vit_train.commands.cli.errors import short_errors


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="vit-results", description="Gather runs into one Markdown table and plots."
    )
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders of them")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("."),
        help="where results.md and the pictures are written",
    )
    arguments = parser.parse_args()
    with short_errors("vit-results"):
        from vit_train.runs.compare import gather

        print(gather(arguments.runs, arguments.out))
        print(
            f"written to {arguments.out}/: results.md and its figures, which replace earlier ones",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
