"""Inputs of every generator, for as long as asked, each tried in a child; what they found."""

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path

from torture import inputs
from torture.children import FORK, ended, start
from torture.kills import SMALL, VIT
from torture.place import Place

# Each makes one input and tries it.
GENERATORS: dict[str, Callable[[random.Random, Place], None]] = {
    "damage": inputs.damaged,
    "typed": inputs.typed,
}
# The runs that inputs begin with: made once, copied for each.
TEMPLATES = {"finished": [], "interrupted": ["train.max_minutes=1e-9"]}
Findings = Counter[tuple[str, str]]  # by generator and symptom, how many inputs show it


def make_templates() -> Path:
    """A new folder, in it a finished run and another, each in a folder by its name."""
    scratch = Path(tempfile.mkdtemp(prefix="torture-")).resolve()
    for name, settings in TEMPLATES.items():
        folder, output = scratch / "templates" / name, scratch / f"{name}-output"
        arguments = [*VIT, *SMALL, "train.epochs=2", *settings, f"hydra.run.dir={folder}"]
        outcome = ended(start("vit-train", arguments, output), output)
        if outcome.status:
            raise AssertionError(f"no {name} run: {outcome.stopped}{outcome.out}{outcome.err}")
    return scratch


def try_input(scratch: Path, name: str, seed: int, number: int) -> list[tuple[str, str]]:
    """Make one input, which these three name for good, and try it; what was found."""
    place = Place(scratch / f"{name}-{number}", scratch / "templates")
    GENERATORS[name](random.Random(f"{name}:{seed}:{number}"), place)
    return place.findings


def try_inputs(
    scratch: Path, names: list[str], seed: int, end: float, first: int, step: int
) -> Findings:
    """Until it is late; print what is new."""
    found: Findings = Counter()
    for number in count(first, step):
        if time.time() > end:
            print(f"{number // step} inputs", flush=True)
            return found
        name = names[number // step % len(names)]
        for symptom, details in try_input(scratch, name, seed, number):
            found[name, symptom] += 1
            if found[name, symptom] == 1:
                again = f'make torture ARGS="--seed {seed} --again {name}:{number}"'
                print(f"FINDING {name}: {symptom}\n  again: {again}")
                print("", *details.splitlines()[-25:], sep="\n  | ", flush=True)
        shutil.rmtree(scratch / f"{name}-{number}")


def fuzz(names: list[str], minutes: float, seed: int, jobs: int) -> bool:
    """Whether all went well."""
    scratch, end = make_templates(), time.time() + 60 * minutes
    with ProcessPoolExecutor(jobs, FORK) as pool:
        more = (names, seed, end)
        work = [pool.submit(try_inputs, scratch, *more, job, jobs) for job in range(jobs)]
    found = sum((each.result() for each in work), Findings())
    for (name, symptom), number in sorted(found.items()):
        print(f"  {name}: {symptom} ({number} inputs)")
    print(f"{len(found)} findings", flush=True)
    shutil.rmtree(scratch)
    return not found


def try_again(name: str, seed: int, number: int) -> bool:
    """One input, with all that it printed; its folder stays. Whether all went well."""
    scratch = make_templates()
    found = try_input(scratch, name, seed, number)
    for symptom, details in found:
        print(f"FINDING {symptom}\n{details}")
    print(f"its folder is {scratch / f'{name}-{number}'}")
    return not found
