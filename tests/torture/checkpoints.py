"""Checkpoints that somebody else made: intact with anything inside, or damaged."""

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from checkpoints import forge

from torture.place import Place

INTERPOLATIONS = (
    "${oc.env:HOME}", "${oc.env:PATH,x}", "${oc.decode:'[1,2]'}", "${oc.create:{a:1}}", "${seed}",
    "${model}", "${.name}", "${config}", "${now:%Y}", "${hydra:runtime.cwd}", "${", "???",
    "${model.${task.name}}", "${" * 2000, "${oc.select:model}", "${oc.dict.keys:model}",
)  # fmt: skip
NUMBERS = (
    -1, 0, 1, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**100, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), float("-inf"), True,
)  # fmt: skip
TEXTS = (
    "", "x", "\x00", "\x1b[2J\x07", "é" * 1000, "a\nb", "../../x", "/etc/passwd", "|`<b>",
    "1e9", "null", "9" * 5000, "vit", "x" * 10**6, "%s%n{0}", "\u202e",
)  # fmt: skip


def deep(rng: random.Random) -> Any:
    inner: Any = rng.choice(["x", 1, {"name": "vit"}])
    for _ in range(rng.choice([30, 40, 400])):
        inner = rng.choice([[inner], {"a": inner}])
    return inner


VALUES = {
    "deep": deep,
    "interpolation": lambda rng: rng.choice(INTERPOLATIONS),
    "number": lambda rng: rng.choice(NUMBERS),
    "text": lambda rng: rng.choice(TEXTS),
    "None": lambda rng: None,
    "a million names": lambda rng: [str(n) for n in range(10**6)],
    "a million times the same name": lambda rng: ["x"] * 10**6,
    "a hundred thousand keys": lambda rng: {str(n): n for n in range(10**5)},
    "names that are none": lambda rng: [None, 1, [], {"a": 1}],
    "odd keys": lambda rng: {"": 8, "a.b": 9, "tensor": 3},
    "another tensor": lambda rng: {"tensor": "model.norm.weight"},
    "a tensor that is not there": lambda rng: {"tensor": "x" * rng.choice([1, 10**5])},
    "a code's name": lambda rng: {"_target_": "os.system", "name": "builtins.eval"},
    "image shape": lambda rng: rng.choice([[3, 2**20, 2**20], [1] * 3, [3, 8, 9], [2**40] * 3]),
    "huge counts": lambda rng: {
        "name": "shapes", "train_images": rng.choice([10**7, 10**12]), "test_images": 10**9,
        "num_classes": rng.choice([10, 10**6]),
    },
}  # fmt: skip
# Where some of them mean something.
PLACES = {
    "image shape": ("image_shape",),
    "huge counts": ("config", "data"),
    "a million names": ("classes",),
    "interpolation": ("config", "data", "root"),
    "deep": ("config", "train"),
}
TENSORS = (
    torch.zeros(0), torch.zeros(()), torch.ones(1), torch.ones(10**6), torch.ones(3, 3).long(),
    torch.full((8, 8), float("nan")), torch.ones(16, 8), torch.ones(8).half(), torch.ones(9).bool(),
)  # fmt: skip


Way = tuple[Any, ...]  # the keys that lead to a value


def everywhere(content: Any, way: Way = ()) -> list[Way]:
    """The way to every value, however deep."""
    inside = content if isinstance(content, dict) else {}
    if isinstance(content, list):
        inside = dict(enumerate(content))
    below = (deeper for key, value in inside.items() for deeper in everywhere(value, (*way, key)))
    return [*([way] if way else []), *below]


def put(content: Any, way: Way, value: object) -> None:
    """Let it be this value; a part of the way may have been replaced."""
    with contextlib.suppress(LookupError, TypeError):
        for key in way[:-1]:
            content = content[key]
        content[way[-1]] = value
        if value is REMOVED:
            del content[way[-1]]


REMOVED = object()


def forged(rng: random.Random, place: Place) -> None:
    """A checkpoint whose checksum is right, with odd values and tensors anywhere."""

    def change(content: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for _ in range(rng.choice([0, 1, 1, 2])):
            # Near the top as often as anywhere.
            longest, name = rng.choice([1, 2, 9]), rng.choice(list(VALUES))
            way = rng.choice([each for each in everywhere(content) if len(each) <= longest])
            if rng.random() < 0.3:
                name, way = rng.choice(list(PLACES.items()))
            put(content, way, VALUES[name](rng))
        for name in rng.sample(list(tensors), rng.choice([0, 0, 1, 2])):
            tensors[name] = rng.choice(TENSORS).clone()
        if rng.random() < 0.2:
            way = rng.choice(everywhere(content))
            put(content, way, REMOVED)

    path = Path(shutil.copy(last_checkpoint(place), "forging"))
    forge(path, change)
    data = path.read_bytes()
    path.unlink()
    open_it(data, rng, place)


def damaged(rng: random.Random, place: Place) -> None:
    """A checkpoint with some bytes changed."""
    data = bytearray(last_checkpoint(place).read_bytes())
    header = int.from_bytes(data[:8], "little")
    for _ in range(rng.randrange(1, 6)):
        # Mostly in the header, which is read first.
        at = rng.randrange(rng.choice([8, 8 + header, len(data)])) % len(data)
        data[at : at + rng.choice([0, 1, 9])] = rng.randbytes(rng.choice([0, 1, 1, 9]))
    open_it(bytes(data), rng, place)


def last_checkpoint(place: Place) -> Path:
    return place.templates / "finished" / "checkpoints" / "last.safetensors"


def open_it(data: bytes, rng: random.Random, place: Place) -> None:
    """With one of the commands that read a checkpoint."""
    command = rng.choice(list(COMMANDS))
    path, writes = COMMANDS[command]
    if writes == "run":
        place.copy("interrupted")
    if rng.random() < 0.5:
        Path("run/config.yaml").unlink(missing_ok=True)
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(data)
    place.run(*command.split(), writes=[writes])


SMALL = "data.train_images=60 data.test_images=20 train.epochs=1 hydra.run.dir=new"
VIT = "model.patch_size=8 model.embed_dim=8 model.num_heads=2 model.depth=1"
# Where each command expects the checkpoint, and the folder that it may write.
COMMANDS = {
    "vit-eval ckpt=forged/x.safetensors": ("forged/x.safetensors", "forged"),
    "vit-train resume=run train.max_minutes=null": ("run/checkpoints/last.safetensors", "run"),
    "vit-train resume=run/checkpoints/x.safetensors train.max_minutes=null": (
        *("run/checkpoints/x.safetensors", "run"),
    ),
    f"vit-train init_from=x.safetensors {SMALL} {VIT}": ("x.safetensors", "new"),
}
