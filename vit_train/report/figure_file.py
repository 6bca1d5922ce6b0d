"""Figures as files."""

from pathlib import Path

from vit_train.files.writing import replacing
from vit_train.viz.figures import Figure as Figure
from vit_train.viz.figures import ignore_missing_glyphs


def save(figure: Figure, path: Path) -> None:
    """Write a figure, in the format that the file's name says."""
    with replacing(path) as file, ignore_missing_glyphs():
        figure.savefig(file, format=path.suffix[1:])
