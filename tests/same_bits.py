"""Run the same commands on two commits; compare all that they print and write, bit by bit.

    .venv/bin/python tests/same_bits.py BASE HEAD [-k WORD]

Use it for changes that should alter no result; it sees only what is committed. Tensors, curves,
tables, pictures, pages and texts are compared, but not times, speeds, paths and stored settings.
"""

import csv
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from importlib import import_module
from itertools import chain, islice, zip_longest
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from small_sets import write_cifar
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# A name and a command in each line. @NAME is the folder of an earlier run; words in capitals are
# explained below it; TWICE starts two processes, as torchrun does.
COMMANDS = """
shapes           TRAIN SHAPES VIT
everything       TRAIN SHAPES VIT optim=muon augment=strong train.ema_decay=0.9 train.micro_batch=8
parts            TRAIN SHAPES VIT PARTS optim=sgd optim.schedule=wsd optim.lr_every=epoch
cifar            TRAIN data=cifar10 VIT data.val=test augment=none
folder           TRAIN PHOTOS VIT data.cv_folds=3 data.cv_fold=1 data.fit=pad
table            TRAIN data=table data.file=table.csv SIZE VIT task.class_weights=auto
tags             TRAIN data=table data.file=tags.csv SIZE VIT task=tags data.sampler=balanced
cnn              TRAIN SHAPES model=cnn model.widths=[4,8]
resnet           TRAIN SHAPES model=resnet model.widths=[4,8] train.patience=1
distilled        TRAIN SHAPES VIT task=distill task.teacher=@cnn
masked           TRAIN SHAPES VIT task=reconstruct task.decoder_depth=1
completed        TRAIN SHAPES VIT task=autoregress task.decoder_depth=1
bf16             TRAIN SHAPES VIT precision=bf16
recipe           TRAIN SHAPES VIT experiment=cifar10_5k data=shapes data.train_subset=100
tuned            TRAIN PHOTOS init_from=builtin:cifar10
probed           TRAIN SHAPES init_from=@masked train.freeze=encoder
stopped          TRAIN SHAPES VIT train.max_minutes=1e-9
forked           vit-train fork=@stopped train.max_minutes=null optim.lr=2e-3 hydra.run.dir=NAME
resumed          vit-train resume=@stopped train.max_minutes=null
extended         vit-train extend=@shapes train.epochs=1 hydra.run.dir=NAME
repeated         vit-train config=@shapes seed=1 hydra.run.dir=NAME
sweep            SWEEP SHAPES VIT model.positions=learned,rotary_2d
folds            SWEEP PHOTOS VIT data.cv_folds=2 data.cv_fold=0,1
processes        TWICE TRAIN SHAPES VIT
evaluate         vit-eval ckpt=@shapes tta=flip robustness=true foreign=photos out=evaluate
evaluate_ema     vit-eval ckpt=@everything split=val weights=ema data.image_size=40
evaluate_tags    vit-eval ckpt=@tags
evaluate_masked  vit-eval ckpt=@masked
compare          vit-eval ckpt=[@shapes,@cnn] out=compare
suspects         vit-suspects runs=@folds
predict          vit-predict ckpt=@shapes images=photos out=predictions.csv
predict_tags     vit-predict ckpt=@tags images=photos out=tags.jsonl
abstain          vit-predict ckpt=builtin:cifar10 images=photos abstain=0.8
explain          vit-explain ckpt=@shapes method=all score=20
explain_masked   vit-explain ckpt=@masked
page             vit-explain ckpt=@shapes html=page.html
export_onnx      vit-export ckpt=@shapes format=onnx
export_int8      vit-export ckpt=@shapes format=onnx_int8
export_torch     vit-export ckpt=@shapes format=torch
export_weights   vit-export ckpt=@shapes format=safetensors
export_timm      vit-export ckpt=@shapes format=timm
export_hf        vit-export ckpt=@shapes format=hf
results          vit-results @shapes @everything @repeated @sweep --out results
augment          vit-augment augment=strong data.train_images=50 images=2
data             vit-data data=folder data.root=photos
inspect          vit-inspect model=small model.positions=sincos_2d
help             vit-train --help
refused_value    vit-train optim.lr=-1
refused_name     vit-train model.dept=2
refused_size     vit-train data=folder data.root=photos data.image_size=30
"""
WORDS = {
    "TRAIN": "vit-train LOOP hydra.run.dir=NAME",
    "SWEEP": "vit-train -m LOOP hydra.sweep.dir=NAME",
    "LOOP": "train.epochs=2 train.batch_size=32 train.log_every=1 precision=fp32",
    "VIT": "model.embed_dim=16 model.depth=1",
    "PARTS": "model.head=gap model.registers=2 model.activation=swiglu model.layer_scale=1e-3 "
    "model.dropout=0.1 model.drop_path=0.1 model.patch_dropout=0.5 model.kernels=scratch",
    "SHAPES": "data.train_images=120 data.test_images=40",
    "PHOTOS": "data=folder data.root=photos SIZE",
    "SIZE": "data.image_size=16",
}
# Settings are compared by their effects, because they may get other names.
NOT_COMPARED = {
    *("config.yaml", "requested.yaml", "config", "command", "date", "fingerprint"),
    *("images_per_s", "train/images_per_s", "seconds", "bf16_speedup"),
}
REPLACED = {
    r"\d{4}-\d\d-\d\d(_\d\d-\d\d-\d\d)?": "DATE",
    r"\d\d:\d\d:\d\d,\d+": "TIME",
    r"\d[\d.,]* (ms|s|seconds|minutes?|hours?|images/s)\b": "TIME",
    r"(?m) +\d+ +[\d:]{5,}$": "",  # an epoch's images/s and left
    r"(\| [\d. to]+){2}(?=\| \d+ \| [^|]+ \|$)": "",  # the minutes in results.md
    r"(<td>minutes</td><td>)[\d.]+": r"\1",
    r"events\.out\.tfevents\.\S+": "events",
    r"(?<=safetensors )[0-9a-f]{12}\b": "CHECKSUM",  # which covers the date
}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), np.uint8)
FORK = get_context("fork")  # a command is a child, which need not import torch again


def start(side: Path, name: str, words: list[str]) -> list[ForkProcess]:
    """Start a command on one side, in a process or, as torchrun does, in two."""
    variables: list[dict[str, str]] = [{}]
    if words[0] == "TWICE":
        port = socket.create_server(("127.0.0.1", 0)).getsockname()[1]
        both = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        variables = [both | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    work = [(side, name, words[len(variables) - 1 :], each) for each in variables]
    processes = [FORK.Process(target=become, args=each) for each in work]
    for process in processes:
        process.start()
    return processes


def become(side: Path, name: str, words: list[str], variables: dict[str, str]) -> None:
    """Be a command of this side's package; print to the files NAME.out and NAME.err."""
    os.chdir(side / "work")
    os.environ.update(variables, PYTHONPATH=f"{side}/tree", CUDA_VISIBLE_DEVICES="")
    for number, stream in ((1, "out"), (2, "err")):
        file = f"{name}{variables.get('RANK', '')}.{stream}"
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    torch.set_num_threads(2)
    sys.path.insert(0, f"{side}/tree")
    sys.argv = [word.replace("@", "") for word in words]
    project = tomllib.loads(Path(side, "tree/pyproject.toml").read_text(encoding="utf-8"))
    module, function = project["project"]["scripts"][words[0]].split(":")
    package = import_module(module)
    assert Path(str(package.__file__)).is_relative_to(side / "tree"), package
    published: Any = import_module("vit_train.data.published")
    for check in ("has_md5", "check_integrity"):  # the second one in earlier versions
        if hasattr(published, check):
            setattr(published, check, lambda path, md5: path.exists())
    getattr(package, function)()


def written(side: Path, since: int) -> dict[str, Path]:
    """The files written since this time (ns), by names that are the same on both sides."""
    return {
        common(str(path.relative_to(side / "work")), side): path
        for path in sorted(Path(side, "work").rglob("*"))
        if path.is_file() and path.name not in NOT_COMPARED and path.stat().st_mtime_ns >= since
    }


def common(text: str, side: Path) -> str:
    """The text without what differs each time."""
    for pattern, replacement in ({re.escape(str(side)): "SIDE"} | REPLACED).items():
        text = re.sub(pattern, replacement, text)
    return text


def kept(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in NOT_COMPARED}


def content(path: Path, side: Path) -> dict[str, Any]:
    """The parts of a file, by their names; of a text, its lines."""
    match "events" if "tfevents" in path.name else path.suffix:
        case "events":
            events = EventAccumulator(str(path.parent), {"scalars": 0}).Reload()
            curves = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
            return kept({tag: sorted((p.step, p.value) for p in curves[tag]) for tag in curves})
        case ".safetensors":
            return {name: tensor.numpy() for name, tensor in load_file(path).items()}
        case ".png":
            return {"pixels": np.asarray(Image.open(path))}
        case ".onnx":
            session = import_module("onnxruntime").InferenceSession(path)
            return {"logits": session.run(None, {"images": IMAGES})[0]}
        case ".pt2":
            model = torch.export.load(path).module()
            return {"logits": model(torch.from_numpy(IMAGES)).detach().numpy()}
    text = common(path.read_text(encoding="utf-8", errors="surrogateescape"), side)
    if path.suffix == ".csv":
        rows = enumerate(csv.DictReader(text.splitlines()), 1)
        return {f"row {n}, {key}": row[key] for n, row in rows for key in kept(row)}
    if path.suffix == ".json":
        text = json.dumps(json.loads(text, object_hook=kept), indent=1)
    return {f"line {n}": line for n, line in enumerate(text.splitlines(), 1)}


def difference(one: Any, other: Any) -> str:
    """Where two values begin to differ; "" if they are the same, bit by bit."""
    if bits(one) == bits(other):
        return ""
    texts = [str(each.tolist() if isinstance(each, np.ndarray) else each) for each in (one, other)]
    pairs = enumerate(zip_longest(*texts))
    begin = max(0, next((n for n, (a, b) in pairs if a != b), 0) - 30)
    return " → ".join(repr(text[begin : begin + 80]) for text in texts)


def bits(value: Any) -> Any:
    """A value that equals another's only if both are the same, bit by bit."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return value


def differences(sides: list[Path], since: int) -> Iterator[str]:
    """Yield the first difference in each file that a command wrote."""
    base, head = (written(side, since) for side in sides)
    for name in sorted(base | head):
        files = zip((base, head), sides, strict=True)
        one, other = (content(each[name], side) if name in each else {} for each, side in files)
        parts = ((part, difference(one.get(part), other.get(part))) for part in one | other)
        yield from islice((f"{name}, {part}: {found}" for part, found in parts if found), 1)


def run(sides: list[Path], name: str, words: list[str]) -> bool:
    """Run a command on both sides, and print the differences; return whether there are any."""
    since = time.time_ns()
    running = [start(side, name, words) for side in sides]
    for process in chain(*running):
        process.join()
    base, head = ([process.exitcode for process in each] for each in running)
    found = [] if base == head else [f"exit status: {base} → {head}"]
    found += differences(sides, since)
    verdict = found or ["failed alike" if any(base) else "same"]
    print(f"{name}: {' '.join(words)}", *verdict, sep="\n    ", flush=True)
    return bool(found)


def chosen(word: str) -> dict[str, list[str]]:
    """The commands that contain the word, after those whose folders they need, by their names."""
    commands = dict(line.split(maxsplit=1) for line in COMMANDS.strip().splitlines())
    needed: set[str] = set()
    for name in reversed(list(commands)):
        for short, long in (WORDS | {"NAME": name}).items():
            commands[name] = re.sub(rf"\b{short}\b", long, commands[name])
        if name in needed or word in f"{name} {commands[name]}":
            needed |= {name, *re.findall(r"@(\w+)", commands[name])}
    return {name: words.split() for name, words in commands.items() if name in needed}


def make_side(commit: str, side: Path) -> Path:
    """Unpack a commit, and write photos/CLASS/N.png, two tables of them, and 120 CIFAR images."""
    Path(side, "tree").mkdir(parents=True)
    unpack = f"git archive {commit} | tar -x -C {side}/tree"
    subprocess.run(unpack, shell=True, check=True)
    random, folder = np.random.default_rng(0), side / "work"
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]
    write_cifar(folder / "data/cifar-10-batches-py", batches)
    photos = [f"photos/{'abc'[number % 3]}/{number}.png" for number in range(60)]
    for photo in photos:
        Path(folder, photo).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20, 24, 3), np.uint8)).save(folder / photo)
    labels = [f"{photo},{photo[7]},{n // 2},{n % 2 + 1}" for n, photo in enumerate(photos)]
    tags = [f"{photo},{'|'.join('abc'[: n % 4])}" for n, photo in enumerate(photos)]
    tables = {"table.csv": ["path,label,group,weight", *labels], "tags.csv": ["path,tags", *tags]}
    for name, lines in tables.items():
        Path(folder, name).write_text("\n".join(lines), encoding="utf-8")
    return side


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="main", metavar="BASE")
    parser.add_argument("head", nargs="?", default="HEAD", metavar="HEAD")
    parser.add_argument("-k", metavar="WORD", default="", help="only commands with this word")
    parser.add_argument("--list", action="store_true", help="only list the commands")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # no threads here, because a process with threads should not fork
    commands = chosen(arguments.k)
    if arguments.list:
        print(*(f"{name}: {' '.join(words)}" for name, words in commands.items()), sep="\n")
        return
    with tempfile.TemporaryDirectory() as top:
        commits = {"base": arguments.base, "head": arguments.head}
        sides = [make_side(commit, Path(top, side)) for side, commit in commits.items()]
        different = sum(run(sides, *command) for command in commands.items())
    print(f"{different} of {len(commands)} commands differ")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
