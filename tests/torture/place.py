"""Where one input is tried: a folder of its own, and what must be true of a command there."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from torture.children import Outcome, ended, start

STATUSES = (0, 1, 2, 3, 130, 143)
LONGEST_MESSAGE, MOST_LINES = 3000, 40


class Place:
    """`here` is where the commands are typed.

    Whatever a command does that it must not is kept in `findings`: the symptom, then all about it.
    """

    def __init__(self, top: Path, templates: Path) -> None:
        self.top, self.templates = top, templates
        self.here, self.logs = top / "here", top / "logs"
        self.home, self.temporary = top / "home", top / "tmp"
        for folder in (self.here, self.logs, self.home, self.temporary):
            folder.mkdir(parents=True)
        os.chdir(self.here)
        self.findings: list[tuple[str, str]] = []

    def run(self, command: str, *arguments: str, writes: Sequence[str] = ()) -> None:
        """To its end; only what is named in `writes`, below `here`, may be other than before."""
        surroundings = {
            "HOME": str(self.home), "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.home / "cache"), "MPLCONFIGDIR": str(self.logs),
        }  # fmt: skip
        before = self.snapshot(writes)
        log = self.logs / "log"
        outcome = ended(start(command, arguments, log, surroundings), log)
        after = self.snapshot(writes)
        about = f"{' '.join(arguments)[:500]}\n{outcome.out[-1500:]}{outcome.err[-3000:]}"
        changed = [f"changed {path}" for path, _ in sorted(before.items() ^ after.items())]
        for each in filter(None, [symptom_of(outcome), *changed[:1]]):
            kind = re.sub(r"\d{2,}", "N", each)[:200]  # without what differs from input to input
            self.findings.append((f"{command}: {kind}", about))

    def snapshot(self, without: Sequence[str]) -> dict[str, str]:
        """All there is, by path, apart from what may change."""
        left_out = [self.here / each for each in without]
        found = {}
        for part in (self.here, self.home, self.temporary):
            for folder, folders, files in os.walk(part):
                folders[:] = [each for each in folders if Path(folder, each) not in left_out]
                for path in (Path(folder, name) for name in [*folders, *files]):
                    if path not in left_out:
                        found[str(path.relative_to(self.top))] = state(path)
        return found


def symptom_of(outcome: Outcome) -> str:
    """What is wrong, in few words; nothing of a result or a short message, within bounds."""
    said, last = outcome.out + outcome.err, outcome.err.rpartition(f"{outcome.command}: ")[2]
    if outcome.stopped or "out of memory" in said:
        return outcome.stopped or "memory"
    if "Traceback" in said:
        return culprit(said)
    if outcome.status not in STATUSES:
        return f"status {outcome.status}"
    if outcome.status in (1, 2) and f"{outcome.command}: " not in outcome.err:
        return "no message"
    if outcome.status in (1, 2) and (len(last) > LONGEST_MESSAGE or last.count("\n") > MOST_LINES):
        return "a long message"
    return ""


def culprit(text: str) -> str:
    """The last line of a traceback, and the last place in this package that it names."""
    places = re.findall(r'vit_train/(\S+\.py)", line \d+, in (\w+)', text)
    lines = re.findall(r"^\w.*", text.rpartition("Traceback")[2], re.MULTILINE)
    return f"traceback in {':'.join(places[-1]) if places else 'elsewhere'}: {lines[-1:]}"


def state(path: Path) -> str:
    """What must not change: of a folder that it is one, of a file its bytes and its time."""
    about = path.lstat()
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    if not path.is_file():
        return f"folder or special {about.st_mode}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{about.st_mode} {about.st_size} {about.st_mtime_ns} {digest}"
