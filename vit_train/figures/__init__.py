"""Figures: charts, sheets of images, heat maps, and a classifier's measures.

Import this package before matplotlib: matplotlib then ignores a matplotlibrc file in the current
folder, which may be somebody else's. $MATPLOTLIBRC and the user's own matplotlibrc still apply.
"""

import contextlib
import os
import sys

with contextlib.chdir(sys.prefix if os.path.exists("matplotlibrc") else "."):
    import matplotlib  # noqa: F401
