"""Fine-tuning from weights of other libraries, as a user does it at the command line."""

import io
import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, SMALL_MODEL, Run, SmallRun
from safetensors.torch import save_file
from torch import Tensor

import vit_train
from vit_train.base.reading import read_json
from vit_train.interop.huggingface import HUGGING_FACE
from vit_train.interop.pretrained import pretrained
from vit_train.interop.timm import TIMM
from vit_train.model.config import ViTConfig
from vit_train.model.vit import VisionTransformer
from vit_train.runs.checkpoint import Checkpoint
from vit_train.runs.config import TrainConfig
from vit_train.training.first_model import start_from

State = dict[str, Tensor]
CONFIG = ViTConfig(embed_dim=16, depth=2, norm_eps=1e-6)
FEW = ["data.train_images=60", "data.test_images=20", "train.epochs=1", "optim.lr=1e-12"]
TRAIN = [*SMALL, *FEW, "hydra.run.dir=run"]
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


def weights(**settings: Any) -> State:
    """A random model of the small runs' shape, in timm's layout."""
    torch.manual_seed(3)
    config = ViTConfig(**vars(CONFIG) | settings)
    model = VisionTransformer(config, 40, 3, 10)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return TIMM.to_theirs(model.state_dict())


def save(path: str, state: State, metadata: dict[str, str] | None = None) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in state.items()}, path, metadata)


def words_of(text: str) -> str:
    """The text without its line breaks, which depend on the width."""
    return " ".join(text.split())


def test_weights_are_taken_and_layers_learn_at_their_own_rates(run: Run) -> None:
    """One step of AdamW without decay moves a weight by its learning rate, here a small one."""
    state = {key: value.bfloat16() for key, value in weights().items()}
    save("theirs/model.safetensors", state)
    config = {"architecture": "vit_x", "model_args": {"num_heads": 4}, "num_classes": 10}
    config["pretrained_cfg"] = {"mean": MEAN, "std": STD}
    Path("theirs/config.json").write_text(json.dumps(config), encoding="utf-8")
    rates = ["optim.lr=1e-3", "optim.layer_decay=0.1", "optim.head_lr_scale=3"]
    rates += ["optim.weight_decay=0", "optim.warmup_epochs=0", "train.batch_size=54"]
    outcome = run("vit-train", *TRAIN, *rates, "init_from=theirs")
    assert outcome.status == 0, outcome.err
    said = words_of(Path("run/train.log").read_text(encoding="utf-8"))
    assert "the encoder of theirs (timm's layout), its 101 positions resized to 65;" in said
    assert "its head is reused, for the same number of classes, whose names are not known" in said
    assert "images are normalized as for that model" in said
    model, meta = vit_train.load("run/checkpoints/last.safetensors")
    assert (list(meta.statistics.mean), list(meta.statistics.std)) == (MEAN, STD)
    moved = {
        key: (value - state[key].float()).abs().mean()
        for key, value in model.state_dict().items()
        if key != "pos_embed.0.weight"
    }
    for key, expected in {
        "patch_embed.proj.weight": 1e-6,
        "blocks.0.mlp.fc1.weight": 1e-5,
        "blocks.1.mlp.fc1.weight": 1e-4,
        "norm.weight": 1e-3,
        "head.weight": 3e-3,
    }.items():
        assert moved[key] == pytest.approx(expected, rel=0.2), key
    assert max(moved.values()) < 4e-3


def bare(code: str) -> bytes:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, (code,))

    buffer = io.BytesIO()
    torch.save({"state_dict": Runs()}, buffer)
    return buffer.getvalue()


def changed(change: Callable[[State], object]) -> Callable[[], None]:
    def write() -> None:
        state = weights()
        change(state)
        save("x.safetensors", state)

    return write


def cut() -> None:
    save("x.safetensors", weights())
    content = Path("x.safetensors").read_bytes()
    Path("x.safetensors").write_bytes(content[:-100])


def write(path: str, content: bytes) -> Callable[[], object]:
    def written() -> None:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(content)

    return written


def deflated() -> None:
    torch.save({"head.weight": torch.zeros(1000, 1000)}, "y")
    with zipfile.ZipFile("y") as old, zipfile.ZipFile("x.pth", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    Path("y").unlink()


def distilled() -> None:
    model = VisionTransformer(CONFIG, 16, 3, 10)
    token = {"vit.embeddings.distillation_token": torch.ones(1, 1, 16)}
    save("theirs/model.safetensors", HUGGING_FACE.to_theirs(model.state_dict()) | token)


def beit() -> None:
    save("theirs/model.safetensors", {"beit.encoder.layer.0.lambda_1": torch.ones(3)})
    Path("theirs/config.json").write_text('{"model_type": "beit"}', encoding="utf-8")


def averaged() -> None:
    save("theirs/model.safetensors", weights())
    Path("theirs/config.json").write_text('{"global_pool": "avg"}', encoding="utf-8")


def with_config(content: str) -> Callable[[], None]:
    def written() -> None:
        model = VisionTransformer(CONFIG, 16, 3, 10)
        save("theirs/model.safetensors", HUGGING_FACE.to_theirs(model.state_dict()))
        Path("theirs/config.json").write_text(content, encoding="utf-8")

    return written


KEY = "blocks.1.mlp.fc1.weight"
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "cut off": (cut, "x.safetensors: it is damaged: "),
    "a header of 10 GB": (
        write("x.safetensors", struct.pack("<Q", 10**10) + b"{}"),
        "it is damaged: ",
    ),
    "code in a pickle": (
        write("x.pth", bare("open('done', 'w')")),
        "it cannot be read without running code: ",
    ),
    "compressed records": (deflated, "x.pth: its records are compressed"),
    "a number a billion times": (
        lambda: torch.save({"head.weight": torch.zeros(1).expand(10**9, 16)}, "x.pth"),
        "it has a tensor of more numbers than the file holds",
    ),
    "a damaged archive": (
        lambda: (deflated(), Path("x.pth").write_bytes(Path("x.pth").read_bytes()[:-30])),
        "it is neither a safetensors nor a PyTorch file",
    ),
    "a bare pickle": (write("x.pth", pickle.dumps({})), "it is a bare pickle, which could run"),
    "noise": (write("x.bin", b"\0" * 99), "it is neither a safetensors nor a PyTorch file"),
    "an empty folder": (lambda: Path("theirs").mkdir(), "holds neither a run nor weights: model"),
    "another layout": (
        lambda: save("x.safetensors", {"conv1.weight": torch.ones(3, 3)}),
        "its weights (conv1.weight, …) are in no layout that is known: timm, torchvision,",
    ),
    "a description of ours": (
        lambda: save("x.safetensors", weights(), {"vit_train": '{"config": {}}'}),
        "x.safetensors: its metadata.classes is missing",
    ),
    "a lost weight": (changed(lambda state: state.pop(KEY)), f"it lacks {KEY}"),
    "a lost block": (
        changed(lambda state: [state.pop(k) for k in list(state) if "blocks.0.mlp" in k]),
        "it lacks whole blocks",
    ),
    "a weight of another shape": (
        changed(lambda state: state.update({KEY: torch.ones(5, 16)})),
        f"{KEY} has the shape (5, 16), not (64, 16)",
    ),
    "NaN": (changed(lambda state: state[KEY][3].fill_(float("nan"))), f"{KEY} holds NaN"),
    "whole numbers": (changed(lambda state: state.update({KEY: state[KEY].long()})), "holds int64"),
    "odd positions": (
        changed(lambda state: state.update({"pos_embed": torch.ones(1, 12, 16)})),
        "its 12 positions are not those of a square image",
    ),
    "a part of LayerScale": (
        changed(lambda state: state.update({"blocks.0.ls1.gamma": torch.ones(16)})),
        "it lacks blocks.0.ls2.gamma",
    ),
    "LayerScale": (
        lambda: save("x.safetensors", weights(layer_scale=1e-5)),
        "does not match this model; to match it, set model.layer_scale=1e-05\n",
    ),
    "a distilled DeiT": (distilled, "it has a distillation token: take the same model without"),
    "another depth": (
        lambda: save("x.safetensors", weights(depth=3, mlp_dim=32)),
        "does not match this model; to match it, set model.depth=3 model.mlp_dim=32\n",
    ),
    "an odd config": (with_config('{"num_attention_heads": "x"}'), "has no number of heads"),
    "another activation": (with_config('{"hidden_act": "relu"}'), "its activation is relu, not"),
    "another kind": (
        beit,
        "it is Hugging Face's beit, not one of vit, deit, vit_mae, vit_msn: its weights (beit.",
    ),
    "a mean that includes the class token": (
        averaged,
        "it classifies all its tokens together, not the class token alone",
    ),
    "no config": (with_config("[]"), "config.json is not a JSON object"),
    "a broken config": (with_config('{"id2label": [1]}'), "config.json does not describe a model"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_taken_is_refused_with_its_reason(name: str, run: Run) -> None:
    make, words = BAD[name]
    make()
    (source,) = (path.name for path in Path().iterdir())
    with pytest.raises(ValueError) as refusal:
        found = pretrained(source, CONFIG)
        config = TrainConfig(model=CONFIG, init_from=source)
        start_from(config, found, VisionTransformer(CONFIG, 32), ["a", "b"])
    said = f"{refusal.value}\n"
    assert said.startswith(f"init_from={source}") and words in said and len(said) < 500
    assert not Path("done").exists()


def test_a_refusal_is_short_at_the_command_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cut()
    outcome = run("vit-train", *TRAIN, "init_from=x.safetensors")
    said = "vit-train: init_from=x.safetensors: it is damaged: "
    assert outcome.status == 1 and outcome.err.startswith(said) and len(outcome.err) < 200
    monkeypatch.setitem(sys.modules, "timm", None)
    outcome = run("vit-train", *TRAIN, "init_from=timm:vit_tiny_patch16_224")
    assert "needs timm: pip install" in outcome.err


def eps_of(run: str) -> tuple[float, float]:
    """What the run's file says, and what its model has."""
    model, meta = vit_train.load(f"{run}/checkpoints/last.safetensors")
    assert isinstance(meta.config.model, ViTConfig)
    written = read_json(Path(run, "summary.json"))["config"]["model"]["norm_eps"]
    assert written == meta.config.model.norm_eps
    return written, model.norm.eps


def test_eps_is_that_of_the_weights_unless_it_is_set(run: Run) -> None:
    """And a run that starts from that run has it, too."""
    save("x.safetensors", weights())
    small = [*SMALL, *FEW]
    for folder, more, eps in (
        ("run", ["init_from=x.safetensors"], 1e-6),
        ("set", ["init_from=x.safetensors", "model.norm_eps=1e-5"], 1e-5),
        ("next", ["init_from=run"], 1e-6),
        ("random", [], 1e-5),
    ):
        outcome = run("vit-train", *small, *more, f"hydra.run.dir={folder}")
        assert outcome.status == 0, outcome.err
        assert eps_of(folder) == (eps, eps)
        if "init_from=x.safetensors" in more:
            said = words_of(Path(folder, "train.log").read_text(encoding="utf-8"))
            assert (
                "assumed, because the file does not say it: model.num_heads=4 "
                f"model.norm_eps={eps} model.activation=gelu model.head=token"
            ) in said
    outcome = run("vit-results", "run", "random", "--out=.")
    assert "norm_eps" in outcome.out, outcome.err


def test_what_is_assumed_is_as_set(run: Run) -> None:
    save("x.safetensors", weights())
    found = pretrained("x.safetensors", ViTConfig(**vars(CONFIG) | {"activation": "gelu_tanh"}))
    assert found.config.activation == "gelu_tanh" and "activation" in found.assumed


def test_a_run_from_before_eps_could_be_null_is_the_same_run(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted", "run")
    assert "norm_eps: 1.0e-05" in Path("run/config.yaml").read_text(encoding="utf-8")
    outcome = run(
        "vit-train", "resume=run", "model=tiny", *SMALL_MODEL[:2], "train.max_minutes=null"
    )
    assert outcome.status == 0, outcome.err


def test_a_class_token_without_a_position_gets_one_of_zeros(run: Run) -> None:
    """As in DeiT-III and FlexiViT."""
    state = weights()
    state["pos_embed"] = state["pos_embed"][:, 1:]
    save("x.safetensors", state)
    table = pretrained("x.safetensors", CONFIG).state["pos_embed.0.weight"]
    assert table.shape == (1, 101, 16) and not table[:, 0].any()
    assert torch.equal(table[:, 1:], state["pos_embed"])


def test_the_built_in_model_is_one_to_start_from() -> None:
    found = pretrained("builtin:cifar10", CONFIG)
    assert found.classes is not None and found.classes[3] == "cat" and found.statistics is not None
    assert len(found.state["head.weight"]) == 10 and not found.left


def test_a_frozen_encoder_stays_the_same_to_the_bit_also_when_resumed(run: Run) -> None:
    """And so does the normalization, which is set here."""
    state = weights()
    torch.save({"model_ema": state}, "x.pth")
    probe = [*TRAIN, "init_from=x.pth", "train.freeze=encoder", "optim.lr=0.1", "train.epochs=2"]
    probe += ["data.image_size=40", "train.ema_decay=0.5"]
    stop = ["data.mean=[0.1,0.2,0.3]", "data.std=[1,2,3]", "train.max_minutes=1e-9"]
    outcome = run("vit-train", *probe, *stop)
    said = "assumed, because the file does not say it: model.num_heads=4"
    assert outcome.status == 0 and said in words_of(outcome.out)
    assert "model.head=token; the encoder is not trained" in words_of(outcome.out)
    Path("x.pth").unlink()
    assert run("vit-train", "resume=run", "train.max_minutes=null").status == 0
    model, meta = vit_train.load("run/checkpoints/last.safetensors")
    assert meta.statistics == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    for key, value in TIMM.to_theirs(model.state_dict()).items():
        if key.startswith("head."):
            assert not torch.equal(value, state[key])
        else:
            assert torch.equal(value, state[key])
    kept = Checkpoint.load(Path("run/checkpoints/last.safetensors")).optimizers
    assert list(map(len, kept)) == [2]  # the head's weight and bias


def test_a_random_encoder_is_not_frozen(run: Run) -> None:
    for more, words in (
        (["train.freeze=encoder"], "with pretrained weights to keep: init_from=RUN"),
        (["train.freeze=encoder", "model=cnn"], "train.freeze=encoder needs a Vision Transformer"),
    ):
        settings = [each for each in FEW if "model" not in each]
        outcome = run("vit-train", *settings, *more)
        assert outcome.status == 1 and words in outcome.err, outcome.err
