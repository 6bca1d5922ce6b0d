"""Figures: charts, sheets of images, heat maps, and a classifier's measures.

No other part of the package imports matplotlib itself: it must be imported here first, without the
settings of the current folder, which may be somebody else's. Those in $MATPLOTLIBRC and the user's
own folder of settings count.
"""

import contextlib
import os
import sys

with contextlib.chdir(sys.prefix if os.path.exists("matplotlibrc") else "."):
    import matplotlib  # noqa: F401
