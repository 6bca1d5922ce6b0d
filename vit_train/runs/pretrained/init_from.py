"""`init_from=`: give a new model the weights of a pretrained one."""

from typing import NamedTuple

from torch import nn

from vit_train.config import vit_presets
from vit_train.data.dataset import Seen, Statistics
from vit_train.layouts.layout import first_three
from vit_train.model.config import ViTConfig, differences
from vit_train.model.pos_embed import resize_positions
from vit_train.model.vit import Encoder
from vit_train.runs.load import encoder_of
from vit_train.runs.pretrained.pretrained import Pretrained
from vit_train.text import counted

HEAD = ("head.", "pre_head.")


class Origin(NamedTuple):
    """Where a model's first weights come from, in words, and what is known of their images."""

    words: str = ""
    statistics: Statistics | None = None
    seen: Seen | None = None


def start_from(source: str, found: Pretrained, model: nn.Module, classes: list[str]) -> Origin:
    """Copy the weights `found` in `source` into the model; return what was taken and what not.

    Learned positions are resized if the images have another size. The head is reused if it knows
    the same classes, by their names or, where these are not known, by their number. Raise
    ValueError if the encoders differ.
    """
    ours = encoder_of(model)
    assert ours is not None
    require_fit(source, found, ours)
    fresh = why_fresh(found, ours, classes)
    state = resize_positions(found.state, ours)
    if fresh:
        state = {key: value for key, value in state.items() if not key.startswith(HEAD)}
    ours.load_state_dict(state, strict=False)
    return Origin(describe(source, found, ours, fresh), found.statistics, found.seen)


def require_fit(source: str, found: Pretrained, ours: Encoder) -> None:
    """Raise ValueError, with the settings that would fit, if the encoders differ."""
    differing = differences(found.config, ours.config)
    if found.channels != ours.image_shape[0]:
        raise ValueError(
            f"init_from={source} is for images of {found.channels} channels, these have "
            f"{ours.image_shape[0]}"
        )
    if differing:
        preset = preset_of(found.config)
        hint = "" if preset is None else f" (or model={preset})"
        raise ValueError(
            f"init_from={source} has another encoder than this model, which fits with "
            f"{' '.join(differing)}{hint}"
        )


def preset_of(config: ViTConfig) -> str | None:
    """Return the name of a model in conf/model with the same encoder, or None."""
    presets = vit_presets().items()
    return next((name for name, preset in presets if not differences(config, preset)), None)


def why_fresh(found: Pretrained, ours: Encoder, classes: list[str]) -> str:
    """Return why the head is not reused; "" if it is."""
    head = getattr(ours, "head", None)
    if head is None:
        return "this task has none"
    theirs = found.state.get("head.weight")
    if theirs is None:
        return "there is none"
    if len(theirs) != len(classes):
        return f"it knows {counted(len(theirs), 'class')}, the data have {len(classes):,}"
    if found.classes is not None and found.classes != classes:
        return "its classes have other names"
    return "" if found.config.head == ours.config.head else f"it is model.head={found.config.head}"


def describe(source: str, found: Pretrained, ours: Encoder, fresh: str) -> str:
    """Say what was taken, what not, and why."""
    layout = f" ({found.layout}'s layout)" if found.layout else ""
    lines = [f"starts from the encoder of {source}{layout}"]
    theirs = found.state.get("pos_embed.0.weight")
    table = ours.state_dict().get("pos_embed.0.weight")
    if theirs is not None and table is not None and theirs.shape != table.shape:
        lines[0] += f", its {theirs.shape[1]} positions resized to {table.shape[1]}"
    if fresh:
        lines.append(f"its head is not reused: {fresh}")
    else:
        unknown = "the same number of classes, whose names are not known"
        lines.append(f"its head is reused, for {'the same classes' if found.classes else unknown}")
    if found.left:
        lines.append(f"left out: {first_three(found.left)}")
    if found.assumed:
        values = " ".join(f"model.{key}={getattr(found.config, key)}" for key in found.assumed)
        lines.append(f"assumed, because the file does not say it: {values}")
    return "; ".join(lines)
