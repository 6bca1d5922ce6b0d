"""Checkpoints that somebody else made: sealed as they must be, and with anything inside."""

import hashlib
import io
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torture.place import Place
from vit_train.engine.checkpoint import SEAL, SEAL_LENGTH, read_checkpoint


@dataclass
class Forged:
    """Pickled as a call of a function, with these arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def seal(archive: bytes) -> bytes:
    """With the checksum at its end, as the comment of the ZIP archive, whose length is right."""
    body = archive[:-2] + SEAL_LENGTH.to_bytes(2, "little")
    return body + SEAL + hashlib.sha256(body).hexdigest().encode()


def archive(content: object) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(content, buffer)
    return buffer.getvalue()


def original(place: Place) -> dict[str, Any]:
    return read_checkpoint(place.templates / "finished" / "checkpoints" / "last.pt")


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


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


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
        (run / "checkpoints" / "last.pt").write_bytes(data)
        if rng.random() < 0.5:
            (run / "config.yaml").unlink()
        place.run("vit-train", "resume=run", "train.max_minutes=null", writes=["run"])
    elif way == "resume the file":
        path = place.copy("interrupted") / "checkpoints" / "x.pt"
        path.write_bytes(data)
        place.run(
            "vit-train", "resume=run/checkpoints/x.pt", "train.max_minutes=null", writes=["run"]
        )
    elif way == "init_from":
        Path("forged.pt").write_bytes(data)
        arguments = ["init_from=forged.pt", "data.train_images=60", "data.test_images=20"]
        place.run(
            "vit-train", *arguments, "model.patch_size=8", "model.embed_dim=8",
            "model.num_heads=2", "model.depth=1", "train.epochs=1", "hydra.run.dir=new",
            writes=["new"],
        )  # fmt: skip
    else:
        Path("forged").mkdir()
        Path("forged/forged.pt").write_bytes(data)
        place.run("vit-eval", "ckpt=forged/forged.pt", writes=["forged"])


def new_tensor(*arguments: Any) -> Forged:
    """(storage, offset, size, stride): whatever these are."""
    return Forged(torch._utils._rebuild_tensor_v2, (*arguments, False, OrderedDict()))
