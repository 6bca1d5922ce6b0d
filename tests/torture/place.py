"""Where one input is tried: a folder of its own, and what must be true of a command there."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from torture.children import Child, Outcome

STATUSES = (0, 1, 2, 130, 143)
LONGEST_MESSAGE, MOST_LINES = 3000, 40


class Place:
    """`here` is where the commands are typed, `outside` what none of them may touch.

    Whatever a command does that it must not is kept in `findings`: the symptom, then all about it.
    """

    def __init__(self, top: Path, templates: Path) -> None:
        self.top, self.templates = top, templates
        self.here, self.outside, self.logs = top / "here", top / "outside", top / "logs"
        self.home, self.temporary = top / "home", top / "tmp"
        for folder in (self.here, self.outside, self.logs, self.home, self.temporary):
            folder.mkdir(parents=True)
        os.chdir(self.here)
        self.findings: list[tuple[str, str]] = []
        # What this input is, in a word or two, for who reads a finding.
        self.notes: list[str] = []
        self.count = 0

    def copy(self, template: str, to: str = "run") -> Path:
        """A run's folder, as it was left."""
        target = self.here / to
        shutil.copytree(self.templates / template, target)
        return target

    def note(self, text: object) -> None:
        self.notes.append(str(text)[:300])

    def find(self, symptom: str, details: str = "") -> None:
        self.findings.append((symptom, details))

    def start(
        self, command: str, *arguments: str, before: Callable[[], None] = lambda: None
    ) -> Child:
        self.count += 1
        surroundings = {
            "HOME": str(self.home), "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            # A library's own.
            "MPLCONFIGDIR": str(self.logs),
        }  # fmt: skip
        output = self.logs / f"{self.count}"
        return Child(command, arguments, output, surroundings, before)

    def run(self, command: str, *arguments: str, writes: Sequence[str] = ()) -> Outcome:
        """To its end; only what is named in `writes`, below `here`, may be other than before."""
        before, files = self.snapshot(writes), self.json_files()
        outcome = self.start(command, *arguments).wait()
        self.judge(outcome, " ".join(arguments))
        self.compare(before, self.snapshot(writes), outcome)
        self.require_plain_json(self.json_files() - files)
        return outcome

    def judge(self, outcome: Outcome, typed: str = "") -> None:
        """A result or a short message, in time and within bounds."""
        about = f"{outcome.command} {typed[:500]}\n{outcome.out[-1500:]}{outcome.err[-3000:]}"
        if outcome.stopped:
            which = kind_of(", ".join(self.notes))[:150]
            self.find(f"{outcome.command}: {outcome.stopped} ({which})", about)
        elif "Traceback" in outcome.err + outcome.out:
            text = outcome.err if "Traceback" in outcome.err else outcome.out
            self.find(f"{outcome.command}: {culprit(text)}", about)
        elif outcome.status not in STATUSES:
            self.find(f"{outcome.command}: status {outcome.status}", about)
        elif outcome.status == 1:
            last = outcome.err.rpartition(f"{outcome.command}: ")[2]
            if f"{outcome.command}: " not in outcome.err:
                self.find(f"{outcome.command}: status 1 and no message", about)
            elif len(last) > LONGEST_MESSAGE or last.count("\n") > MOST_LINES:
                self.find(f"{outcome.command}: a long message", about)
        elif outcome.status == 2 and "usage:" not in outcome.err:
            self.find(f"{outcome.command}: status 2 and no usage", about)

    def snapshot(self, without: Sequence[str] = ()) -> dict[str, str]:
        """All there is, by path, apart from what may change."""
        left_out = [self.here / each for each in without]
        found = {}
        for part in (self.outside, self.here, self.home, self.temporary):
            for folder, folders, files in os.walk(part):
                kept = [each for each in folders if Path(folder, each) not in left_out]
                folders[:] = kept
                for name in [*kept, *files]:
                    path = Path(folder, name)
                    if path not in left_out:
                        found[str(path.relative_to(self.top))] = state(path)
        return found

    def compare(self, before: dict[str, str], after: dict[str, str], outcome: Outcome) -> None:
        for verb, paths in {
            "created": after.keys() - before.keys(),
            "removed": before.keys() - after.keys(),
            "changed": {
                each for each in before.keys() & after.keys() if before[each] != after[each]
            },
        }.items():
            if paths:
                first = min(paths)
                details = f"{sorted(paths)[:5]}\n{outcome.out[-1000:]}{outcome.err[-1000:]}"
                self.find(f"{outcome.command}: {verb} {kind_of(first)}", details)

    def json_files(self) -> set[tuple[Path, str]]:
        """With their states; a link's target is somebody else's."""
        found = (each for each in self.here.rglob("*.json") if each.is_file())
        return {(each, state(each)) for each in found if not each.is_symlink()}

    def require_plain_json(self, written: set[tuple[Path, str]]) -> None:
        """No NaN, which is no JSON, in what a command wrote."""
        for path, _ in written:
            try:
                json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
            except (ValueError, RecursionError) as error:
                self.find(f"{path.name} is no JSON", str(error))


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def kind_of(path: str) -> str:
    """Without what differs from input to input."""
    return re.sub(r"\d{2,}", "N", path)


def culprit(text: str) -> str:
    """The last line of a traceback, and the last place in this package that it names."""
    places = re.findall(r'vit_train/(\S+\.py)", line \d+, in (\w+)', text)
    lines = [each for each in text.rpartition("Traceback")[2].splitlines() if re.match(r"\w", each)]
    where = ":".join(places[-1]) if places else "elsewhere"
    words = re.sub(r"\d{2,}", "N", lines[-1])[:150] if lines else "?"
    return f"traceback in {where}: {words}"


def state(path: Path) -> str:
    """What must not change: of a folder that it is one, of a file its bytes and its time."""
    about = path.lstat()
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    if path.is_dir():
        return f"folder {about.st_mode}"
    if not path.is_file():
        return f"special {about.st_mode}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{about.st_mode} {about.st_size} {about.st_mtime_ns} {digest}"
