"""Figures: charts, sheets of images, heat maps, and a classifier's measures.

Matplotlib is first imported here, so that it reads no settings from the current folder, which may
be somebody else's. Settings in $MATPLOTLIBRC and in the user's own folder apply. No other part of
the package imports matplotlib directly.
"""

import contextlib
import os
import sys

with contextlib.chdir(sys.prefix if os.path.exists("matplotlibrc") else "."):
    import matplotlib  # noqa: F401
