"""Pretrained models to start from: runs of this program, and weights of other libraries.

Every source gives a `Pretrained`: weights under this program's names, and facts about the model.
"""

import json
import math
import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vit_train.base.reading import Refused, read_object, typed
from vit_train.base.text import reason
from vit_train.config.fields import Size, as_setting, sides
from vit_train.config.model import ViTConfig, require_vit
from vit_train.config.run import PREDICTING, from_checkpoint
from vit_train.data.dataset import CHANNELS, Seen, Statistics, valid_statistics
from vit_train.interop.config_files import ModelFacts, built_facts
from vit_train.interop.layouts import Layout, is_square, layout_of
from vit_train.model.build import build, on_meta
from vit_train.model.patches import grid_of
from vit_train.model.positions import Weights
from vit_train.model.vit import encoder_of
from vit_train.trained.checkpoint import KEY as CHECKPOINT
from vit_train.trained.load import load

FROM_TIMM = "timm:"
# The metadata key under which an exported safetensors file describes its model.
OWN = "vit_train"
# The width of the heads in nearly all published models.
HEAD_DIM = 64


@dataclass(frozen=True)
class Pretrained:
    """The weights of a pretrained Vision Transformer, and facts about the model."""

    # The name of the weights' original layout; "" for this program's own.
    layout: str
    state: Weights
    config: ViTConfig
    # The names of the classes; None if unknown.
    classes: list[str] | None
    statistics: Statistics | None
    # The size of the images that the model was trained on, as data.image_size; None if unknown.
    image_size: int | list[int] | None = None
    # The names of weights that are not used.
    left: tuple[str, ...] = ()
    # Settings of `model` that are assumed, because the source does not state them.
    assumed: tuple[str, ...] = ()
    # The images that the model has seen, if known.
    seen: Seen | None = None

    @property
    def grid(self) -> Size:
        """Return the rows and columns of patches; (1, 1) if the image size is unknown."""
        size = self.config.patch_size
        return grid_of(sides(self.image_size or size), size)


def pretrained(source: str, wanted: ViTConfig) -> Pretrained:
    """Return the pretrained model that `init_from=source` names.

    `wanted` is the config of the model to train; it supplies the settings that the source does not
    state. Raise ValueError if the source does not exist, or if it is not a supported Vision
    Transformer.
    """
    try:
        if source.startswith(FROM_TIMM):
            return from_timm(source.removeprefix(FROM_TIMM), wanted)
        path = Path(source)
        files = filter(Path.is_file, (path, *(path / name for name in WEIGHT_FILES)))
        file = next(files, None)
        return from_run(source) if file is None else from_file(file, wanted)
    except ValueError as error:
        raise ValueError(f"init_from={source}: {error}") from error


def from_run(source: str) -> Pretrained:
    """Return the encoder of a run's model, with the head if the model is a classifier."""
    model, meta = load(source)
    encoder = encoder_of(model)
    if encoder is None:
        raise Refused("this model is not a Vision Transformer, so its weights cannot be used")
    return Pretrained(
        layout="",
        state=encoder.state_dict(),
        config=encoder.config,
        classes=meta.classes,
        statistics=meta.statistics,
        image_size=as_setting(meta.image_shape[1:]),
        seen=meta.all_seen,
    )


def from_file(path: Path, wanted: ViTConfig) -> Pretrained:
    """Return the model in a file of weights; also read the config files in the same folder."""
    state, metadata = read_weights(path)
    if CHECKPOINT in metadata:
        return from_run(str(path))
    try:
        if OWN in metadata:
            return from_own(state, json.loads(metadata[OWN]))
        layout = layout_of(state)
        facts = layout.facts({name: read_object(path.with_name(name)) for name in CONFIG_FILES})
        return translated(state, layout, facts, wanted)
    except (LookupError, TypeError, AttributeError) as error:  # JSON with a different structure
        raise Refused(
            f"the metadata of {path}, or config.json, does not describe a model"
        ) from error


def from_own(state: Weights, about: dict[str, Any]) -> Pretrained:
    """Return the model in a safetensors file that `vit-export` wrote, with the file's metadata."""
    config = require_vit(from_checkpoint(about["config"], PREDICTING).model, "init_from")
    state = in_float(state)
    size = as_setting(about["image_shape"][1:])
    require_whole(state, config, size)
    statistics = valid_statistics(about["mean"], about["std"])
    classes = typed(list[str], about["classes"], "classes")
    return Pretrained("", state, config, classes, statistics, size)


def from_timm(name: str, wanted: ViTConfig) -> Pretrained:
    """Return a model that timm downloads and builds; raise Refused if timm is missing or fails."""
    try:
        model = import_module("timm").create_model(name, pretrained=True)
        facts = built_facts(model)
    except ImportError as error:
        raise Refused(
            f"timm cannot be imported ({reason(error)}): pip install -e '.[timm]' in the checkout"
        ) from error
    except Exception as error:  # errors of the network, of timm, or for blocks without attention
        raise Refused(f"cannot get {name} from timm: {reason(error)}") from error
    state = unwrapped(model.state_dict())
    return translated(state, layout_of(state), facts, wanted)


def translated(state: Weights, layout: Layout, facts: ModelFacts, wanted: ViTConfig) -> Pretrained:
    """Convert a library's weights and facts to a `Pretrained`.

    `wanted` supplies the settings that the weights and facts do not determine. Raise Refused if
    this program does not support the model.
    """
    ours, shown, left = layout.to_ours(state)
    require_supported_head(ours, left, shown["head"], facts)
    ours = in_float({key.replace("fc_norm.", "norm."): value for key, value in ours.items()})
    fixed = {name: values[0] for name, values in layout.supported.items() if len(values) == 1}
    stated = fixed | dict(facts.settings)
    classes = typed(list[str] | None, facts.classes, "the class names")
    assumed = assumptions(layout, ours, shown, wanted)
    config = replace(wanted, **assumed | stated | shown)  # the weights take precedence
    size = image_size(ours, config)
    require_whole(ours, config, size)
    return Pretrained(
        layout=layout.name,
        state=ours,
        config=config,
        classes=classes,
        statistics=facts.statistics,
        image_size=None if config.positions == "none" else size,
        left=tuple(left),
        assumed=tuple(name for name in assumed if name not in stated),
    )


def require_supported_head(
    ours: Weights, left: Sequence[str], head: str, facts: ModelFacts
) -> None:
    """Raise Refused if the head reads neither the class token nor, without one, the patches' mean.

    `head` is the kind of head that the weights `ours` show, and `left` are the weights not used.
    """
    # timm may pool the tokens by attention or, although there is a class token, by their mean.
    pools = "attn_pool.latent" in left or ours.keys() >= {"cls_token", "fc_norm.weight"}
    differs = facts.settings.get("head") not in (None, head.removesuffix("_norm"))
    if "head.weight" in ours and (pools or differs):
        raise Refused(
            "its head reads all tokens: it must read the class token or, without one, the mean of "
            "the patches"
        )


def assumptions(
    layout: Layout, ours: Weights, shown: dict[str, Any], wanted: ViTConfig
) -> dict[str, Any]:
    """Return assumed values for the settings that do not follow from the weights.

    The values come from `wanted` if they fit the weights, and otherwise from the library's usual
    values. `shown` has the settings that follow from the weights.
    """
    width = shown["embed_dim"]
    usual = min(16, max(1, width // HEAD_DIM))  # ViT-H, ViT-g and ViT-G have 16 heads, too
    assumed = {
        "num_heads": wanted.num_heads if width == wanted.embed_dim else usual,
        "norm_eps": layout.norm_eps if wanted.norm_eps is None else wanted.norm_eps,
        "activation": wanted.activation,
    }
    if "head.weight" in ours and shown["head"] == "token" and "gap" in layout.supported["head"]:
        assumed["head"] = "token"  # although the head may read the mean of all tokens
    return assumed


def image_size(state: Weights, config: ViTConfig) -> int:
    """Return the image size, in pixels, that the number of positions implies.

    Without positions, return the patch size. Raise Refused if no square image has this number of
    positions.
    """
    if config.positions == "none":
        return config.patch_size
    tokens = state["pos_embed.0.weight"].numel() // config.embed_dim
    patches = tokens - config.has_class_token
    if not is_square(patches):
        raise Refused(f"its {tokens} positions do not form a square grid")
    return math.isqrt(patches) * config.patch_size


def require_whole(state: Weights, config: ViTConfig, image_size: int | list[int]) -> None:
    """Raise Refused unless the weights have the names and shapes of a model with this `config`.

    The weights of the head may be missing.
    """
    head = state.get("head.weight")
    shape = (CHANNELS, *sides(image_size))
    classes = len(head) if head is not None and head.ndim else 1
    model = on_meta(lambda: build(config, shape, classes), config)
    if head is None:
        state = {key: each for key, each in model.state_dict().items() if "head." in key} | state
    try:
        model.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise Refused(reason(error)) from error


def in_float(state: Weights) -> Weights:
    """Convert half-precision weights to float32; raise Refused unless all are finite floats."""
    for key, value in state.items():
        if not value.is_floating_point() or not value.isfinite().all():
            raise Refused(
                f"{key} ({value.dtype}) must contain finite real numbers: the weights are damaged"
            )
    return {
        key: value.to(torch.promote_types(value.dtype, torch.float32))
        for key, value in state.items()
    }


# The names of a folder's weights file, of which the first existing one is read, and of its config
# files.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
CONFIG_FILES = ("config.json", "preprocessor_config.json")
# Keys under which training programs store a state dict, averaged weights first, as in timm.
WRAPPERS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model")
# Prefixes that wrappers, such as PyTorch's, add to names.
PREFIXES = re.compile(r"^((module|_orig_mod|model|backbone|vit|deit|dinov2(_with_registers)?)\.)+")


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the state dict and the metadata of a file; only safetensors files have metadata.

    Raise Refused if the file has no state dict, or cannot be read without running code.
    """
    if zipfile.is_zipfile(path):
        try:
            with torch.serialization.safe_globals([Namespace]):  # the arguments of timm's train.py
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # reading such a file can raise any error
            raise Refused(
                "it is damaged, or contains more than weights, which could run code: save its "
                "state dict alone, torch.save(model.state_dict(), FILE)"
            ) from error
        state = unwrapped(content)
        # A few bytes can stand for a huge tensor: its stride may be 0.
        if any(each.nbytes > path.stat().st_size for each in state.values()):
            raise Refused("it has weights that are larger than the file")
        return state, {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if CHECKPOINT in metadata:  # the caller reads a checkpoint's weights
                return {}, metadata
            state = {name: file.get_tensor(name) for name in sorted(file.keys())}
            return unwrapped(state), metadata
    except SafetensorError as error:
        raise Refused(
            f"it is damaged, or was not saved as safetensors or by PyTorch 1.6 or later: {error}"
        ) from error


def unwrapped(content: Any) -> dict[str, Tensor]:
    """Return the state dict in a file's content, without wrappers' prefixes in the names.

    An example of such a prefix is "module.". Raise Refused if the content has no state dict.
    """
    content = content if isinstance(content, Mapping) else {}
    for _ in WRAPPERS:
        wrapped = (content.get(key) for key in WRAPPERS)
        content = next((each for each in wrapped if isinstance(each, Mapping)), content)
    tensors = {
        PREFIXES.sub("", name): value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    if not tensors:
        raise Refused("it contains no weights")
    return tensors
