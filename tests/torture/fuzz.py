"""Inputs of every generator, for as long as asked, each tried in a child; what they found."""

import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torture.children import GIGABYTE, in_children
from torture.generators import generators
from torture.place import Place
from torture.templates import make_templates

# Of what a command printed, so many are shown with a finding.
LINES = 25


@dataclass(frozen=True)
class Input:
    """One input of a generator; these three name it for good."""

    generator: str
    seed: int
    number: int

    @property
    def folder(self) -> str:
        return f"{self.generator}-{self.number}"

    @property
    def again(self) -> str:
        """How to try it again."""
        seed = f" --seed {self.seed}" if self.seed else ""
        return f'make torture ARGS="--again {self.generator}:{self.number}{seed}"'


@dataclass
class Account:
    """What became of the inputs."""

    seconds: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    # By generator and symptom, the inputs that show it.
    findings: dict[tuple[str, str], list[Input]] = field(default_factory=lambda: defaultdict(list))

    def next_inputs(self, names: list[str], seed: int, end: float) -> Iterator[Input]:
        """Until it is late; the generators have the same time each."""
        started: Counter[str] = Counter()
        while time.monotonic() < end:
            # Those under way count for a second each until it is known how long they took.
            waiting = {name: started[name] - self.counts[name] for name in names}
            name = min(names, key=lambda name: self.seconds[name] + waiting[name])
            yield Input(name, seed, started[name])
            started[name] += 1

    def report(self) -> bool:
        """Print how many inputs and findings there were; whether there were none."""
        print()
        for name in sorted(self.counts):
            found = sum(1 for generator, _ in self.findings if generator == name)
            print(f"{name}: {self.counts[name]} inputs, {found} findings")
        for (name, symptom), inputs in sorted(self.findings.items()):
            print(f"  {name}: {symptom} ({len(inputs)} inputs), {inputs[0].again}")
        print(f"{self.counts.total()} inputs, {len(self.findings)} findings", flush=True)
        return not self.findings


def try_input(one: Input, scratch: Path) -> None:
    """In a child: make it, try it, leave what was found beside its folder."""
    within_bounds()
    place = Place(scratch / one.folder, scratch / "templates")
    generators()[one.generator](random.Random(f"{one.generator}:{one.seed}:{one.number}"), place)
    result = {"findings": place.findings, "notes": place.notes}
    (scratch / f"{one.folder}.json").write_text(json.dumps(result), encoding="utf-8")


def within_bounds() -> None:
    """What makes an input must not fill the machine; the commands are watched instead."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + 3 * GIGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def fuzz(names: list[str], minutes: float, seed: int, jobs: int) -> bool:
    """Whether all went well."""
    account = Account()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        scratch = Path(folder).resolve()
        make_templates(scratch / "templates")
        end = time.monotonic() + 60 * minutes
        inputs = account.next_inputs(names, seed, end)
        for one, status, seconds in in_children(inputs, lambda i: try_input(i, scratch), jobs):
            account.counts[one.generator] += 1
            account.seconds[one.generator] += seconds
            note(one, status, scratch, account)
            shutil.rmtree(scratch / one.folder, ignore_errors=True)
    return account.report()


def note(one: Input, status: int, scratch: Path, account: Account) -> None:
    """Print what is new."""
    result = scratch / f"{one.folder}.json"
    found = (
        json.loads(result.read_text(encoding="utf-8"))
        if result.exists()
        else {"findings": [], "notes": []}
    )
    if status:
        found["findings"].append([f"the generator itself ended with status {status}", ""])
    for symptom, details in found["findings"]:
        inputs = account.findings[one.generator, symptom]
        if not inputs:
            print(f"FINDING {one.generator}: {symptom}\n  again: {one.again}")
            for line in [*found["notes"], *details.splitlines()[-LINES:]]:
                print(f"  | {line}")
            sys.stdout.flush()
        inputs.append(one)


def try_again(one: Input) -> bool:
    """One input, with all that it printed; its folder stays. Whether all went well."""
    scratch = Path(tempfile.mkdtemp(prefix="torture-")).resolve()
    make_templates(scratch / "templates")
    account = Account()
    for each, status, _ in in_children(iter([one]), lambda i: try_input(i, scratch), 1):
        account.counts[one.generator] += 1
        note(each, status, scratch, account)
    print(f"its folder is {scratch / one.folder}")
    return account.report()
