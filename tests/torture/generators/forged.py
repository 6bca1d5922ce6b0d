"""Checkpoints whose checksum is right, with odd values and tensors anywhere."""

import contextlib
import random
from pathlib import Path
from typing import Any

import torch
from checkpoints import forge

from torture.forgery import everywhere, last_checkpoint, open_it, put, somewhere
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
        "num_classes": rng.choice([10, 10**6]), "draw_seed": 10**30,
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


def make(rng: random.Random, place: Place) -> None:
    def change(content: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for path in [somewhere(content, rng) for _ in range(rng.choice([0, 1, 1, 2]))]:
            name = rng.choice(list(VALUES))
            if rng.random() < 0.3:
                name, path = rng.choice(list(PLACES.items()))
            place.note(f"{path}: {name}")
            with contextlib.suppress(LookupError, TypeError):  # a part of it has been replaced
                put(content, path, VALUES[name](rng))
        for _ in range(rng.choice([0, 0, 1, 2])):
            name = rng.choice(list(tensors))
            place.note(f"another tensor {name}")
            tensors[name] = rng.choice(TENSORS).clone()
        if rng.random() < 0.2:
            path = rng.choice(everywhere(content))
            place.note(f"without {path}")
            with contextlib.suppress(LookupError, TypeError):
                inner = content
                for key in path[:-1]:
                    inner = inner[key]
                del inner[path[-1]]

    path = Path("forging")
    path.write_bytes(last_checkpoint(place).read_bytes())
    forge(path, change)
    data = path.read_bytes()
    path.unlink()
    open_it(data, rng, place)
