"""Two commands at once, pausing at random wherever they open, make, rename or remove a file."""

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from test_resume import assert_same_run

from torture.children import Child, Outcome
from torture.place import Place
from torture.templates import RUN

CALLS = {
    *("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.listdir", "os.scandir"),
    *("fcntl.flock", "os.link", "os.symlink", "shutil.rmtree", "os.chmod", "os.utime"),
}
# Calls before training begins, more or less: one long pause falls among them.
FIRST_CALLS = 150


def make(rng: random.Random, place: Place) -> None:
    kind = rng.choice([two_starts, two_starts, start_beside_resume, two_resumes,
                       eval_beside_training, two_default_starts, start_over_finished])  # fmt: skip
    place.note(kind.__name__)
    kind(rng, place)


def pauses(rng: random.Random) -> Callable[[], None]:
    """In the child: short ones anywhere, and one long enough for the other to come far."""
    seed, long_at = rng.random(), rng.randrange(FIRST_CALLS)
    long = rng.choice([0.0, 0.5, 2.0, 5.0])

    def prepare() -> None:
        own, calls, busy = random.Random(seed), 0, False

        def hook(event: str, what: tuple[object, ...]) -> None:
            nonlocal calls, busy
            if event in CALLS and not busy:
                busy = True
                calls += 1
                time.sleep(long if calls == long_at else 0.03 * own.random() ** 4)
                busy = False

        sys.addaudithook(hook)

    return prepare


def together(
    rng: random.Random, place: Place, *commands: tuple[str, ...], apart: float = 1.5
) -> list[Outcome]:
    """All begin within so many seconds; each ends as it may."""
    children: list[Child] = []
    for number, arguments in enumerate(commands):
        if number:
            time.sleep(rng.choice([0.0, rng.uniform(0, apart)]))
        children.append(place.start(*arguments, before=pauses(rng)))
    while not all([child.poll() for child in children]):
        time.sleep(0.01)
    outcomes = [child.wait() for child in children]
    for outcome, arguments in zip(outcomes, commands, strict=True):
        place.note(f"{arguments[0]} … {' '.join(arguments[-2:])}: status {outcome.status}")
        place.judge(outcome, " ".join(arguments))
    return outcomes


def start(seed: int) -> tuple[str, ...]:
    return ("vit-train", *RUN, f"seed={seed}", "hydra.run.dir=run")


def require_one_winner(outcomes: list[Outcome], place: Place) -> None:
    good = [outcome for outcome in outcomes if outcome.status == 0]
    if len(good) != 1:
        said = "\n".join(outcome.err[-500:] for outcome in outcomes)
        place.find(f"{len(good)} of {len(outcomes)} ended with status 0", said)


def require_same(run: Path, place: Place, whole: str = "finished") -> None:
    """The run ended as the one that was left alone."""
    try:
        assert_same_run(place.templates / whole, run)
    except Exception as error:
        place.find("the run ended otherwise", f"{type(error).__name__}: {error}"[:500])


def require_nothing_more(run: Path, place: Place, whole: str = "finished") -> None:
    """The loser left no file."""
    names = (tree(place.templates / whole), tree(run))
    if names[0] != names[1]:
        place.find("other files than one run leaves", f"{sorted(names[0] ^ names[1])}")


def require_openings(run: Path, count: int, place: Place) -> None:
    """The log tells of so many starts."""
    log = (run / "train.log").read_text(encoding="utf-8")
    if log.count(" parameters = ") != count or "vit-train: " in log:
        place.find(f"the log is not of {count} starts", log[-1500:])


def tree(run: Path) -> set[str]:
    """Of an event file's name only that there is one; a checkpoint more or less is no matter."""
    found = [
        str(each.relative_to(run)) for each in run.rglob("*") if each.name != "last-1.safetensors"
    ]
    return {"events" if name.startswith("events") else name for name in found}


def two_starts(rng: random.Random, place: Place) -> None:
    outcomes = together(rng, place, start(0), start(1))
    require_one_winner(outcomes, place)
    winner = next((seed for seed, each in enumerate(outcomes) if each.status == 0), None)
    run = place.here / "run"
    if winner is None:
        return
    for name, sign in {
        "config.yaml": f"seed: {winner}",
        "summary.json": f'"seed": {winner}',
    }.items():
        path = run / name
        if not path.exists() or sign not in path.read_text(encoding="utf-8"):
            place.find(f"{name} is not the winner's")
    require_openings(run, 1, place)
    require_nothing_more(run, place)
    if winner == 0:
        require_same(run, place)


def start_beside_resume(rng: random.Random, place: Place) -> None:
    run = place.copy("interrupted")
    commands = [start(1), ("vit-train", "resume=run", "train.max_minutes=null")]
    rng.shuffle(commands)
    outcomes = together(rng, place, *commands)
    require_one_winner(outcomes, place)
    require_openings(run, 2, place)
    require_nothing_more(run, place)
    require_same(run, place)


def two_resumes(rng: random.Random, place: Place) -> None:
    """The second one may come when the first has finished: then it says so, with status 0."""
    run = place.copy("interrupted")
    again = ("vit-train", "resume=run", "train.max_minutes=null")
    outcomes = together(rng, place, again, again)
    trained = [each for each in outcomes if each.status == 0 and "is finished" not in each.out]
    if len(trained) != 1:
        place.find(f"{len(trained)} of two resumes have trained")
    require_nothing_more(run, place)
    require_same(run, place)


def start_over_finished(rng: random.Random, place: Place) -> None:
    run = place.copy("finished")
    before = place.snapshot()
    commands = [start(1), rng.choice([start(2), ("vit-train", "resume=run")])]
    outcomes = together(rng, place, *commands)
    if outcomes[0].status != 1:
        place.find(f"a start in a finished run's folder ends with status {outcomes[0].status}")
    place.compare(before, place.snapshot(), outcomes[0])
    require_same(run, place)


def eval_beside_training(rng: random.Random, place: Place) -> None:
    run = place.copy("interrupted")
    outcomes = together(
        rng, place, ("vit-train", "resume=run", "train.max_minutes=null"), ("vit-eval", "ckpt=run"),
        apart=3,
    )  # fmt: skip
    if [each.status for each in outcomes] != [0, 0]:
        place.find(f"statuses {[each.status for each in outcomes]}", outcomes[1].err[-500:])
    require_same(run, place)


def two_default_starts(rng: random.Random, place: Place) -> None:
    """In the same second, which is all that the default folder's name tells."""
    begin = ("vit-train", *RUN)
    outcomes = together(rng, place, begin, begin, apart=0.3)
    if [each.status for each in outcomes] != [0, 0]:
        said = "".join(each.err[-500:] for each in outcomes)
        place.find(f"two default starts: statuses {[each.status for each in outcomes]}", said)
    runs = [each.parent for each in (place.here / "outputs").rglob("summary.json")]
    if len(runs) != 2:
        place.find(f"two default starts left {len(runs)} runs")
    for run in runs:
        require_same(run, place)
