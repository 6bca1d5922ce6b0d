"""Inputs of every generator, for as long as asked, each tried in a child; what they found."""

import json
import random
import resource
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torture import checkpoints, texts, weights
from torture.children import GIGABYTE, ended, in_children, start
from torture.kills import SMALL, VIT
from torture.place import Place

# Each makes one input and tries it.
GENERATORS: dict[str, Callable[[random.Random, Place], None]] = {
    "damage": checkpoints.damaged,
    "forged": checkpoints.forged,
    "typed": texts.typed,
    "weights": weights.changed,
    "yamls": texts.yamls,
}
# The runs that inputs begin with: made once, copied for each.
TEMPLATES = {
    "finished": [],
    "interrupted": ["train.max_minutes=1e-9"],
    "reconstruct": ["task=reconstruct", "task.decoder_depth=1"],
}


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
        return f'make torture ARGS="--seed {self.seed} --again {self.generator}:{self.number}"'


@dataclass
class Account:
    """What became of the inputs."""

    scratch: Path
    seconds: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    # By generator and symptom, how many inputs show it.
    findings: Counter[tuple[str, str]] = field(default_factory=Counter)

    def next_inputs(self, names: list[str], seed: int, minutes: float) -> Iterator[Input]:
        """Until it is late; the generators have the same time each."""
        end, started = time.monotonic() + 60 * minutes, Counter[str]()
        while time.monotonic() < end:
            # Those under way count for a second each until it is known how long they took.
            taken = {name: self.seconds[name] + started[name] - self.counts[name] for name in names}
            name = min(taken, key=taken.__getitem__)
            yield Input(name, seed, started[name])
            started[name] += 1

    def try_all(self, inputs: Iterator[Input], jobs: int) -> bool:
        """Print what they find and how many there were; whether nothing was found."""
        make_templates(self.scratch / "templates")
        for one, status, seconds in in_children(inputs, self.try_one, jobs):
            self.counts[one.generator] += 1
            self.seconds[one.generator] += seconds
            self.note(one, status)
        for name, count in sorted(self.counts.items()):
            print(f"{name}: {count} inputs")
        for (name, symptom), count in sorted(self.findings.items()):
            print(f"  {name}: {symptom} ({count} inputs)")
        print(f"{self.counts.total()} inputs, {len(self.findings)} findings", flush=True)
        return not self.findings

    def try_one(self, one: Input) -> None:
        """In a child: make it, try it, leave what was found beside its folder."""
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        resource.setrlimit(resource.RLIMIT_AS, (8 * GIGABYTE + 2 * used, hard))
        place = Place(self.scratch / one.folder, self.scratch / "templates")
        rng = random.Random(f"{one.generator}:{one.seed}:{one.number}")
        GENERATORS[one.generator](rng, place)
        result = json.dumps(place.findings)
        (self.scratch / f"{one.folder}.json").write_text(result, encoding="utf-8")

    def note(self, one: Input, status: int) -> None:
        """Print what is new."""
        result = self.scratch / f"{one.folder}.json"
        found = [[f"the generator itself ended with status {status}", ""]]
        if not status:
            found = json.loads(result.read_text(encoding="utf-8"))
        for symptom, details in found:
            self.findings[one.generator, symptom] += 1
            if self.findings[one.generator, symptom] == 1:
                print(f"FINDING {one.generator}: {symptom}\n  again: {one.again}")
                print("", *details.splitlines()[-25:], sep="\n  | ", flush=True)


def make_templates(folder: Path) -> None:
    """A finished run and others, each in a folder by its name."""
    folder.mkdir()
    for name, settings in TEMPLATES.items():
        arguments = [*VIT, *SMALL, "train.epochs=2", *settings, f"hydra.run.dir={folder / name}"]
        output = folder / f"{name}-output"
        outcome = ended(start("vit-train", arguments, output), output)
        if outcome.status:
            raise AssertionError(f"no {name} run: {outcome.stopped}{outcome.out}{outcome.err}")


def fuzz(names: list[str], minutes: float, seed: int, jobs: int) -> bool:
    """Whether all went well."""
    account = Account(Path(tempfile.mkdtemp(prefix="torture-")).resolve())
    good = account.try_all(account.next_inputs(names, seed, minutes), jobs)
    shutil.rmtree(account.scratch)
    return good


def try_again(one: Input) -> bool:
    """One input, with all that it printed; its folder stays. Whether all went well."""
    account = Account(Path(tempfile.mkdtemp(prefix="torture-")).resolve())
    print(f"its folder is {account.scratch / one.folder}")
    return account.try_all(iter([one]), 1)
