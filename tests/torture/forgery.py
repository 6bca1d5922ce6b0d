"""Checkpoints that somebody else made: intact, and with anything inside."""

import io
import random
import warnings
from pathlib import Path
from typing import Any

import torch

from torture.place import Place


def archive(content: object) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(content, buffer)
    return buffer.getvalue()


def last_checkpoint(place: Place) -> Path:
    return place.templates / "finished" / "checkpoints" / "last.safetensors"


def everywhere(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value, however deep."""
    pairs = content.items() if isinstance(content, dict) else ()
    if isinstance(content, list):
        pairs = enumerate(content)
    return [*([path] if path else []), *(p for k, v in pairs for p in everywhere(v, (*path, k)))]


def put(content: Any, path: tuple[Any, ...], value: object) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def somewhere(content: Any, rng: random.Random) -> tuple[Any, ...]:
    """Near the top as often as anywhere."""
    paths = everywhere(content)
    return rng.choice([path for path in paths if len(path) <= rng.choice([1, 2, 9])])


def open_it(data: bytes, rng: random.Random, place: Place) -> None:
    """With one of the commands that read a checkpoint."""
    way = rng.choice(["eval", "eval", "resume", "resume the file", "init_from"])
    place.note(way)
    if way == "resume":
        run = place.copy("interrupted")
        (run / "checkpoints" / "last.safetensors").write_bytes(data)
        if rng.random() < 0.5:
            (run / "config.yaml").unlink()
        place.run("vit-train", "resume=run", "train.max_minutes=null", writes=["run"])
    elif way == "resume the file":
        path = place.copy("interrupted") / "checkpoints" / "x.safetensors"
        path.write_bytes(data)
        place.run(
            "vit-train",
            "resume=run/checkpoints/x.safetensors",
            "train.max_minutes=null",
            writes=["run"],
        )
    elif way == "init_from":
        Path("forged.safetensors").write_bytes(data)
        arguments = ["init_from=forged.safetensors", "data.train_images=60", "data.test_images=20"]
        place.run(
            "vit-train", *arguments, "model.patch_size=8", "model.embed_dim=8",
            "model.num_heads=2", "model.depth=1", "train.epochs=1", "hydra.run.dir=new",
            writes=["new"],
        )  # fmt: skip
    else:
        Path("forged").mkdir()
        Path("forged/forged.safetensors").write_bytes(data)
        place.run("vit-eval", "ckpt=forged/forged.safetensors", writes=["forged"])
