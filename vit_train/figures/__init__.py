"""Figures: image grids, galleries of results, curves, position embeddings.

No other part of the package imports matplotlib itself: it must be imported here first.
"""

import contextlib
import os
import sys


def import_matplotlib() -> None:
    """Import matplotlib, but let it read no settings from the current folder.

    That may be somebody else's. Those in $MATPLOTLIBRC and the user's own folder of settings count.
    """
    if not os.path.exists("matplotlibrc"):
        return
    for name in ("MATPLOTLIBRC", "MPLCONFIGDIR"):
        if name in os.environ:
            os.environ[name] = os.path.abspath(os.environ[name])
    with contextlib.chdir(sys.prefix):
        import matplotlib  # noqa: F401


import_matplotlib()
