"""make torture: training killed at random moments, and the commands fed with odd input."""

import os

# Children compute in one thread; a process that has started OpenMP's threads could not be forked.
os.environ["OMP_NUM_THREADS"] = "1"
