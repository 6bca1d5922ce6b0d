"""Weights of other libraries in (init_from=) and out (vit-export), as a user moves them."""

import io
import json
import pickle
import shutil
import struct
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Run, SmallRun
from safetensors import safe_open
from safetensors import torch as safetensors
from torch import Tensor

import vit_train
from vit_train.base.reading import read_json
from vit_train.base.writing import write_json
from vit_train.config.model import CnnConfig, ModelConfig, ViTConfig
from vit_train.config.run import TrainConfig
from vit_train.interop import export as exporting
from vit_train.interop.exportable import exportable
from vit_train.interop.formats import FORMATS_BY_NAME
from vit_train.interop.layouts import HUGGING_FACE, TIMM
from vit_train.interop.pretrained import assumptions, pretrained
from vit_train.model.build import build
from vit_train.model.vit import VisionTransformer
from vit_train.run.weights import start_from
from vit_train.trained.checkpoint import Checkpoint
from vit_train.trained.folder import FOLDER
from vit_train.trained.model import Trained

State = dict[str, Tensor]
CONFIG = ViTConfig(embed_dim=16, depth=2, norm_eps=1e-6)
FEW = ["data.train_images=60", "data.test_images=20", "train.epochs=1", "optim.lr=1e-12"]
TRAIN = [*SMALL, *FEW, "hydra.run.dir=run"]
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


def weights(**settings: Any) -> State:
    """A random model of the small runs' shape, in timm's layout."""
    torch.manual_seed(3)
    model = VisionTransformer(replace(CONFIG, **settings), 40, 3, 10)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return {key: value.contiguous() for key, value in TIMM.to_theirs(model.state_dict()).items()}


def save(path: str, state: State) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    safetensors.save_file(state, path)


def test_pretrained_layers_learn_at_their_own_rates(run: Run) -> None:
    """One step of AdamW without decay moves a weight by its learning rate, here a small one."""
    state = {key: value.bfloat16() for key, value in STATE.items()}
    save("theirs/model.safetensors", state)
    config = {"architecture": "vit_x", "model_args": {"num_heads": 4}, "num_classes": 10}
    config["pretrained_cfg"] = {"mean": MEAN, "std": STD}
    Path("theirs/config.json").write_text(json.dumps(config), encoding="utf-8")
    rates = ["optim.lr=1e-3", "optim.layer_decay=0.1", "optim.head_lr_scale=3"]
    rates += ["optim.weight_decay=0", "optim.warmup_epochs=0", "train.batch_size=54"]
    said = run.succeeds("vit-train", *TRAIN, *rates, "init_from=theirs").said
    assert (
        "the encoder of theirs (timm's layout), its 10 by 10 positions resized to 8 by 8;" in said
    )
    assert (
        "the pretrained head is reused, because both models have the same number of classes "
        "(their names are unknown)" in said
    )
    assert "images are normalized as for the pretrained model" in said
    model, meta = vit_train.load("run/checkpoints/last.safetensors")
    assert (list(meta.statistics.mean), list(meta.statistics.std)) == (MEAN, STD)
    moved = {
        key: (value - state[key].float()).abs().mean().item()
        for key, value in model.state_dict().items()
        if key != "pos_embed.0.weight"
    }
    expected = {
        "patch_embed.proj.weight": 1e-6, "blocks.0.mlp.fc1.weight": 1e-5,
        "blocks.1.mlp.fc1.weight": 1e-4, "norm.weight": 1e-3, "head.weight": 3e-3,
    }  # fmt: skip
    assert {key: moved[key] for key in expected} == pytest.approx(expected, rel=0.2)
    assert max(moved.values()) < 4e-3


def pickled(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


class Runs:
    """An object that leaves a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("open('done', 'w')",))


KEY, ONE = "blocks.1.mlp.fc1.weight", torch.ones(16)
STATE = weights()
HF = HUGGING_FACE.to_theirs(VisionTransformer(CONFIG, 16, 3, 10).state_dict())
NEITHER = "it is damaged, or was not saved as safetensors or by PyTorch"
# What a file holds, or with a text beside it in a folder; and why it is refused.
BAD: dict[str, tuple[State | bytes | None, str | None, str]] = {
    "cut off": (safetensors.save(STATE)[:-100], None, "x.safetensors: it is damaged, or"),
    "a header of 10 GB": (struct.pack("<Q", 10**10) + b"{}", None, "it is damaged, or"),
    "code.pth": (pickled({"state_dict": Runs()}), None, "it is damaged, or contains more than"),
    "many weights of one number.pth": (
        *(pickled({"head.weight": torch.zeros(1).expand(10**6, 16)}), None),
        "it has weights that are larger than the file",
    ),
    "damaged.pth": (pickled(STATE)[:-30], None, NEITHER),
    "pickle.pth": (pickle.dumps({}), None, NEITHER),
    "noise.bin": (b"\0" * 99, None, NEITHER),
    "an empty folder": (
        None,
        "",
        "has no checkpoints/best.safetensors or last",
    ),
    "another layout": (
        *({"conv1.weight": torch.ones(3, 3)}, None),
        "its weights (conv1.weight, …) are not those of a Vision Transformer of timm, torchvision,",
    ),
    "our names without a description": (
        *({"pos_embed.0.weight": torch.ones(1, 65, 16)}, None),
        "it has weights of vit_train without their settings",
    ),
    "a description of ours": (
        *(safetensors.save(STATE, {"vit_train": '{"config": {}}'}), None),
        "the config's model must be one of: vit, cnn, resnet, fast_cnn",
    ),
    "a lost weight": (
        {k: v for k, v in STATE.items() if k != KEY},
        None,
        f'Missing key(s) in state_dict: "{KEY}"',
    ),
    "a lost block": (
        *({k: v for k, v in STATE.items() if "blocks.0.mlp" not in k}, None),
        "its weights do not have timm's names and shapes",
    ),
    "a weight of another shape": (
        *(STATE | {KEY: torch.ones(5, 16)}, None),
        f"size mismatch for {KEY}: ",
    ),
    "NaN": (
        STATE | {KEY: torch.full((64, 16), float("nan"))},
        None,
        f"{KEY} (torch.float32) must contain finite",
    ),
    "whole numbers": (STATE | {KEY: STATE[KEY].long()}, None, "torch.int64"),
    "odd positions": (
        *(STATE | {"pos_embed": torch.ones(1, 12, 16)}, None),
        "its 12 positions do not form a square grid",
    ),
    "a part of LayerScale": (
        *(STATE | {"blocks.0.ls1.gamma": ONE}, None),
        'Missing key(s) in state_dict: "blocks.0.ls2.gamma"',
    ),
    "LayerScale": (
        *(weights(layer_scale=1e-5), None),
        "does not match this model; to match it, set model.layer_scale=1e-05\n",
    ),
    "another depth": (
        *(weights(depth=3, mlp_dim=32), None),
        "does not match this model; to match it, set model.depth=3 model.mlp_dim=32\n",
    ),
    "a distilled DeiT": (
        *(HF | {"vit.embeddings.distillation_token": torch.ones(1, 1, 16)}, "{}"),
        "do not exist in this program's Vision Transformer: embeddings.distillation_token",
    ),
    "a distilled DeiT of timm": (
        *(STATE | {"dist_token": ONE}, None),
        "do not exist in this program's Vision Transformer: dist_token",
    ),
    "pooling by attention": (
        *(STATE | {"attn_pool.latent": ONE}, None),
        "its head reads all tokens: it must read the class token",
    ),
    "registers of another shape": (
        *(STATE | {"reg_token": torch.ones(2, 16)}, None),
        "its weights do not have timm's names and shapes",
    ),
    "DINOv3 of timm": (
        *(STATE | {"blocks.0.gamma_1": ONE}, None),
        "not supported: LayerScale or rotary positions as in BEiT, EVA and DINOv3",
    ),
    "a gated MLP": (
        *(STATE | {"blocks.0.mlp.fc2.weight": torch.ones(16, 32)}, None),
        "not supported: a SwiGLU MLP",
    ),
    "parallel branches": (
        *(STATE | {"blocks.0.layer_scale1.lambda1": ONE}, None),
        "do not exist in this program's Vision Transformer: blocks.0.layer_scale1.lambda1",
    ),
    "an odd config": (
        HF,
        '{"num_attention_heads": "x"}',
        "does not describe a model",
    ),
    "another activation": (
        HF,
        '{"hidden_act": "relu"}',
        "its activation is relu, but must be one of",
    ),
    "another kind": (
        *({"beit.encoder.layer.0.lambda_1": ONE}, '{"model_type": "beit"}'),
        "its weights (beit.encoder.layer.0.lambda_1, …) are not those of a Vision Transformer of",
    ),
    "a mean that includes the class token": (
        *(STATE, '{"global_pool": "avg"}'),
        "its head reads all tokens: it must read the class token",
    ),
    "timm's rpn": (
        *(STATE, '{"architecture": "vit_base_patch16_rpn_224"}'),
        "not supported: a LayerNorm after attention and MLP",
    ),
    "no heads": (STATE, '{"model_args": {"num_heads": 0}}', "model.num_heads=0 must be at least 1"),
    "no config": (HF, "[]", "config.json is not a JSON object"),
    "a broken config": (HF, '{"id2label": [1]}', "config.json, does not describe a model"),
}


@pytest.mark.parametrize("name", BAD)
def test_unsupported_weights_are_refused_with_a_reason(name: str, run: Run) -> None:
    content, config, words = BAD[name]
    source = f"x{Path(name).suffix or '.safetensors'}" if config is None else "theirs"
    path = Path(source) if config is None else Path(source, "model.safetensors")
    path.parent.mkdir(exist_ok=True)
    if config:
        path.with_name("config.json").write_text(config, encoding="utf-8")
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else safetensors.save(content))
    with pytest.raises(ValueError) as refusal:
        found = pretrained(source, CONFIG)
        start_from(TrainConfig(init_from=source), found, VisionTransformer(CONFIG, 32), ["a", "b"])
    said = f"{refusal.value}\n"
    assert said.startswith(f"init_from={source}") and words in said and len(said) < 500
    assert not Path("done").exists()


def test_a_refusal_is_short_at_the_command_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x.safetensors").write_bytes(safetensors.save(STATE)[:-100])
    words = "vit-train: init_from=x.safetensors: it is damaged, or"
    assert len(run.fails(words, "vit-train", *TRAIN, "init_from=x.safetensors").err) < 250
    monkeypatch.setitem(sys.modules, "timm", None)
    run.fails(
        "timm cannot be imported (import of timm halted; None in sys.modules): pip install",
        "vit-train",
        *TRAIN,
        "init_from=timm:vit_tiny_patch16_224",
    )


def test_eps_is_that_of_the_weights_unless_it_is_set(run: Run) -> None:
    """And a run that starts from that run has it, too."""
    save("x.safetensors", STATE)
    for folder, more, eps in (
        ("run", ["init_from=x.safetensors"], 1e-6),
        ("set", ["init_from=x.safetensors", "model.norm_eps=1e-5"], 1e-5),
        ("next", ["init_from=run"], 1e-6),
        ("random", [], 1e-5),
    ):
        outcome = run.succeeds("vit-train", *SMALL, *FEW, *more, f"hydra.run.dir={folder}")
        model, meta = vit_train.load(f"{folder}/checkpoints/last.safetensors")
        noted = read_json(Path(folder, "summary.json"))["config"]["model"]["norm_eps"]
        assert noted == meta.config.model.norm_eps == model.norm.eps == eps
        assumed = (
            "assumed, because the file does not state them: model.num_heads=4 "
            f"model.norm_eps={eps} model.activation=gelu model.head=token"
        )
        assert (assumed in outcome.said) == ("init_from=x.safetensors" in more)
    run.says("norm_eps", "vit-results", "run", "random", "--out=.")


def test_what_weights_do_not_show_is_as_set_or_as_usual(run: Run) -> None:
    save("x.safetensors", STATE)
    found = pretrained("x.safetensors", replace(CONFIG, activation="gelu_tanh"))
    assert found.config.activation == "gelu_tanh" and "activation" in found.assumed
    assert found.config.num_heads == CONFIG.num_heads
    save("wider.safetensors", weights(embed_dim=128, depth=1))
    found = pretrained("wider.safetensors", CONFIG)
    assert found.config.num_heads == 2 and "num_heads" in found.assumed  # 64 wide, as published
    # 80 wide, as ViT-H
    assert assumptions(TIMM, {}, {"embed_dim": 1280}, CONFIG)["num_heads"] == 16


def test_a_class_token_without_a_position_gets_one_of_zeros(run: Run) -> None:
    """As in DeiT-III and FlexiViT."""
    positions = STATE["pos_embed"][:, 1:].contiguous()
    save("x.safetensors", STATE | {"pos_embed": positions})
    table = pretrained("x.safetensors", CONFIG).state["pos_embed.0.weight"]
    assert table.shape == (1, 101, 16) and not table[:, 0].any()
    assert torch.equal(table[:, 1:], positions)


def test_a_run_can_start_from_the_builtin_model() -> None:
    found = pretrained("builtin:cifar10", CONFIG)
    assert found.classes is not None and found.classes[3] == "cat" and found.statistics is not None
    assert len(found.state["head.weight"]) == 10 and not found.left


def test_a_frozen_encoder_stays_the_same_to_the_bit_also_when_resumed(run: Run) -> None:
    """And so does the normalization, which is set here."""
    torch.save({"model_ema": STATE, "args": Namespace(lr=0.1)}, "x.pth")
    probe = [*TRAIN, "init_from=x.pth", "train.freeze=encoder", "optim.lr=0.1", "train.epochs=2"]
    probe += ["data.image_size=40", "train.ema_decay=0.5", "train.max_minutes=1e-9"]
    words = "model.head=token; the encoder stays frozen (train.freeze=encoder)"
    run.says(words, "vit-train", *probe, "data.mean=[0.1,0.2,0.3]", "data.std=[1,2,3]")
    Path("x.pth").unlink()
    run.succeeds("vit-train", "resume=run", "train.max_minutes=null")
    model, meta = vit_train.load("run/checkpoints/last.safetensors")
    assert meta.statistics == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    for key, value in TIMM.to_theirs(model.state_dict()).items():
        assert torch.equal(value, STATE[key]) != key.startswith("head."), key
    kept = Checkpoint.load(Path("run/checkpoints/last.safetensors")).optimizers
    assert list(map(len, kept)) == [2]  # the head's weight and bias


SAID = "the same top-1 on 256 of 256 random images, relative logit error"


def test_a_torch_program_takes_every_batch_size(run: Run, small_run: SmallRun) -> None:
    model, meta = vit_train.load(small_run("finished"))
    assert "60 of 60 test images" in run.says(SAID, "vit-export", "ckpt=run", "format=torch").out
    about = {"vit_train.json": ""}
    program = torch.export.load("run/export/model.pt2", extra_files=about).module()
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in meta.statistics)
    for count in (1, 5, 64):
        images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
        expected = model((images / 255 - mean) / std)
        torch.testing.assert_close(program(images), expected, rtol=1e-4, atol=1e-5)
    assert json.loads(about["vit_train.json"])["classes"] == meta.classes
    card = Path("run/export/model.pt2.md").read_text(encoding="utf-8")
    shown = SAID, "test images, final weights", "torch.export.load", "ms for one image on"
    assert all(words in card for words in shown)


def test_a_calibrated_export_has_the_probabilities_of_a_prediction(
    run: Run, small_run: SmallRun
) -> None:
    small_run("finished")
    export = ["vit-export", "ckpt=run", "format=torch", "calibrated=true"]
    run.fails("fitted at the training image size: to calibrate the model", *export)
    run.succeeds("vit-eval", "ckpt=run")
    trained = vit_train.load("run")
    temperature = trained.meta.temperature
    assert temperature is not None and temperature != 1
    run.says(SAID, *export)
    about = {"vit_train.json": ""}
    program = torch.export.load("run/export/model.pt2", extra_files=about).module()
    exported = json.loads(about["vit_train.json"])
    assert exported["temperature"] == 1 and trained.meta.thresholds
    assert exported["thresholds"] == trained.meta.thresholds
    image = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
    (expected,) = trained.classify(image, topk=1)
    found = program(image).softmax(1).max().item()
    assert found == pytest.approx(expected.probability, rel=1e-4)


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other library."""
    monkeypatch.setattr(exporting, "RANDOM_IMAGES", 8)
    monkeypatch.setattr(exporting, "find_spec", lambda package: None)


def test_safetensors_are_weights_to_start_from(run: Run, few_images: None) -> None:
    outcome = run.says(
        "on 8 of 8 random images",
        "vit-export",
        "ckpt=builtin:cifar10",
        "format=safetensors",
        "out=x.safetensors",
    )
    assert "not checked on test images: cannot read CIFAR-10" in outcome.out
    model, meta = vit_train.load("builtin:cifar10")
    found = pretrained("x.safetensors", ViTConfig())
    assert all(torch.equal(value, found.state[key]) for key, value in model.state_dict().items())
    assert (found.classes, found.statistics) == (meta.classes, meta.statistics)
    with safe_open("x.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["vit_train"])
    assert about["images_seen"] == meta.images_seen and "/" not in about["config"]["data"]["root"]


@pytest.mark.parametrize("form, source", [("timm", "builtin:cifar10"), ("hf", "run")])
def test_a_folder_for_a_library_is_read_back_without_it(
    run: Run, small_run: SmallRun, form: str, source: str, few_images: None
) -> None:
    """Positions that are no table there become one; the bits are the same."""
    small_run("finished")
    words = "random images, relative logit error 0.0e+00"
    run.says(words, "vit-export", f"ckpt={source}", f"format={form}", "out=theirs")
    assert "## Use" in Path("theirs/README.md").read_text(encoding="utf-8")
    model, meta = vit_train.load(source)
    found = pretrained("theirs", ViTConfig())
    assert found.classes == meta.classes and found.config.num_heads == model.config.num_heads
    assert torch.equal(found.state["pos_embed.0.weight"], model.pos_embed[0]())


def test_a_head_is_reused_whatever_the_order_of_its_classes(
    run: Run, small_run: SmallRun, few_images: None
) -> None:
    small_run("finished")
    run.succeeds("vit-export", "ckpt=run", "format=timm", "out=theirs")
    state = safetensors.load_file("theirs/model.safetensors")
    head = {key: state[key] for key in ("head.weight", "head.bias")}
    turned = {key: value.roll(3, 0) for key, value in head.items()}
    save("theirs/model.safetensors", state | turned)
    about = read_json(Path("theirs/config.json"))
    names = about["label_names"]
    write_json(Path("theirs/config.json"), about | {"label_names": names[-3:] + names[:-3]})
    tune = [*SMALL, *FEW, "hydra.run.dir=tuned", "init_from=theirs"]
    run.says("head is reused for 10 classes of the same name;", "vit-train", *tune)
    model, _ = vit_train.load("tuned/checkpoints/last.safetensors")
    torch.testing.assert_close({key: model.state_dict()[key] for key in head}, head)
    renamed = ["pig", *names[-2:], *names[:-3]]  # instead of names[-3]
    write_json(Path("theirs/config.json"), about | {"label_names": renamed})
    words = f"reused for 9 classes of the same name, new: {names[-3]}, dropped: pig"
    run.says(words, "vit-train", *tune[:-2], "hydra.run.dir=renamed", "init_from=theirs")
    rows = vit_train.load("renamed/checkpoints/last.safetensors").model.head.weight
    kept = [number for number in range(10) if number != 7]
    torch.testing.assert_close(rows[kept], head["head.weight"][kept])
    assert rows[7].abs().max() < 1e-6


def test_missing_parts_are_exported_as_none_or_zeros(run: Run, few_images: None) -> None:
    lacks = ["model.positions=none", "model.proj_bias=false", "model.mlp_bias=false"]
    run.succeeds("vit-train", *SMALL, *lacks, "train.max_minutes=1e-9", "hydra.run.dir=run")
    run.says(
        "images, relative logit error 0.0e+00",
        "vit-export",
        "ckpt=run",
        "format=timm",
        "out=theirs",
    )
    assert read_json(Path("theirs/config.json"))["model_args"]["pos_embed"] == "none"
    assert not pretrained("theirs", ViTConfig()).state["blocks.0.attn.proj.bias"].any()


def test_registers_are_trained_resumed_explained_and_exported(run: Run, few_images: None) -> None:
    train = [*SMALL, "train.epochs=1", "model.registers=2", "hydra.run.dir=run"]
    run.succeeds("vit-train", *train, "train.max_minutes=1e-9")
    run.succeeds("vit-train", "resume=run", "train.max_minutes=null")
    run.succeeds("vit-explain", "ckpt=run", "method=all", "score=5")
    run.fails("support model.registers=2", "vit-explain", "ckpt=run", "html=x.html")
    run.fails("support model.registers=2", "vit-export", "ckpt=run", "format=hf")
    model, _ = vit_train.load("run")
    for form, out in (("safetensors", "x.safetensors"), ("timm", "theirs")):
        words = "random images, relative logit error 0.0e+00"
        run.says(words, "vit-export", "ckpt=run", f"format={form}", f"out={out}")
        assert torch.equal(pretrained(out, ViTConfig()).state["reg_token"], model.reg_token)
    assert safetensors.load_file("theirs/model.safetensors")["pos_embed"].shape == (1, 67, 16)
    # An autoencoder begins with them, too.
    tune = [*SMALL[:2], "task=reconstruct", "init_from=run", "train.epochs=1", "hydra.run.dir=mae"]
    run.says("model.registers=2", "vit-train", *tune)
    run.succeeds("vit-explain", "ckpt=mae")


CANNOT = [
    (CnnConfig(), "timm", "model.name=cnn: choose one of: onnx, onnx_int8, deploy, torch"),
    (CnnConfig(), "safetensors", "model.name=cnn: choose one of: onnx, onnx_int8, deploy, torch"),
    (
        ViTConfig(positions="relative", pre_norm=False),
        "hf",
        "model.pre_norm=False, model.positions=relative: choose one of: onnx, onnx_int8, deploy, ",
    ),
    (ViTConfig(final_norm=False), "timm", "model.final_norm=False: choose one"),
    (ViTConfig(head="gap"), "hf", "model.head=gap: "),
    (ViTConfig(qk_norm=True, layer_scale=0.1), "hf", "model.qk_norm=True, model.layer_scale=0.1: "),
    (ViTConfig(stem="conv", norm_eps=1e-3), "timm", "model.stem=conv, model.norm_eps=0.001: "),
]


@pytest.mark.parametrize("config, form, words", CANNOT, ids=str)
def test_an_unsupported_model_is_refused_with_the_formats_that_support_it(
    config: ModelConfig, form: str, words: str
) -> None:
    _, meta = vit_train.load("builtin:cifar10")
    meta = replace(meta, config=replace(meta.config, model=config))
    model = Trained(build(config, meta.image_shape, 10), meta)
    with pytest.raises(ValueError, match=f"format={form} does not support {words}"):
        exporting.require_format_supports(exportable(model, True, False), form)


@pytest.mark.parametrize("form, out", [("safetensors", "x.safetensors"), ("hf", "theirs")])
def test_an_export_with_other_predictions_is_deleted(
    run: Run,
    small_run: SmallRun,
    form: str,
    out: str,
    few_images: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_run("finished")
    chosen = FORMATS_BY_NAME[form]
    off = replace(chosen, open=lambda *what: lambda images: chosen.open(*what)(images) * 1.0002)
    monkeypatch.setitem(FORMATS_BY_NAME, form, off)
    Path("old").mkdir()
    export = ["vit-export", "ckpt=run", f"format={form}"]
    run.fails("old already exists: delete it", *export, "out=old")
    before = set(Path().iterdir())
    run.fails("the file was deleted: the same top-1 on 8 of", *export, f"out={out}")
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize(
    "settings, words",
    [
        (
            "format=tflite",
            "format=tflite must be one of: onnx, onnx_int8, deploy, torch, safetensors, timm, hf",
        ),
        ("format=onnx", "needs onnx, onnxscript, onnxruntime: pip install -e '.[export]'"),
        ("format=torch", "no checkpoint at nowhere"),
    ],
)
def test_bad_settings_are_refused_at_once(
    run: Run, few_images: None, settings: str, words: str
) -> None:
    run.fails(words, "vit-export", "ckpt=nowhere", *settings.split())


def test_a_checkpoint_is_never_replaced_by_its_export(run: Run) -> None:
    path = Path(shutil.copy(FOLDER / "cifar10.safetensors", "model.safetensors"))
    before = path.read_bytes()
    arguments = [f"ckpt={path}", "format=safetensors", f"out=./{path}"]
    run.fails("is the checkpoint itself", "vit-export", *arguments)
    assert path.read_bytes() == before


def test_logits_that_differ_by_rounding_are_the_same_class() -> None:
    expected = torch.tensor([[1.0, 1.0 - 1e-6, 0.0], [2.0, 0.0, 1.0]])
    rounded = expected + torch.tensor([[-2e-6, 0, 0], [0, 0, 0]])
    for scale in (1e-4, 1, 1e4):
        found = exporting.agreement(scale * expected, scale * rounded)
        assert found == (2, pytest.approx(1e-6, rel=0.1))
        assert exporting.agreement(scale * expected, scale * expected.flip(1))[0] == 0
    assert exporting.agreement(expected, expected) == (2, 0)
    assert exporting.agreement(expected, expected.flip(1)) == (0, 0.5)
    for other in (torch.nan, torch.inf):
        _, difference = exporting.agreement(expected, torch.full((2, 3), other))
        assert difference > 1e30


def test_a_card_has_the_results_of_its_run(tmp_path: Path) -> None:
    model = exportable(vit_train.load("builtin:cifar10"), True, False)
    card = exporting.model_card(model, FORMATS_BY_NAME["torch"], "x.pt2", ["checked"])
    assert "| test images, final weights | bf16 | 91.33% | 90.76% to 91.87% | 10,000 |" in card
    assert "init_from=outputs/clock_90_cpu_mae/0 " in card and "(0.8: 0.215, 0.9: 0.215," in card
    path = tmp_path / "checkpoints/x.safetensors"
    elsewhere = replace(model, meta=replace(model.meta, path=path))
    for summary in (None, [1], {"command": 3}, {"test": {"final": None}}, {"test": {"final": {}}}):
        if summary is not None:
            write_json(tmp_path / "summary.json", summary)  # type: ignore[arg-type]
        card = exporting.model_card(elsewhere, FORMATS_BY_NAME["torch"], "x.pt2", ["checked"])
        assert "- checked\n\n## Use" in card
