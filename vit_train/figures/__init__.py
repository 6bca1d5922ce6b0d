"""Figures: charts, sheets of images, heat maps, and a classifier's measures.

Import this package before matplotlib: it makes matplotlib ignore a matplotlibrc file in the current
folder, which may be somebody else's. Settings in $MATPLOTLIBRC and in the user's own folder apply.
"""

import contextlib
import os
import sys

with contextlib.chdir(sys.prefix if os.path.exists("matplotlibrc") else "."):
    import matplotlib  # noqa: F401
