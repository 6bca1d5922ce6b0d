"""The formats of `vit-export`: how to write a model, and how to reopen the export as a check.

To add a format, add it to FORMATS_BY_NAME, and add its name to the choices of ExportConfig.format.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.text import reason, render
from vit_train.base.writing import new_folder, replacing, write_text
from vit_train.config.data import MAX_PIXELS
from vit_train.config.model import Choices, ViTConfig, unsupported
from vit_train.data.batches import Normalize
from vit_train.data.files import IMAGE_FORMATS
from vit_train.interop.exportable import (
    Exportable,
    example_images,
    plain_config,
    plain_state,
    whole_network,
)
from vit_train.interop.layouts import HUGGING_FACE, TIMM, Layout
from vit_train.interop.pretrained import OWN, WEIGHT_FILES, pretrained
from vit_train.model.build import build
from vit_train.model.positions import Weights
from vit_train.model.vit import VisionTransformer

# A function from the model's input images to logits.
Predictor = Callable[[Tensor], Tensor]
CARD = "README.md"


@dataclass(frozen=True)
class Format:
    """An export format: how to write a model, and how to reopen the export."""

    # The suffix of its file name; "" for a folder.
    suffix: str
    # The usage: NAME is the file or folder, INPUT describes the images.
    use: str
    # Return the content of the file, or of each file in the folder by name.
    content: Callable[[Exportable], Any]
    # Open the file or folder; return its function from input images to logits.
    open: Callable[[Path, Exportable], Predictor]
    # The package that opens it, by its name on the Hugging Face Hub.
    package: str | None = None
    # Packages that are needed to write it.
    needs: tuple[str, ...] = ()
    # The supported values of a Vision Transformer's settings; None if any model is supported.
    supported: Choices | None = None
    # False if the weights are rounded so that logits differ.
    exact: bool = True

    def unsupported(self, model: Exportable) -> list[str]:
        """Return the model's settings that the format does not support.

        An example is ["model.qk_norm=True"]. The list is empty if the format supports the model.
        """
        if self.supported is None:
            return []
        if not isinstance(model.network, VisionTransformer):
            return [f"model.name={model.meta.config.model.name}"]
        return unsupported(plain_config(model.network), self.supported)

    def write(self, model: Exportable, out: Path, card_for: Callable[[Predictor], str]) -> None:
        """Write the exported model and its model card to `out`.

        `card_for` checks the reopened export, a function from images to logits, and returns the
        model card. If `card_for` raises an error, no files remain.
        """
        try:
            content = self.content(model)
        except Exception as error:  # exporters can raise any error
            raise ValueError(f"the format cannot represent this model: {reason(error)}") from error
        if self.suffix:
            with replacing(out) as file:
                file.write(content)
                file.flush()
                card = card_for(self.open(Path(file.name), model))
            write_text(out.with_name(f"{out.name}.md"), card)
        else:
            with new_folder(out) as folder:
                for name, each in content.items():
                    (folder / name).write_bytes(each)
                write_text(folder / CARD, card_for(self.open(folder, model)))


def program_of(model: Exportable) -> torch.export.ExportedProgram:
    """Export the model with torch.export, as a program from images (N,C,H,W) to logits (N,K).

    The program accepts any number N of images.
    """
    batch = ({0: torch.export.Dim("batch", min=1)},)
    return torch.export.export(
        whole_network(model), (example_images(model, 2),), dynamic_shapes=batch
    )


def onnx_of(model: Exportable) -> bytes:
    program: Any = torch.onnx.export(
        program_of(model),
        dynamo=True,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: "batch"},),  # names the dimension, which is dynamic in the program
        verbose=False,
    )
    return onnx_file(program.model_proto, model)


def onnx_file(proto: Any, model: Exportable) -> bytes:
    """Return the file of an ONNX model, with the model's metadata."""
    for key, value in model.about.items():
        text = value if isinstance(value, str) else json.dumps(value)
        proto.metadata_props.add(key=key, value=text)
    return bytes(proto.SerializeToString())


def onnx_int8_of(model: Exportable) -> bytes:
    """Return the ONNX model with matrix products in 8 bits, of each image by itself.

    The products round their inputs by the range of the values, so the values of other images would
    change an image's logits. Therefore, the model is of one image, (C,H,W), and an ONNX Scan
    applies it to each image of a batch.
    """
    onnx = import_module("onnx")
    quantization = import_module("onnxruntime.quantization")
    (image,) = example_images(model, 1)
    one = nn.Sequential(
        nn.Unflatten(0, (1, len(image))), whole_network(model), nn.Flatten(0)
    ).eval()
    exact: Any = torch.onnx.export(one, (image,), dynamo=True, verbose=False)
    proto = exact.model_proto
    # Otherwise, onnxruntime advises to run its pre-processing first.
    proto.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    with TemporaryDirectory() as folder:
        rounded = Path(folder, "rounded.onnx")
        # Weights of 7 bits, because CPUs without VNNI saturate sums of products of 8 bits.
        quantization.quantize_dynamic(proto, rounded, per_channel=True, reduce_range=True)
        body = onnx.load(rounded)
    helper = onnx.helper
    scan = helper.make_node("Scan", ["images"], ["logits"], body=body.graph, num_scan_inputs=1)
    pixels = onnx.TensorProto.UINT8 if model.normalize else onnx.TensorProto.FLOAT
    images = helper.make_tensor_value_info("images", pixels, ["batch", *image.shape])
    logits = helper.make_tensor_value_info(
        "logits", onnx.TensorProto.FLOAT, ["batch", len(model.meta.classes)]
    )
    graph = helper.make_graph([scan], "one_by_one", [images], [logits])
    whole = helper.make_model(graph, opset_imports=body.opset_import, ir_version=body.ir_version)
    return onnx_file(whole, model)


def open_onnx(path: Path, model: Exportable) -> Predictor:
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def deploy_folder_of(model: Exportable) -> dict[str, bytes]:
    """Return the files, by name, of a folder that predicts without this package and PyTorch."""
    thresholds = {name: least for name, least in model.thresholds.items() if least is not None}
    limits = {"thresholds": thresholds, "max_pixels": MAX_PIXELS, "formats": IMAGE_FORMATS}
    tags = not model.meta.task.one_class
    if not tags:
        untried = (
            "run vit-eval first"
            if model.meta.config.data.val == "split"
            else "the run held out no validation images"
        )
        advice = (
            "add images (0.95 needs at least 59 for validation), or train a better model"
            if model.thresholds
            else untried
        )
        reached = f"reached on the validation images: {', '.join(thresholds) or f'none; {advice}'}"
        limits["reached"] = reached
        logger.info(f"accuracies for predict.py --abstain, {reached}")
    script = render("interop", "predict.py.txt", fit=model.meta.fit, tags=tags)
    return {
        DEPLOYED: onnx_of(model),
        "model.json": json.dumps(model.about | limits, indent=2).encode(),
        "predict.py": script.encode(),
        "requirements.txt": render("interop", "requirements.txt").encode(),
    }


def torch_file(model: Exportable) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(
        program_of(model), buffer, extra_files={f"{OWN}.json": json.dumps(model.about)}
    )
    return buffer.getvalue()


def safetensors_of(state: Weights, metadata: dict[str, str]) -> bytes:
    return save(
        {key: each.clone(memory_format=torch.contiguous_format) for key, each in state.items()},
        metadata,
    )


def reopened(path: Path, model: Exportable) -> Predictor:
    """Load an exported model as `init_from=` does; return the function from images to logits.

    The returned function takes uint8 images and normalizes them.
    """
    found = pretrained(str(path), ViTConfig())
    quick = replace(found.config, init="torch")  # the weights are loaded below
    network = build(quick, model.meta.image_shape, len(found.state["head.weight"])).eval()
    network.load_state_dict(found.state)
    assert found.statistics is not None
    return nn.Sequential(Normalize(found.statistics), network)


def library_folder(layout: Layout, model: Exportable) -> dict[str, bytes]:
    """Return the weights and config files, by name, of a folder that the library can load."""
    assert isinstance(model.network, VisionTransformer)
    files = layout.files(plain_config(model.network), model.about)
    contents = {name: json.dumps(each, indent=2).encode() for name, each in files.items()}
    state = layout.to_theirs(plain_state(model.network))
    return {WEIGHT_FILES[0]: safetensors_of(state, {"format": "pt"}), **contents}


# ONNX files run without PyTorch.
ONNX = Format(
    suffix=".onnx",
    use="""\
import onnxruntime

session = onnxruntime.InferenceSession("NAME")
(logits,) = session.run(None, {"images": images})  # INPUT""",
    content=onnx_of,
    open=open_onnx,
    package="onnx",
    needs=("onnx", "onnxscript", "onnxruntime"),
)
# The ONNX model in the folder of format=deploy.
DEPLOYED = "model.onnx"
FORMATS_BY_NAME = {
    "onnx": ONNX,
    "onnx_int8": replace(ONNX, suffix=".int8.onnx", content=onnx_int8_of, exact=False),
    "deploy": replace(
        ONNX,
        suffix="",
        use="""\
# In a terminal: pip install -r requirements.txt, then python predict.py photo.jpg (or --help)
from predict import predict

with open("photo.jpg", "rb") as photo:
    print(predict(photo))""",
        content=deploy_folder_of,
        open=lambda path, model: open_onnx(path / DEPLOYED, model),
    ),
    # A program of torch.export, which runs without this package.
    "torch": Format(
        suffix=".pt2",
        use="""\
import torch

model = torch.export.load("NAME").module()
logits = model(images)  # INPUT""",
        content=torch_file,
        open=lambda path, model: torch.export.load(io.BytesIO(path.read_bytes())).module(),
    ),
    # The weights under this program's names.
    "safetensors": Format(
        suffix=".safetensors",
        use="# vit-train init_from=NAME",
        content=lambda model: safetensors_of(
            model.network.state_dict(), {OWN: json.dumps(model.about)}
        ),
        open=reopened,
        supported={},  # every Vision Transformer
    ),
    "timm": Format(
        suffix="",
        use="""\
import timm

model = timm.create_model("local-dir:NAME", pretrained=True).eval()
logits = model(images)  # normalized float32 (N, C, H, W)""",
        content=partial(library_folder, TIMM),
        open=reopened,
        package="timm",
        supported=TIMM.supported,
    ),
    "hf": Format(
        suffix="",
        use="""\
from transformers import pipeline

print(pipeline("image-classification", model="NAME")("photo.jpg"))""",
        content=partial(library_folder, HUGGING_FACE),
        open=reopened,
        package="transformers",
        supported=HUGGING_FACE.supported,
    ),
}
