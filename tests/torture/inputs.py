"""Inputs: damaged checkpoints, and whatever may be typed after vit-train."""

import random
import shutil
from dataclasses import asdict
from pathlib import Path

from torture.kills import SMALL, VIT
from torture.place import Place
from vit_train.base.reading import flatten
from vit_train.config.data import ShapesConfig
from vit_train.config.model import ViTConfig
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import ReconstructConfig


def damaged(rng: random.Random, place: Place) -> None:
    """A checkpoint with some bytes changed, for one of the commands that read one."""
    data = bytearray((place.templates / "finished/checkpoints/last.safetensors").read_bytes())
    header = int.from_bytes(data[:8], "little")
    for _ in range(rng.randrange(1, 6)):
        # Mostly in the header, which is read first.
        at = rng.randrange(rng.choice([8, 8 + header, len(data)])) % len(data)
        data[at : at + rng.choice([0, 1, 9])] = rng.randbytes(rng.choice([0, 1, 1, 9]))
    command = rng.choice(list(COMMANDS))
    path, writes = COMMANDS[command]
    if writes == "run":
        shutil.copytree(place.templates / "interrupted", "run")
    if rng.random() < 0.5:
        Path("run/config.yaml").unlink(missing_ok=True)
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(data)
    place.run(*command.split(), writes=[writes])


FEW = "data.train_images=60 data.test_images=20 train.epochs=1 hydra.run.dir=new"
TINY = "model.patch_size=8 model.embed_dim=8 model.num_heads=2 model.depth=1"
# Where each command expects the checkpoint, and the folder that it may write.
COMMANDS = {
    "vit-eval ckpt=forged/x.safetensors": ("forged/x.safetensors", "forged"),
    "vit-train resume=run train.max_minutes=null": ("run/checkpoints/last.safetensors", "run"),
    "vit-train resume=run/checkpoints/x.safetensors train.max_minutes=null": (
        *("run/checkpoints/x.safetensors", "run"),
    ),
    f"vit-train init_from=x.safetensors {FEW} {TINY}": ("x.safetensors", "new"),
}


# Every setting that a run of the built-in data has, and some words that are none.
PARTS = {
    **{part: getattr(TrainConfig(), part) for part in ("optim", "train", "checkpoint", "augment")},
    **{"model": ViTConfig(), "data": ShapesConfig(), "task": ReconstructConfig()},
}
KEYS = [
    *(key for part, each in PARTS.items() for key, _ in flatten(asdict(each), f"{part}.")),
    *("model", "task", "data", "augment", "experiment", "seed", "device", "precision", "optim"),
    *("deterministic", "init_from", "resume", "train", "modle", "hydra.run.x", ""),
]
ARGUMENTS = [
    "-1", "0", "1", "2", "3", "7", "0.5", "-0.0", "1e-9", "1e300", "nan", "inf", "-inf", "null",
    "true", "''", "x", "[]", "{}", "[1,2]", "{a: 1}", "[null]", "é", "\x1b[2J", "a b", "a,b",
    "range(3)", "${seed}", "${oc.env:NOWHERE}", "${", "'", "\\", "???", "vit", "cnn", "resnet",
    "tiny", "reconstruct", "autoregress", "strong", "none", "split", "test", "mae", "learned_2d",
    "relative", "gap", "fused", "fp32", "bf16", "cpu", "mps", "nowhere", "/", ".", "9" * 20,
]  # fmt: skip
# No NUL, which no argument can hold.
SIGNS = "ab1.=,:;'\"\\/${}[]()<>|&~+-_ \t\n\x1b\x7fé\u202e\ud7ff\U0001f600"


def typed(rng: random.Random, place: Place) -> None:
    arguments = [argument(rng) for _ in range(rng.randrange(1, 4))]
    # Hydra's own flags are its own; a run that is good ends soon.
    few = [*SMALL, *VIT, "train.epochs=1", *arguments, "train.max_minutes=0.02"]
    place.run("vit-train", *few, writes=["outputs"])


def argument(rng: random.Random) -> str:
    text = "".join(rng.choices(SIGNS, k=rng.randrange(12)))
    prefix, value = rng.choice(["", "", "", "", "+", "++", "~"]), rng.choice([*ARGUMENTS, text])
    setting = f"{prefix}{rng.choice(KEYS)}={value}"
    return rng.choice([setting, setting, setting, setting, text.lstrip("-")])
