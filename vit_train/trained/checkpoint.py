"""Checkpoints: the state of a run at one step, in a file that contains no code.

The file has the safetensors format. Its tensors have names such as `model.head.weight`,
`ema.head.weight` or `optimizers.0.3.exp_avg`. Its metadata holds all other values as JSON, and a
checksum of the tensors and these values. In the JSON, {"tensor": NAME} stands for the tensor called
NAME.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vit_train.base.reading import Refused, typed
from vit_train.config.fields import ImageShape
from vit_train.loop.state import State, TrainerState
from vit_train.trained.folder import near_run, resume_command

FORMAT = "vit_train checkpoint 3"
# The metadata's key in the file, and the key of a tensor's name in the JSON.
KEY = "vit_train.checkpoint"
TENSOR = "tensor"


@dataclass(frozen=True)
class Extended:
    """The length and the checkpoint of a run that another run extends or forks."""

    run: str
    epochs: int
    steps: int
    images_seen: int
    seconds: float
    # The checksum of the checkpoint from which the other run starts.
    fingerprint: str
    # A hash of all its settings except the seed and the fold; runs of one recipe share it.
    recipe: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a trained model, stored in the model's checkpoint."""

    classes: list[str]
    versions: dict[str, str]
    # The checksum of the whole data set (Dataset.fingerprint).
    fingerprint: str
    # Keys, (N,) int64, of the images that this model, or a model that it learned from, was trained
    # or validated on; None if unknown.
    seen: Tensor | None = None
    # The same, but only for the models that it learned from.
    seen_before: Tensor | None = None
    # The temperature by which logits are divided to calibrate probabilities, if known.
    temperature: float | None = None
    # Confidence thresholds by accuracy in TARGETS (None: not reached) or, for task=tags, by tag.
    thresholds: dict[str, float | None] = field(default_factory=dict)
    # The checksum of the file that the facts were read from; it identifies the file.
    checksum: str = ""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(TrainerState, Facts):
    """The content of a checkpoint: a trainer's state, a model's facts and a run's settings."""

    config: dict[str, Any]
    image_shape: ImageShape
    # Mean and standard deviation of each channel, for normalizing images.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # The chain of runs that this one extends, the first one first.
    extends: list[Extended] = field(default_factory=list)
    # The run's teacher, if any: its checkpoint, weights and fingerprint.
    teacher: dict[str, Any] = field(default_factory=dict)
    # The length in bytes of each file that grows during the run.
    written: dict[str, int] = field(default_factory=dict)

    def copied(self) -> "Checkpoint":
        """Return a copy of the checkpoint, with all tensors copied to CPU memory."""
        return assemble(*disassemble(self))

    def to_bytes(self) -> bytes:
        """Return the checkpoint as the bytes of a safetensors file."""
        content, tensors = disassemble(self)
        described = {"format": FORMAT, "checksum": checksum(content, tensors), "content": content}
        return save(tensors, {KEY: json.dumps(described)})

    @staticmethod
    def load(path: Path) -> "Checkpoint":
        """Read a checkpoint; raise ValueError if the file is missing, damaged or not a checkpoint.

        If the file is damaged, the message names the newest intact checkpoint in the same folder,
        if there is one.
        """
        if not path.exists():
            raise ValueError(f"no checkpoint at {path}{near_run(path)}")
        try:
            return read(path)
        except Refused as error:
            other = newest_intact(path.parent)
            hint = (
                f". {other} is intact: use it instead, or resume from it with: "
                f"{resume_command(other)}"
                if other
                else ""
            )
            raise ValueError(f"cannot read {path}: {error}{hint}") from error


def read(path: Path) -> Checkpoint:
    """Read a checkpoint from an existing file.

    Raise Refused if the file is damaged or is not a checkpoint.
    """
    try:
        # `safe_open` would call a file that may not be read "missing".
        with path.open("rb"), safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
        mark = checksum(stored["content"], tensors)
        if (stored["format"], stored["checksum"]) != (FORMAT, mark):
            raise Refused
        content = {**stored["content"], "checksum": mark}
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise Refused(
            "it is damaged, or not a checkpoint of this version of vit-train: name a run's "
            "folder, or last.safetensors or best.safetensors in its checkpoints/ (init_from= "
            "also accepts weights of other libraries)"
        ) from error
    return assemble(content, tensors)


def disassemble(checkpoint: Checkpoint) -> tuple[Any, State]:
    """Split a checkpoint into JSON values and a dict of copies of its tensors.

    Among the JSON values, {"tensor": NAME} stands for the tensor called NAME.
    """
    tensors: State = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            # A copy, because safetensors does not save one tensor, as of shared layers, twice.
            tensors[name] = value.detach().to("cpu", copy=True).contiguous()
            return {TENSOR: name}
        if is_dataclass(value):
            value = {each.name: getattr(value, each.name) for each in fields(value)}
        if isinstance(value, dict):
            return {
                key: plain(each, f"{name}.{key}" if name else key) for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [plain(each, f"{name}.{index}") for index, each in enumerate(value)]
        return value

    return plain(checkpoint, ""), tensors


def assemble(content: Any, tensors: State) -> Checkpoint:
    """Rebuild a checkpoint from the two results of `disassemble`.

    Raise Refused if a tensor or a value is missing, or if a value has the wrong type.
    """

    def tensor_or_dict(value: dict[str, Any]) -> Any:
        return tensors[value[TENSOR]] if value.keys() == {TENSOR} else value

    try:
        filled = json.loads(json.dumps(content), object_hook=tensor_or_dict)
    except (LookupError, TypeError) as error:
        raise Refused(f"a tensor is missing: {error}") from error
    return typed(Checkpoint, filled)  # type: ignore[no-any-return]


def checksum(content: Any, tensors: State) -> str:
    """Return the SHA-256 hash of JSON values and of tensors' names, types, shapes and data."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(dtype=torch.uint8).numpy().data)
    return digest.hexdigest()


def newest_intact(folder: Path) -> Path | None:
    """Return the newest intact checkpoint in a folder, or None if there is none."""
    files = filter(Path.is_file, folder.glob("*.safetensors"))
    for path in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        with contextlib.suppress(OSError, Refused):
            read(path)
            return path
    return None
