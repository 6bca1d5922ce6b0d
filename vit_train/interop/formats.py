"""The formats of `vit-export`: how to write a model, and how to reopen the export as a check.

To add a format, add it to FORMATS_BY_NAME, and add its name to the choices of ExportConfig.format.
"""

import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from vit_train.base import machine
from vit_train.base.log import logger
from vit_train.base.text import reason, render
from vit_train.base.writing import new_folder, replacing, write_text
from vit_train.config.data import MAX_PIXELS
from vit_train.config.fields import in_pixels
from vit_train.config.model import Choices, ViTConfig, unsupported
from vit_train.config.run import portable
from vit_train.data.batches import Normalize
from vit_train.data.files import IMAGE_FORMATS
from vit_train.interop.layouts import HUGGING_FACE, TIMM, Layout
from vit_train.interop.pretrained import OWN, WEIGHT_FILES, pretrained
from vit_train.model.build import build
from vit_train.model.layers import QueryKeyValue
from vit_train.model.positions import Weights
from vit_train.model.vit import VisionTransformer
from vit_train.trained.model import Meta, Trained

# A function from the model's input images to logits.
Predictor = Callable[[Tensor], Tensor]
CARD = "README.md"
# How images get the model's height and width, by data.fit.
FITTED = {
    "crop": "the largest central part of this shape scaled to {0}",
    "stretch": "scaled to {0}",
    "pad": "scaled to fit into {0}, padded with gray",
}


@dataclass(frozen=True)
class Exportable:
    """A trained classifier, `original`, and an equivalent model to be exported, `network`.

    If `normalize` is true, the exported model takes uint8 images and normalizes them; otherwise, it
    takes normalized float32 images.
    """

    original: nn.Module
    network: nn.Module
    meta: Meta
    normalize: bool
    # The original's logits are divided by this number, the temperature or 1.
    divisor: float = 1.0

    def inputs(self, images: Tensor) -> Tensor:
        """Convert uint8 images to images that the exported model takes."""
        return images if self.normalize else Normalize(self.meta.statistics)(images)

    @property
    def thresholds(self) -> dict[str, float | None]:
        """Return the least probability at which each tag is predicted.

        For a model with classes, return the least confidence for each accuracy of vit-predict's
        abstain=; None for an accuracy that was not reached on the validation images.
        """
        if self.meta.task.one_class:
            return self.meta.thresholds
        return dict(zip(self.meta.classes, self.meta.tag_thresholds.tolist(), strict=True))

    @property
    def about(self) -> dict[str, Any]:
        """Return the metadata to export: settings, classes, preprocessing, versions and date.

        The metadata omits paths on the machine that trained the model.
        """
        meta = self.meta
        return {
            "classes": meta.classes,
            "image_shape": list(meta.image_shape),
            "mean": list(meta.statistics.mean),
            "std": list(meta.statistics.std),
            "temperature": meta.temperature,
            # Hugging Face's name: a softmax, or a sigmoid of each logit.
            "problem_type": ("single" if self.meta.task.one_class else "multi")
            + "_label_classification",
            "thresholds": self.thresholds,
            "fit": meta.fit,
            "white_level": meta.white_level,
            "preprocessing": f"RGB; {FITTED[meta.fit].format(in_pixels(meta.image_shape[1:]))} "
            "(bilinear, antialiased); then / 255, − mean, / std for each channel",
            "input": "uint8 images, normalized inside" if self.normalize else "normalized images",
            "config": portable(asdict(meta.config)),
            "weights": meta.weights,
            "epoch": meta.epoch,
            "images_seen": meta.images_seen,
            "data_fingerprint": meta.fingerprint,
            "versions": meta.versions,
            "exported": {"date": machine.today(), "versions": machine.versions()},
        }


def exportable(trained: Trained, normalize: bool, calibrated: bool) -> Exportable:
    """Prepare a classifier for export.

    With `calibrated`, divide the weights of its head by its temperature. Raise ValueError if the
    model is not a classifier, or has no temperature to divide by.
    """
    meta = trained.meta
    if not meta.task.needs_labels:
        raise ValueError(f"task={meta.config.task.name}: only classifiers can be exported")
    config = meta.config.model
    if isinstance(config, ViTConfig):
        # PyTorch's ONNX exporter fails on its own fused attention with a bias.
        kernels = "scratch" if config.positions == "relative" else "fused"
        # init="torch" is fast; the weights are loaded below.
        config = replace(config, kernels=kernels, init="torch")
    network = build(config, meta.image_shape, len(meta.classes))
    network.load_state_dict(trained.model.state_dict())
    if not calibrated:
        return Exportable(trained.model, network.eval(), meta, normalize)
    if not meta.task.one_class:
        raise ValueError("calibrated=true is not for task=tags, which has no temperature")
    if meta.temperature is None:
        advice = meta.calibration_advice(meta.path)
        raise ValueError(
            f"calibrated=true needs a temperature fitted at the training image size: {advice}"
        )
    head: Any = network.head
    for parameter in head.parameters():
        parameter.data /= meta.temperature
    done = replace(meta, temperature=1.0)
    return Exportable(trained.model, network.eval(), done, normalize, meta.temperature)


@dataclass(frozen=True)
class Format:
    """An export format: how to write a model, and how to reopen the export."""

    # The suffix of its file name; "" for a folder.
    suffix: str
    # The usage: NAME is the file or folder, INPUT describes the images.
    use: str
    # The content of the file, or of each file in the folder by name.
    content: Callable[[Exportable], Any]
    # The function that the file or folder computes, from input images to logits.
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


def whole_network(model: Exportable) -> nn.Sequential:
    """Return the network with its normalization, if the exported model normalizes."""
    normalize = Normalize(model.meta.statistics) if model.normalize else nn.Identity()
    return nn.Sequential(normalize, model.network).eval()


def example_images(model: Exportable, count: int) -> Tensor:
    dtype = torch.uint8 if model.normalize else torch.float32
    return torch.zeros(count, *model.meta.image_shape, dtype=dtype)


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
    with TemporaryDirectory() as folder:
        rounded = Path(folder, "rounded.onnx")
        # Weights of 7 bits, because CPUs without VNNI saturate sums of products of 8 bits.
        quantization.quantize_dynamic(
            exact.model_proto, rounded, per_channel=True, reduce_range=True
        )
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
        advice = "add images, or train longer" if model.thresholds else untried
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


def plain_config(model: VisionTransformer) -> ViTConfig:
    """Return the config of the model as exported to other libraries.

    Other libraries expect biases in all layers, so missing biases are exported as zeros. If all
    positions are in one table, they are exported as learned positions, even sinusoidal ones.
    """
    config = replace(model.config, norm_eps=model.config.eps, proj_bias=True, mlp_bias=True)
    one_table = len(model.pos_embed) == 1 and config.positions_at == "stem"
    return replace(config, positions="learned") if one_table else config


def plain_state(model: VisionTransformer) -> Weights:
    """Return the weights of the model as exported to other libraries.

    Missing biases become zeros. If `plain_config` returns learned positions, the weights include
    a table of positions.
    """
    zeros = {
        f"{name}.bias": layer.weight.new_zeros(len(layer.weight))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.bias is None
        if not isinstance(layer, QueryKeyValue)
    }
    state = model.state_dict() | zeros
    if plain_config(model).positions != "learned":
        return state
    rest = {key: value for key, value in state.items() if not key.startswith("pos_embed.")}
    return rest | {"pos_embed.0.weight": model.pos_embed[0]().detach()}


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
