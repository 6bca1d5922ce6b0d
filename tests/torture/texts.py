"""Whatever may be typed after vit-train, and whatever config.yaml in a run's folder may hold."""

import random
from collections.abc import Callable
from dataclasses import asdict

from torture.kills import SMALL, VIT
from torture.place import Place
from vit_train.base.reading import flatten
from vit_train.data.config import ShapesConfig
from vit_train.model.config import ViTConfig
from vit_train.runs.config import TrainConfig
from vit_train.tasks.config import ReconstructConfig

# Every setting that a run of the built-in data has, and some words that are none.
KEYS = [key for part in ("optim", "train", "checkpoint", "augment")
        for key, _ in flatten(asdict(getattr(TrainConfig(), part)), f"{part}.")]  # fmt: skip
KEYS += [f"model.{key}" for key in asdict(ViTConfig())]
KEYS += [f"data.{key}" for key in asdict(ShapesConfig())]
KEYS += [f"task.{key}" for key in asdict(ReconstructConfig())]
KEYS += ["model", "task", "data", "augment", "experiment", "seed", "device", "precision"]
KEYS += ["deterministic", "init_from", "resume", "optim", "train", "modle", "hydra.run.x", ""]
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


def yamls(rng: random.Random, place: Place) -> None:
    run = place.copy(rng.choice(["interrupted", "finished"]))
    path, name = run / "config.yaml", rng.choice(list(TEXTS))
    path.write_bytes(TEXTS[name](path.read_text(encoding="utf-8"), rng))
    if rng.random() < 0.4:
        (run / "summary.json").unlink()
    arguments = rng.choice([[], ["train.max_minutes=null"], ["checkpoint.keep=2"]])
    place.run("vit-train", "resume=run", *arguments, writes=["run"])


def appended(more: str) -> Callable[[str, random.Random], bytes]:
    return lambda text, rng: (text + more).encode()


def instead(more: str | bytes) -> Callable[[str, random.Random], bytes]:
    data = more.encode() if isinstance(more, str) else more
    return lambda text, rng: data


def changed(text: str, rng: random.Random) -> bytes:
    """With a line that has another value, and some that are lost, or bytes that are others."""
    lines = text.splitlines()
    number = rng.randrange(len(lines))
    key, _, _ = lines[number].partition(":")
    lines[number] = f"{key}: {rng.choice(VALUES)}"
    del lines[(start := rng.randrange(len(lines))) : start + rng.choice([0, 0, 9])]
    return "\n".join(lines).encode()


def damaged(text: str, rng: random.Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(rng.choice([1, 3, 30])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def laughs(depth: int, width: int) -> str:
    """Aliases of aliases: small here, and width ** depth for who follows them all."""
    lines = ["a0: &a0 [x]"]
    for n in range(1, depth):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


VALUES = (
    "!!python/object/apply:os.system ['touch ../outside/evil']", "!!python/name:os.system ''",
    "!!binary x", "!!set {a, b}", "!!timestamp 2001-01-01", "2001-01-01", "!!float x", "!!int x",
    "!foreign x", "&a [*a]", "&a {b: *a}", "*nothing", "9" * 5000, "0x" + "f" * 5000,
    "1" + "_0" * 3000, ".nan", ".inf", "-.inf", "1e400", "-1", "0", "10000000000000000000000", "~",
    "null", "''", "x" * 10**6, "${seed}", "${oc.env:HOME}", "${oc.env:NOWHERE}", "${model}", "${",
    "???", "${.x}", "${now:}", "[1, 2", "{a: ", "'", '"\\ud800"', '"\\0"', '"\\e[2J"', "é", "|",
    ">-", "- - -", "yes", "1:30:00", "${oc.create:{a:1}}", "[" * 300 + "]" * 300,
    "{a: " * 300 + "}" * 300, "2147483648", "1e9", "9223372036854775807", "9223372036854775808",
    "[x]", "{x: 1}", "true", "1.5", "../..", "/",
)  # fmt: skip
DEEP = 50_000
TEXTS = {
    **dict.fromkeys(["changed", "changed again", "changed once more"], changed),
    "damaged": damaged,
    "cut": lambda text, rng: text[: rng.randrange(len(text))].encode(),
    "noise": lambda text, rng: rng.randbytes(rng.randrange(5000)),
    "laughs": appended(laughs(9, 9)),
    "laughs, instead": instead(laughs(30, 2)),
    "laughs in the model": lambda text, rng: text.replace(
        "model:", laughs(9, 9) + "model:\n  more: *a8", 1
    ).encode(),
    "deep lists": instead("[" * DEEP + "]" * DEEP),
    "deep lists that do not end": instead("[" * DEEP),
    "deep dicts": instead("{a: " * DEEP + "}" * DEEP),
    "deep blocks": instead("".join(" " * n + "a:\n" for n in range(2000))),
    "deep dashes": instead("- " * DEEP + "x"),
    "deep value": appended("more: " + "[" * 5000 + "]" * 5000 + "\n"),
    "in itself": instead("&a\nmodel: *a\ntask: *a\ndata: *a\n"),
    "a list in itself": instead("&a [*a, *a]"),
    "merged with itself": instead("&a\n<<: *a\nmodel: x\n"),
    "keys that are no words": appended("? [a, b]\n: 1\n? {a: 1}\n: 2\n1: 3\nnull: 4\n1.5: 6\n"),
    "duplicate keys": lambda text, rng: (text + text).encode(),
    "another document": lambda text, rng: (text + "\n---\n" + text).encode(),
    "many documents": instead("---\n" * 100_000),
    "a directive": instead("%YAML 9.9\n%TAG ! tag:x,2000:\n--- !x {}\n"),
    "UTF-16": lambda text, rng: text.encode("utf-16"),
    "zeros": instead(bytes(10**6)),
    "empty": instead(""),
    "a word": instead("x"),
    "a list": instead("- 1\n- 2\n"),
    "a number": instead("9" * 5000),
    "tabs": instead("model:\n\tname: vit\n"),
    "many keys": appended("".join(f"k{n}: {n}\n" for n in range(50_000))),
    "a long line": appended("k: '" + "x" * 10**7 + "'\n"),
    "comments": appended("# x\n" * 10**6),
    "an object": instead("!!python/object/new:os.system ['true']"),
    "unknown settings": appended("hydra: {run: {dir: x}}\n_target_: os.system\ndefaults: [x]\n"),
    "interpolations of interpolations": appended(
        "a0: x\n" + "".join(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 40))
    ),
    "interpolations in a circle": appended("a: ${b}\nb: ${a}\n"),
}  # fmt: skip
