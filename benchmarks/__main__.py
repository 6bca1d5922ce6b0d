"""Measure contenders in turns, each alone in a fresh process, and print a table for each size."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.models import HELP, PRECISIONS, Contender
from vit_train.base import machine

# A timing counts as disturbed if other programs used more than this share of a core.
QUIET = 0.1
KINDS = {"train": "training", "infer": "inference", "loop": "whole loop"}
BATCH_SIZES = {"cpu": [64, 128], "cuda": [64, 512, 1024]}
Turns = dict[str, list[dict[str, Any]]]


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__, epilog=HELP)
    parser.add_argument(
        "contenders", nargs="*", default=["vit_train", "timm", "vit-pytorch"], metavar="CONTENDER"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=BATCH_SIZES[device.type])
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timing")
    parser.add_argument("--set", nargs="*", default=[], help="settings of vit-train, model=tiny …")
    parser.add_argument("--trace", help="write a trace of the first contender's steps to this file")
    parser.add_argument("--out", type=Path, help="folder for bench.md and bench.json")
    asked = parser.parse_args()
    try:
        contenders = [Contender.parse(each, asked.precision) for each in asked.contenders]
    except ValueError as error:
        parser.error(str(error))
    out = asked.out or Path("outputs", "bench", datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"command": machine.command_line(), "commit": machine.commit()}
    about |= {"versions": machine.versions(), "machine": machine.hardware(device)}
    texts, results = [f"{key}: {value}" for key, value in about.items()], {}
    print("\n".join(texts), flush=True)
    for size in asked.batch_sizes:
        overrides = [*asked.set, f"train.batch_size={size}"]
        results[size] = rounds(contenders, overrides, asked.rounds, asked.seconds)
        texts.append(table(size, contenders, results[size]))
        print(f"\n{texts[-1]}", flush=True)
        (out / "bench.md").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        (out / "bench.json").write_text(json.dumps({"about": about, "turns": results}, indent=1))
    if asked.trace and results[size][contenders[0].name]:
        try:
            turn(contenders[0], overrides, asked.seconds, trace=asked.trace)
        except ValueError as error:
            print(f"no trace: {error}")
    print(f"\nwritten to {out}")


def rounds(contenders: list[Contender], overrides: list[str], count: int, seconds: float) -> Turns:
    """Give each contender a turn in each round, another one first each time.

    One that fails is left out from then on.
    """
    found: Turns = {contender.name: [] for contender in contenders}
    failed: set[str] = set()
    for number in range(count):
        start = number % len(contenders)
        for contender in [*contenders[start:], *contenders[:start]]:
            if contender.name in failed:
                continue
            try:
                found[contender.name].append(turn(contender, overrides, seconds))
            except ValueError as error:
                print(f"{contender.name} could not be measured: {error}", flush=True)
                failed.add(contender.name)
                found[contender.name] = []
    return found


def turn(
    contender: Contender, overrides: list[str], seconds: float, trace: str | None = None
) -> dict[str, Any]:
    """Return what a new process measures, its cache of compiled code empty; raise ValueError."""
    asked = json.dumps([contender.name, overrides, seconds, trace])
    command = [sys.executable, "-m", "benchmarks.turn", asked]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ended.returncode:
        raise ValueError((ended.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    return {} if trace else json.loads(ended.stdout.strip().splitlines()[-1])


def spread(values: list[float], digits: int = 0) -> str:
    middle, low, high = (f"{f(values):,.{digits}f}" for f in (median, min, max))
    return f"{middle} ({low}–{high})"


def table(size: int, contenders: list[Contender], found: Turns) -> str:
    """Return a Markdown table: speeds as median (lowest–highest), and ours divided by each row's.

    Ours is the first vit_train row of the same precision, or the first; ratios are taken within a
    round.
    """
    ours = [each for each in contenders if each.is_ours and found[each.name]]
    kinds = list(KINDS)[: 3 if ours else 2]
    columns = [f"{KINDS[kind]}, images/s" for kind in kinds]
    speed_ups = ("speed-up, training", "speed-up, inference")
    rows = [[f"batch {size}", *columns, *speed_ups, "first step, s"]]
    measured = disturbed = unstable = 0
    sizes = {
        each.name: found[each.name][0]["parameters"] for each in contenders if found[each.name]
    }
    notes = [
        f"{name} is another model: {size:,} parameters"
        for name, size in sizes.items()
        if ours and abs(size / sizes[ours[0].name] - 1) > 0.01
    ]
    if torch.cuda.is_available():
        notes.append("only vit_train compiles by itself; peers with :compiled or :cudagraphs")
    for contender in contenders:
        turns = found[contender.name]
        if not turns:
            continue
        row = [contender.name]
        for kind in kinds:
            timings = [each[kind] for each in turns if kind in each]
            row.append(spread([each["images_per_s"] for each in timings]) if timings else "")
            measured += len(timings)
            disturbed += sum((each["others"] or 0) > QUIET for each in timings)
            unstable += sum(not each["stable"] for each in timings)
        same = [each for each in ours if each.precision == contender.precision] or ours
        for kind in ("train", "infer"):
            pairs = zip(found[same[0].name], turns, strict=False) if same else ()
            ratios = [a[kind]["images_per_s"] / b[kind]["images_per_s"] for a, b in pairs]
            row.append("" if contender.is_ours or not ratios else spread(ratios, 2))
        row.append(spread([each["first_step_s"] for each in turns], 1))
        rows.append(row)
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes += [
        f"{disturbed} of {measured} timings were disturbed by other programs (known only on Linux)",
        f"{unstable} of {measured} warm-ups ended before the speed was stable",
    ]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


if __name__ == "__main__":
    main()
