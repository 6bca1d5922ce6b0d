"""The workbench: a page on which a user decides on single photos, and that saves data.decisions."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.text import counted, plain_cell, printable, render
from vit_train.base.writing import write_text
from vit_train.config.data import FolderConfig
from vit_train.data.decisions import COLUMNS, read_decisions
from vit_train.evaluate.pages import photo_webp

# The most cases in a section, so that a page has some tens of MB at most, and the longer side of a
# photo in pixels.
MOST_CASES = 150
PHOTO_SIDE = 384

# A photo: its path below data.root, its label, why it is shown, and a better label, if any.
Photo = tuple[str, str, str, str]


def write_workbench(
    path: Path,
    sections: Mapping[str, Sequence[Sequence[Photo]]],
    classes: Sequence[str],
    config: FolderConfig,
    about: str,
) -> None:
    """Write the page; `about` tells how far its cases can be trusted.

    `sections` maps titles to cases, the most important first. A case has one photo, or several to
    compare. Of cases of which config.decisions decides all photos, only list the decisions.
    """
    earlier = read_decisions(config.decisions) if config.decisions else {}

    def is_settled(case: Sequence[Photo]) -> bool:
        return all(cell(name) in earlier for name, *_ in case)

    left = {
        title: [case for case in cases if not is_settled(case)] for title, cases in sections.items()
    }
    settled = {
        name: (why, earlier[cell(name)])
        for case in chain(*sections.values())
        if is_settled(case)
        for name, _, why, _ in case
    }
    shown = {title: cases[:MOST_CASES] for title, cases in left.items() if cases}
    names = dict.fromkeys(name for name, *_ in chain(*chain(*shown.values())))
    place = repr((Path(config.root).resolve(), *names)).encode(errors="surrogateescape")
    page = render(
        "evaluate",
        "workbench.html",
        data=config.title,
        root=config.root,
        about=about,
        sections=shown,
        settled=settled,
        counts={title: len(cases) for title, cases in left.items()},
        pictures={
            name: photo_webp(
                Path(config.root, name), PHOTO_SIDE, config.max_pixels, config.white_level
            )
            for name in names
        },
        cell=cell,
        has_choice=len(classes) > 1,
        script={
            "key": f"vit_train {hashlib.sha256(place).hexdigest()}",
            "columns": COLUMNS,
            "classes": [cell(name) for name in classes],
            "earlier": [[row[column] for column in COLUMNS] for row in earlier.values()],
        },
    )
    write_text(path, page)
    if names:
        logger.info(f"{counted(len(names), 'photo')} to decide on in {path}: open it in a browser")
    else:
        logger.info(f"nothing is left to decide on ({path})")


def cell(text: str) -> str:
    """Return text as in a cell of a run's CSV files, such as a path in IMAGES."""
    return str(plain_cell(printable(text)))
