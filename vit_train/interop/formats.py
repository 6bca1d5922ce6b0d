"""The formats of `vit-export`: how each is written, and how it is opened again to be checked.

A new format is a class with `write` and `open`, and a line in WRITERS; its name is one of FORMATS.
"""

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module, util
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from safetensors.torch import save
from torch import Tensor

from vit_train.base.text import reason
from vit_train.base.writing import new_folder, replacing, write_json, write_text
from vit_train.data.batches import Normalize
from vit_train.interop.deployed import Deployed
from vit_train.interop.huggingface import HUGGING_FACE
from vit_train.interop.layout import Layout
from vit_train.interop.pretrained import OWN, pretrained
from vit_train.interop.timm import TIMM
from vit_train.interop.weight_files import WEIGHT_FILES
from vit_train.model.build import build
from vit_train.model.config import ViTConfig

# Of images, as the network takes them, the logits.
Answer = Callable[[Tensor], Tensor]
# What checks an export, and returns its model card.
Check = Callable[[Answer], str]
CARD = "README.md"
NO_PROGRAM = "PyTorch cannot export"


class Format(Protocol):
    """A format: it writes a file or folder whole or not at all, and only if the check passes."""

    # What follows the name of a file; "" for a folder.
    suffix: ClassVar[str]
    # Packages without which it cannot be written.
    needs: ClassVar[tuple[str, ...]] = ()
    # The package that opens it, as the Hugging Face Hub calls it.
    package: ClassVar[str | None] = None
    # How it is opened: NAME is the file or folder, INPUT says which images.
    use: ClassVar[str]

    def refused(self, model: Deployed) -> list[str]:
        """Return the parts of the model that the format cannot hold."""
        return []

    def write(self, model: Deployed, out: Path, check: Check) -> None:
        """Write, open, check; raise what `check` raises, and leave nothing then."""
        ...


class File(Format):
    """A format that is one file, with the model card beside it."""

    def write(self, model: Deployed, out: Path, check: Check) -> None:
        with replacing(out) as file:
            file.write(self.content(model))
            file.flush()
            card = check(self.open(Path(file.name), model))
        write_text(out.with_name(f"{out.name}.md"), card)

    def content(self, model: Deployed) -> bytes:
        raise NotImplementedError

    def open(self, path: Path, model: Deployed) -> Answer:
        raise NotImplementedError


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise ValueError, "`what` this model", if a library fails in the block, for any reason."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what} this model: {reason(error)}") from error


class Onnx(File):
    """ONNX, which runs without PyTorch."""

    suffix = ".onnx"
    needs = ("onnx", "onnxscript", "onnxruntime")
    package = "onnx"
    use = """\
import onnxruntime

session = onnxruntime.InferenceSession("NAME")
(logits,) = session.run(None, {"images": images})  # INPUT"""

    def content(self, model: Deployed) -> bytes:
        with refusals(NO_PROGRAM):
            program = torch.onnx.export(
                model.network,
                (model.example,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
                input_names=["images"],
                output_names=["logits"],
                verbose=False,
            )
        assert program is not None
        proto: Any = program.model_proto
        for key, value in model.about.items():
            text = value if isinstance(value, str) else json.dumps(value)
            proto.metadata_props.add(key=key, value=text)
        return bytes(proto.SerializeToString())

    def open(self, path: Path, model: Deployed) -> Answer:
        with refusals("onnxruntime cannot open"):
            session = import_module("onnxruntime").InferenceSession(
                str(path), providers=["CPUExecutionProvider"]
            )
        return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


class Program(File):
    """A program of torch.export, which runs without this package."""

    suffix = ".pt2"
    use = """\
import torch

model = torch.export.load("NAME").module()
logits = model(images)  # INPUT"""

    def content(self, model: Deployed) -> bytes:
        batch = ({0: torch.export.Dim("batch", min=1)},)
        with refusals(NO_PROGRAM):
            program = torch.export.export(model.network, (model.example,), dynamic_shapes=batch)
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files={f"{OWN}.json": model.about_json})
        return buffer.getvalue()

    def open(self, path: Path, model: Deployed) -> Answer:
        with warnings.catch_warnings():
            # torch 2.11 warns of a buffer of its own.
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            return torch.export.load(io.BytesIO(path.read_bytes())).module()


def safetensors_of(state: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    whole = {key: each.clone(memory_format=torch.contiguous_format) for key, each in state.items()}
    return save(whole, metadata)


class Safetensors(File):
    """The weights as they are here, for init_from=."""

    suffix = ".safetensors"
    use = "# vit-train init_from=NAME"

    def refused(self, model: Deployed) -> list[str]:
        config = model.meta.config.model
        return [] if isinstance(config, ViTConfig) else [f"model.name={config.name}"]

    def content(self, model: Deployed) -> bytes:
        return safetensors_of(model.fused.state_dict(), {OWN: model.about_json})

    def open(self, path: Path, model: Deployed) -> Answer:
        return reopened(path, model)


class Folder(Format):
    """A folder in the layout of a library, with the model card in it.

    It is opened by the library or, where that is not installed, read back here.
    """

    suffix = ""
    layout: ClassVar[Layout]
    package: ClassVar[str]

    def refused(self, model: Deployed) -> list[str]:
        return model.refused(self.layout)

    def write(self, model: Deployed, out: Path, check: Check) -> None:
        with new_folder(out) as folder:
            with replacing(folder / WEIGHT_FILES[0]) as file:
                file.write(safetensors_of(model.state_in(self.layout), {"format": "pt"}))
            for name, content in self.layout.files(model.subject).items():
                write_json(folder / name, dict(content))
            if util.find_spec(self.package) is None:
                answer = reopened(folder, model)
            else:
                with refusals(f"{self.package} cannot open"):
                    network = self.open(folder)

                def answer(images: Tensor) -> Tensor:
                    return network(model.trained.normalize(images))

            write_text(folder / CARD, check(answer))

    def open(self, folder: Path) -> Answer:
        """Return how the library's model answers for normalized images."""
        raise NotImplementedError


class Timm(Folder):
    """A folder that timm.create_model("local-dir:FOLDER", pretrained=True) opens."""

    layout, package = TIMM, "timm"
    use = """\
import timm

model = timm.create_model("local-dir:NAME", pretrained=True).eval()
logits = model(images)  # normalized float32 (N, C, S, S)"""

    def open(self, folder: Path) -> Answer:
        return import_module("timm").create_model(f"local-dir:{folder}", pretrained=True).eval()  # type: ignore[no-any-return]


class HuggingFace(Folder):
    """A folder that ViTForImageClassification.from_pretrained opens."""

    layout, package = HUGGING_FACE, "transformers"
    use = """\
from transformers import pipeline

print(pipeline("image-classification", model="NAME")("photo.jpg"))"""

    def open(self, folder: Path) -> Answer:
        opened: Any = import_module("transformers").ViTForImageClassification
        model = opened.from_pretrained(folder).eval()
        return lambda images: model(images).logits


def reopened(path: Path, model: Deployed) -> Answer:
    """Return how weights answer that are read back from a file or folder, as init_from= does."""
    config = model.meta.config.model
    assert isinstance(config, ViTConfig)
    found = pretrained(str(path), config)
    quick = replace(found.config, init="torch")  # the weights come below
    network = build(quick, model.meta.image_shape, len(found.state["head.weight"]))
    network.load_state_dict(found.state)
    assert found.statistics is not None
    normalize = Normalize(found.statistics)
    return lambda images: network.eval()(normalize(images))


WRITERS: dict[str, Format] = {
    "onnx": Onnx(),
    "torch": Program(),
    "safetensors": Safetensors(),
    "timm": Timm(),
    "hf": HuggingFace(),
}
