"""Each layout is read and written by one table: there and back is the same model, to the bit."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from vit_train.base.reading import Refused
from vit_train.config.model import ViTConfig
from vit_train.interop.config_files import hf_facts
from vit_train.interop.layouts import (
    LAYOUTS,
    NORM_IN,
    PATCHES,
    TIMM,
    VIT_PYTORCH,
    Layout,
    layout_of,
)
from vit_train.interop.pretrained import image_size, unwrapped
from vit_train.model.positions import Weights
from vit_train.model.vit import VisionTransformer


def pack_vit_pytorch(state: Weights) -> Weights:
    """Flatten patches with the channels last, and remove the batch dimension of tokens."""
    result, side = dict(state), state[PATCHES].shape[-1]
    for key, value in state.items():
        if key == PATCHES:
            result[key] = value.movedim(-3, -1).flatten(-3)
        elif key.startswith(NORM_IN):
            result[key] = value.unflatten(0, (-1, side, side)).movedim(-3, -1).flatten()
    token = state.get("cls_token", state["pos_embedding"][:, :0])
    return result | {"pos_embedding": state["pos_embedding"][0], "cls_token": token[0]}


SMALL = ViTConfig(embed_dim=12, depth=2, num_heads=3, mlp_dim=20, norm_eps=1e-5)
# Of each layout one model, with the settings that it needs.
BASE: dict[str, dict[str, Any]] = {
    "vit-pytorch": {"stem": "normed_patches", "qkv_bias": False},
    # With 64 patches and a class token, 16 registers make a square, too.
    "timm": {"norm_eps": 1e-6, "registers": 16},
}
HEADS_OF = {
    "timm": ("token", "gap"), "torchvision": ("token", "token_mlp"), "Hugging Face": ("token",),
    "vit-pytorch": ("token", "gap"),
}  # fmt: skip
# No command writes the layout of vit-pytorch, but these tests do.
WRITTEN = [*LAYOUTS[:-1], replace(VIT_PYTORCH, pack=pack_vit_pytorch)]
each_layout = pytest.mark.parametrize("layout", WRITTEN, ids=lambda layout: layout.name)


def model_for(layout: Layout, **settings: Any) -> VisionTransformer:
    """A model whose every weight is random."""
    config = replace(SMALL, **BASE.get(layout.name, {}) | settings)
    model = VisionTransformer(config, 16, 3, 5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize(
    ("layout", "head"),
    [
        pytest.param(layout, head, id=f"{layout.name}-{head}")
        for layout in WRITTEN
        for head in HEADS_OF[layout.name]
    ],
)
@pytest.mark.parametrize("patch_size", [2, 8])
def test_there_and_back_is_the_same_to_the_bit(layout: Layout, head: str, patch_size: int) -> None:
    model = model_for(layout, head=head, patch_size=patch_size)
    state = model.state_dict()
    theirs = unwrapped(layout.to_theirs(state))
    assert layout_of(theirs).names == layout.names
    for name, published in ((".mlp.0.", ".mlp.linear_1."), (".mlp.3.", ".mlp.linear_2.")):
        theirs = {key.replace(name, published): value for key, value in theirs.items()}
    ours, shown, left = layout.to_ours({key: value.clone() for key, value in theirs.items()})
    assert not left and ours.keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in ours.items())
    assert not [key for key in shown if key != "mlp_dim" and shown[key] != vars(model.config)[key]]


STATE = TIMM.to_theirs(VisionTransformer(SMALL, 16, 3, 5).state_dict())


@pytest.mark.parametrize(
    "wrapped",
    [
        STATE,
        {"state_dict": STATE, "epoch": 3},
        {"model": {f"module.{key}": value for key, value in STATE.items()}},
        {"model": {"x": torch.ones(1)}, "model_ema": STATE},
        {"state_dict": {"model": {f"module._orig_mod.{k}": v for k, v in STATE.items()}}},
        STATE | {"epoch": 3},
        {"model": {f"_orig_mod.module.{key}": value for key, value in STATE.items()}},
        {"state_dict": STATE, "best_acc1": torch.tensor(71.5)},  # PyTorch's ImageNet example
    ],
    ids=["bare", "state_dict", "module", "model_ema", "both", "beside", "other way", "accuracy"],
)
def test_a_state_dict_is_found_in_its_wrappers(wrapped: dict[str, Any]) -> None:
    assert list(unwrapped(wrapped)) == list(STATE)


ENDLESS: dict[str, Any] = {}
ENDLESS["model"] = ENDLESS


@pytest.mark.parametrize(
    "content",
    [[1], {}, {"epoch": 3}, {"model": {"args": 3}}, "text", {0: torch.zeros(3)}, ENDLESS],
    ids=["list", "empty", "number", "arguments", "text", "unnamed", "endless"],
)
def test_files_without_weights_are_refused(content: Any) -> None:
    with pytest.raises(Refused, match="it contains no weights"):
        unwrapped(content)


@each_layout
@pytest.mark.parametrize("shape", [(), (0,), (7,), (0, 0), (2, 0, 3)])
def test_no_shape_of_a_weight_ends_in_an_error_of_torch(
    layout: Layout, shape: tuple[int, ...]
) -> None:
    state = layout.to_theirs(model_for(layout).state_dict())
    for name in state:
        try:
            layout.to_ours(unwrapped(state | {name: torch.ones(shape)}))
        except Refused as error:
            assert len(str(error)) < 200
    with pytest.raises(Refused, match="do not form a square grid"):
        image_size({"pos_embed.0.weight": torch.ones(shape)}, ViTConfig(embed_dim=4096))


def test_positions_of_timms_registers_are_added_to_the_registers() -> None:
    """As is done there in every forward pass, while registers have no positions here."""
    model = model_for(TIMM)
    theirs = TIMM.to_theirs(model.state_dict())
    theirs["pos_embed"][:, 1:17] = 2.0
    ours, _, _ = TIMM.to_ours(theirs)
    assert model.reg_token is not None
    assert torch.equal(ours["reg_token"], model.reg_token + 2)


def test_the_activation_comes_from_timms_config() -> None:
    for activation in ("gelu", "gelu_tanh"):
        config = replace(SMALL, activation=activation, norm_eps=1e-6)
        about: dict[str, Any] = {"image_shape": [3, 16, 16], "classes": ["a"], "fit": "crop"}
        about |= {"mean": [0.5] * 3, "std": [0.5] * 3}
        assert TIMM.facts(TIMM.files(config, about)).settings["activation"] == activation
    for content in (
        {"model_args": {"act_layer": "silu"}},
        {"architecture": "vit_base_patch16_clip_quickgelu_224"},
    ):
        with pytest.raises(Refused, match=r"its activation is (silu|quick_gelu), but"):
            TIMM.facts({"config.json": content})
    content = {"architecture": "vit_base_patch32_siglip_256"}
    assert "activation" not in TIMM.facts({"config.json": content}).settings


def test_images_that_are_not_normalized_keep_their_values() -> None:
    """As the preprocessing of Hugging Face says of itself."""
    images = {"image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    for stated, mean, std in (
        ({"do_normalize": True}, 0.5, 0.2),
        ({"do_normalize": False}, 0.0, 1.0),
        ({}, 0.5, 0.2),
    ):
        files = {"preprocessor_config.json": images | stated}
        found = hf_facts(files).statistics
        assert found is not None and (*found.mean, *found.std) == (*[mean] * 3, *[std] * 3)


def test_classes_of_hugging_face_come_by_their_numbers() -> None:
    """Not in the alphabetical order of the numbers."""
    names = [f"class {number}" for number in range(12)]
    labels = {str(number): names[number] for number in reversed(range(12))}
    assert hf_facts({"config.json": {"id2label": labels}}).classes == names
