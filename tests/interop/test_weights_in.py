"""Weights of other libraries give the same answers here: `pytest -m interop`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Run
from omegaconf import OmegaConf
from torch import Tensor, nn

import vit_train
from interop.models import (
    CLASSES,
    DEPTH,
    DIM,
    FORMS,
    HEADS,
    MEAN,
    MLP,
    MODELS,
    PATCH,
    SETTINGS,
    SIZE,
    STD,
    hf_config,
    hf_model,
    logits_of,
    perturbed,
    timm_model,
)
from vit_train.config.model import ViTConfig
from vit_train.config.run import CONF_DIR
from vit_train.interop.layouts import layout_of
from vit_train.interop.pretrained import pretrained, unwrapped
from vit_train.model.build import build
from vit_train.model.vit import Encoder, VisionTransformer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("default"),  # of the other libraries
]
WANTED = ViTConfig(embed_dim=DIM, num_heads=HEADS)
FITTING = [
    *SETTINGS,
    *(f"data.num_classes={CLASSES}", "data.train_images=100", "data.test_images=20"),
    *("train.epochs=1", "optim.lr=1e-12", "hydra.run.dir=run"),
]


def images(size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 3, size, size, generator=generator, dtype=torch.float64)


def ours_of(path: str, wanted: ViTConfig = WANTED) -> VisionTransformer:
    found = pretrained(path, wanted)
    model = VisionTransformer(found.config, SIZE, 3, len(found.state["head.weight"])).double()
    model.load_state_dict(found.state)
    return model.eval()


@pytest.mark.parametrize("library, form", FORMS, ids=str)
def test_a_model_gives_the_same_logits(library: str, form: dict[str, Any], tmp_path: Path) -> None:
    theirs = MODELS[library](**form)
    torch.save({"state_dict": {f"module.{k}": v for k, v in theirs.state_dict().items()}},
               tmp_path / "x.pth")  # fmt: skip
    settings = {"activation": "gelu_tanh"} if "hidden_act" in form else {}
    if library == "Hugging Face":
        (tmp_path / "config.json").write_text(hf_config(**form).to_json_string(), encoding="utf-8")
    model = ours_of(str(tmp_path / "x.pth"), ViTConfig(embed_dim=DIM, num_heads=HEADS, **settings))
    batch = images()
    expected = logits_of(theirs, batch)
    assert expected.std() > 0.1
    torch.testing.assert_close(model(batch), expected, rtol=0, atol=1e-9)


# Of timm's models, some that are written back in another form.
ONE_WAY: dict[str, dict[str, Any]] = {
    "DeiT-III and FlexiViT": {"no_embed_class": True, "init_values": 1e-6},
    "DINOv2 with registers": {"no_embed_class": True, "init_values": 1e-6, "reg_tokens": 3},
    "registers with positions": {"reg_tokens": 3},
    "reg4_gap": {"reg_tokens": 3, "class_token": False, "global_pool": "avg"},
    "gap": {"class_token": False, "global_pool": "avg", "no_embed_class": True},
}


@pytest.mark.parametrize("name", ONE_WAY)
def test_timms_other_tokens_and_pooling_give_the_same_logits(name: str, tmp_path: Path) -> None:
    theirs = timm_model(**ONE_WAY[name])
    torch.save(theirs.state_dict(), tmp_path / "x.pth")
    batch = images()
    logits = ours_of(str(tmp_path / "x.pth"))(batch)
    torch.testing.assert_close(logits, theirs(batch), rtol=0, atol=1e-9)


def tokens_of(path: str) -> Tensor:
    """The normalized tokens of an encoder without a head."""
    found = pretrained(path, WANTED)
    encoder = Encoder(found.config, SIZE, 3).double().eval()
    encoder.load_state_dict(found.state)
    return encoder.norm(encoder.encode(encoder.tokens(images()))[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters"])
def test_an_encoder_of_dinov2_gives_the_same_tokens(kind: str, run: Run) -> None:
    """Without its classifier, which reads the mean of the patches, too."""
    import transformers

    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
    config = getattr(transformers, f"{kind}Config")(
        **{name: getattr(hf_config(), name) for name in names}
    )
    theirs = perturbed(getattr(transformers, f"{kind}ForImageClassification")(config))
    theirs.save_pretrained("theirs")
    expected = theirs.base_model(images()).last_hidden_state
    torch.testing.assert_close(tokens_of("theirs"), expected, rtol=0, atol=1e-9)


def test_an_encoder_of_siglip_gives_the_same_tokens(tmp_path: Path) -> None:
    theirs = timm_model(class_token=False, global_pool="map", num_classes=0)
    torch.save(theirs.state_dict(), tmp_path / "x.pth")
    expected = theirs.forward_features(images())
    torch.testing.assert_close(tokens_of(str(tmp_path / "x.pth")), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_timms_other_pooling_is_refused(
    run: Run, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import timm

    theirs = timm_model(global_pool=pooling, fc_norm=False)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: theirs)
    run.fails(
        "its head reads all tokens",
        "vit-train",
        *FITTING,
        "init_from=timm:vit_tiny_patch16_224",
    )


OTHERS = {
    "Beit": "Vision Transformer: enc",
    "DINOv3ViT": "not supported: the rotary positions of DINOv3",
    "Swin": "are not those of a Vision Transf",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_of_hugging_face_are_refused(run: Run, kind: str) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")()
    small = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    small |= {"embed_dim": 12, "depths": [1], "num_heads": [3], "image_size": 32}
    config.update({key: value for key, value in small.items() if hasattr(config, key)})
    getattr(transformers, f"{kind}Model")(config).save_pretrained("theirs")
    run.fails(OTHERS[kind], "vit-train", *FITTING, "init_from=theirs")


def test_timms_rotary_and_gated_models_are_refused_by_name(run: Run) -> None:
    import timm
    from timm.layers import SwiGLUPacked

    dinov3 = timm.create_model("vit_small_patch16_dinov3", depth=1, embed_dim=DIM, num_heads=HEADS)
    gated = timm_model(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU)
    for model, words in ((dinov3, "rotary positions as in BEiT, EVA"), (gated, "a SwiGLU MLP")):
        torch.save(model.state_dict(), "x.pth")
        run.fails(words, "vit-train", *FITTING, "init_from=x.pth")


# No command writes vit-pytorch's weights.
@pytest.mark.parametrize(
    "library, form", [each for each in FORMS if each[0] != "vit-pytorch"], ids=str
)
def test_there_and_back_is_the_same_to_the_bit(library: str, form: dict[str, Any]) -> None:
    theirs = MODELS[library](**form).state_dict()
    bare = unwrapped(theirs)
    layout = layout_of(bare)
    ours, _, left = layout.to_ours(bare)
    back = layout.to_theirs(ours)
    assert not left and back.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[key]) for key, value in back.items())


def test_a_preset_is_timms_model_of_the_same_name() -> None:
    import timm

    preset = "vit_tiny_patch16_224"
    values = OmegaConf.load(CONF_DIR / "model" / f"{preset}.yaml")
    del values["defaults"]
    theirs = perturbed(timm.create_model(preset, pretrained=False))
    model = build(ViTConfig(**values), (3, 224, 224), 1000).double().eval()
    model.load_state_dict(layout_of(theirs.state_dict()).to_ours(theirs.state_dict())[0])
    with torch.no_grad():
        expected, given = theirs(images(224)), model(images(224))
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-9)


def began(run: Run, source: str, *more: str) -> tuple[nn.Module, Any, str]:
    """The model of a run whose learning rate is so small that it stays where it began."""
    outcome = run.succeeds("vit-train", *FITTING, *more, f"init_from={source}")
    model, meta = vit_train.load("run/checkpoints/last.safetensors")
    return model, meta, " ".join(outcome.out.split())


def test_a_run_begins_with_a_folder_of_hugging_face(run: Run) -> None:
    from transformers import ViTImageProcessor

    theirs = hf_model().float()
    theirs.save_pretrained("theirs")
    ViTImageProcessor(image_mean=MEAN, image_std=STD).save_pretrained("theirs")
    model, meta, said = began(run, "theirs")
    assert list(meta.statistics.mean) == MEAN and list(meta.statistics.std) == STD
    assert (
        "the pretrained head is reused, because both models have the same number of classes "
        "(their names are unknown)" in said
    )
    batch = images().float()
    torch.testing.assert_close(model(batch), logits_of(theirs, batch), rtol=0, atol=1e-4)


def test_a_run_begins_with_a_folder_of_timm(run: Run) -> None:
    import timm
    from timm.models import save_for_hf

    sizes = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": DIM, "depth": DEPTH}
    sizes |= {"num_heads": HEADS, "mlp_ratio": MLP / DIM, "num_classes": CLASSES + 1}
    theirs = perturbed(timm.create_model("vit_tiny_patch16_224", **sizes)).float()
    save_for_hf(theirs, "theirs", model_args=sizes, safe_serialization=True)
    model, meta, said = began(run, "theirs")
    assert list(meta.statistics.mean) == [0.5, 0.5, 0.5]
    assert (
        f"pretrained head is not reused: it has {CLASSES + 1} classes, but the data have 7" in said
    )
    assert "assumed" not in said
    torch.testing.assert_close(model.cls_token, theirs.cls_token)
    assert model.head.weight.abs().max() < 1e-6


def test_timm_downloads_what_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    theirs = timm_model().float()
    theirs.pretrained_cfg = {"mean": tuple(MEAN), "std": tuple(STD)}
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: theirs)
    model, meta, said = began(run, "timm:vit_tiny_patch16_224")
    assert list(meta.statistics.mean) == MEAN and "timm's layout" in said
    batch = images().float()
    torch.testing.assert_close(model(batch), theirs(batch), rtol=0, atol=1e-4)


def test_errors_of_timm_are_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    def fail(name: str, pretrained: bool) -> None:
        raise OSError("no route to host\nand much more")

    run.fails("Unknown model", "vit-train", *SMALL, "init_from=timm:vit_tinny_patch16_224")
    monkeypatch.setattr(timm, "create_model", fail)
    run.fails(
        "from timm: no route to host\n",
        "vit-train",
        *SMALL,
        "init_from=timm:vit_tiny_patch16_224",
    )


def test_an_encoder_without_a_classifier_is_taken_without_its_pooler(run: Run) -> None:
    from transformers import ViTModel

    theirs = perturbed(ViTModel(hf_config(), add_pooling_layer=True)).float()
    theirs.save_pretrained("theirs")
    _, _, said = began(run, "theirs")
    assert "head is not reused: this model or the pretrained model has no head" in said
    assert "2 weights not used, such as pooler.dense.bias" in said


def test_a_distilled_deit_is_refused_with_its_reason(run: Run) -> None:
    from timm.models.deit import VisionTransformerDistilled
    from transformers import DeiTConfig, DeiTForImageClassification

    config = {k: v for k, v in hf_config().to_dict().items() if k in vars(DeiTConfig())}
    DeiTForImageClassification(DeiTConfig(**config)).save_pretrained("theirs")
    theirs = VisionTransformerDistilled(img_size=SIZE, patch_size=4, embed_dim=DIM, depth=2)
    torch.save(theirs.state_dict(), "distilled.pth")
    for source in ("theirs", "distilled.pth"):
        run.fails(
            "do not exist in this program's Vision Transf",
            "vit-train",
            *FITTING,
            f"init_from={source}",
        )
