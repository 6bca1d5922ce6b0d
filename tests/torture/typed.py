"""Whatever may be typed after vit-train."""

import random
from dataclasses import asdict

from torture.kills import SMALL, VIT
from torture.place import Place
from vit_train.base.reading import flatten
from vit_train.config.data import ShapesConfig
from vit_train.config.model import ViTConfig
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import ReconstructConfig

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
