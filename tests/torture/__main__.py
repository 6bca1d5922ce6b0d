"""`make torture`."""

import argparse
import os
import sys

from torture.fuzz import GENERATORS, fuzz, try_again
from torture.kills import torture_all

parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
parser.add_argument("--kills", type=int, default=20, help="of each configuration, at least")
parser.add_argument("--minutes", type=float, default=15, help="of inputs, after the kills")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--only", nargs="+", choices=GENERATORS, help="these generators alone")
parser.add_argument("--again", metavar="GENERATOR:NUMBER", help="one input, keeping its folder")
parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time")
options = parser.parse_args()
if options.again:
    name, _, number = options.again.partition(":")
    sys.exit(not try_again(name, options.seed, int(number)))
good = options.kills == 0 or torture_all(options.kills, options.seed, options.jobs)
names = options.only or list(GENERATORS)
sys.exit(not (fuzz(names, options.minutes, options.seed, options.jobs) and good))
