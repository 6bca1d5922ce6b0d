"""Other libraries' files of weights, with the JSON beside them: for init_from=."""

import json
import random
import struct
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save

from torture.checkpoints import everywhere, put
from torture.place import Place
from vit_train.interop.libraries import LAYOUTS
from vit_train.model.config import ViTConfig
from vit_train.model.vit import VisionTransformer

VIT = ViTConfig(patch_size=8, embed_dim=8, num_heads=2, depth=1)
# Where the text of a header is damaged, and in what words.
HEADER_WORDS = (
    b"[]", b"{}", b"null", b"-1", b"1e400", b"9" * 5000, b"NaN", b'"F8"', b"[" * 1000, b"\xff",
    b"9223372036854775808", b'"\\ud800"', b"true", b"0.5", b"", b'"__metadata__":{},',
)  # fmt: skip
LENGTHS = (0, 1, 2**31, 2**53, 2**63, 2**64 - 1)
VALUES = (
    None, True, -1, 0, 1, 3, 10**6, 10**30, 0.0, -0.5, 1e-300, 1e300, float("nan"), float("inf"),
    "", "x", "\x1b[2J", "${oc.env:HOME}", [], [0.5], [0.5] * 3, [0.0] * 3, [float("nan")] * 3,
    {}, {"0": "a"}, {str(n): "same" for n in range(10)}, {"0": 3, "x": "y"}, ["a"] * 10,
)  # fmt: skip
TENSORS = (
    torch.zeros(0), torch.zeros(()), torch.ones(1), torch.ones(10**6), torch.ones(3, 3).long(),
    torch.full((8, 8), float("nan")), torch.ones(2, 8), torch.ones(16, 8), torch.ones(8, 3, 4, 4),
    torch.ones(1, 65, 8), torch.ones(1, 0, 8), torch.ones(1, 1, 8), torch.ones(10**4, 8),
    torch.ones(8, 3, 8, 8).bool(), torch.full((10, 8), 1e38), torch.ones(8).half(),
    torch.zeros(1).expand(1, 10**9, 8), torch.zeros(1).expand(8, 3, 1000, 1000),
)  # fmt: skip
NAMES = ("x", "blocks.999999.norm1.weight", "dist_token", "head.weight", "\x1b[2J", "a" * 10**5, "")


def changed(rng: random.Random, place: Place) -> None:
    layout = rng.choice(LAYOUTS)
    needed = {
        name: values[0] for name, values in layout.holds.items() if getattr(VIT, name) not in values
    }
    config = replace(VIT, **needed)
    state = layout.to_theirs(VisionTransformer(config, 32, 3, 10).state_dict())
    classes = [f"class {n}" for n in range(10)]
    about = {"image_shape": [3, 32, 32], "classes": classes, "mean": [0.5] * 3, "std": [0.2] * 3}
    files = {name: dict(content) for name, content in layout.files(config, about).items()}
    for _ in range(rng.choice([0, 1, 1, 3])):
        name = rng.choice([*NAMES, *state, *state, *state])
        state[name] = rng.choice(TENSORS)
        if rng.random() < 0.3:
            del state[name]
    for content in files.values() if rng.random() < 0.6 else ():
        way, value = rng.choice(everywhere(content) or [("x",)]), rng.choice(VALUES)
        put(content, way, value)
    Path("theirs").mkdir()
    for name, content in files.items():
        Path("theirs", name).write_text(json.dumps(content), encoding="utf-8")
    if rng.random() < 0.3:
        torch.save(rng.choice([state, {"state_dict": state}]), "theirs/weights.pth")
    else:
        # What is expanded from one number would be written in full.
        small = {name: each.clone() for name, each in state.items() if each.numel() < 10**7}
        Path("theirs/model.safetensors").write_bytes(damaged(save(small), rng))
    place.run(
        "vit-train", "init_from=theirs", "data.train_images=60", "data.test_images=20",
        "model.patch_size=8", "model.embed_dim=8", "model.num_heads=2", "model.depth=1",
        *(f"model.{name}={value}" for name, value in needed.items()),
        "train.epochs=1", "hydra.run.dir=new", writes=["new"],
    )  # fmt: skip


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with its header's length or text changed, cut, or longer; or whole."""
    (length,) = struct.unpack("<Q", data[:8])
    header, numbers = data[8 : 8 + length], data[8 + length :]
    way = rng.choice(["whole", "whole", "header", "length", "numbers"])
    if way == "header":
        at = rng.randrange(length)
        header = header[:at] + rng.choice(HEADER_WORDS) + header[at + rng.randrange(1, 9) :]
        length = len(header)
    elif way == "length":
        length = rng.choice([*LENGTHS, length - 1, length + 1, len(data) - 8])
    elif way == "numbers":
        numbers = numbers[: rng.randrange(len(numbers) + 1)] + bytes(rng.choice([0, 0, 99]))
    return struct.pack("<Q", length) + header + numbers
