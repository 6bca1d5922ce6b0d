"""vit-check: each fault of one's own parts is named before the first step of any run."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from conftest import Run, blank
from test_docs import ROOT

from vit_train.commands import errors
from vit_train.config.model import ViTConfig
from vit_train.config.training import OPTIM_CONFIGS, OptimConfig
from vit_train.model.attention import ATTENTIONS, Attention
from vit_train.model.vit import VisionTransformer

HEADER = """
import math
from dataclasses import dataclass

import torch
from torch import nn

from vit_train.config.model import MODEL_CONFIGS, ViTConfig
from vit_train.config.training import OPTIM_CONFIGS, OptimConfig
from vit_train.loop.trainer import CALLBACKS, Callback
from vit_train.model.attention import ATTENTIONS, Attention
from vit_train.model.layers import ACTIVATIONS
from vit_train.model.positions import POSITIONS, AttentionPositions
from vit_train.model.vit import VisionTransformer
"""
ATTENTION = """
def scattered(x):
    return torch.zeros(x.shape).scatter(0, torch.zeros(x.shape, dtype=torch.long), x)

class Gate(nn.Linear):
    def reset_parameters(self):  # an initialization of its own, which model.init need not replace
        nn.init.kaiming_uniform_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)

class Mine(Attention):
    def __init__(self, config, *parts):
        super().__init__(config, *parts)
        self.proj = Gate(config.embed_dim, config.embed_dim)

    def mix(self, q, k, v, bias, need_weights, is_causal=False):
        weights = (q @ k.mT * q.shape[-1] ** -0.5 + (0 if bias is None else bias)).softmax(-1)
        {}

ATTENTIONS["mine"] = Mine
"""
SHAPE = """
class Square(AttentionPositions):
    def __init__(self, grid, dim, prefix):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(math.prod(grid) + prefix, math.prod(grid) + prefix))

    def bias(self, q, k):
        return self.table

POSITIONS["square"] = Square
"""
SIGNATURE = """
class Notes(Callback):
    def on_epoch(self, trainer, log):
        pass

CALLBACKS.append(Notes)
"""
INITIALIZATION = """
class Other(VisionTransformer):
    def __init__(self, config, *facts):
        super().__init__(config, *facts)
        self.blocks[0].attn.qkv = nn.Linear(config.embed_dim, 3 * config.embed_dim)

@dataclass
class OtherConfig(ViTConfig):
    builds = Other
    name: str = "other"
    depth: int = 1

MODEL_CONFIGS["other"] = OtherConfig
"""
MOMENTS = """
class Adam(torch.optim.Adam):
    moments = ["exp_avg"]

@dataclass
class AdamConfig(OptimConfig):
    builds = lambda model, config: [Adam(model.parameters(), config.peak_lr)]
    name: str = "adam"

OPTIM_CONFIGS["adam"] = AdamConfig
"""
ERROR = """
def broken(x):
    raise RuntimeError("no luck")

ACTIVATIONS["broken"] = broken
"""
FAULTS = {
    "shape": (
        SHAPE,
        "positions=square: shapes for one query, as in the last block: RuntimeError: ",
    ),
    "signature": (SIGNATURE, "Notes: called in a run: TypeError: Notes.on_epoch() takes 3 pos"),
    "initialization": (INITIALIZATION, "model.init=xavier does not reach blocks.0.attn.qkv: "),
    "moments": (MOMENTS, "optim=adam: resuming: "),
    "random numbers": (
        ATTENTION.format("return (weights + self.training * torch.rand(1)) @ v, weights"),
        "model.attention=mine: training: the model draws from PyTorch's random generator",
    ),
    "random results": (
        ATTENTION.format("return (weights + torch.rand_like(weights)) @ v, weights"),
        "model.attention=mine: shapes: results differ between two calls in eval mode",
    ),
    "gradient": (
        ATTENTION.format("return weights @ v, weights.clone()"),
        "model.attention=mine: gradient of the result with respect to the weights: RuntimeError: ",
    ),
    "ignored bias": (
        ATTENTION.replace(" + (0 if bias is None else bias)", "").format(
            "return weights @ v, weights"
        ),
        "model.attention=mine: hidden tokens: a token hidden by `bias` has influence",
    ),
    "bf16": (
        ATTENTION.format("return scattered(weights @ v), weights"),
        "model.attention=mine: bf16: RuntimeError: scatter(): Expected self.dtype to be equal",
    ),
    "export": (
        ATTENTION.format("return (weights if weights.sum().item() > 0 else -weights) @ v, weights"),
        "model.attention=mine: export: the format cannot represent this model: ",
    ),
    "error": (ERROR, "model.activation=broken: shapes: RuntimeError: no luck ("),
}


@dataclass
class Unused(OptimConfig):
    needed: int = field(kw_only=True)


@pytest.fixture
def check(run: Run, registries: None, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(blank, "__module__", "vit_train.")  # not a figure of the user's own
    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(check: Run, fault: str) -> None:
    code, words = FAULTS[fault]
    Path("my_parts.py").write_text(HEADER + code, encoding="utf-8")
    outcome = check("vit-check", "import=my_parts")
    assert outcome.status == 1 and words in outcome.out and "Traceback" not in outcome.err
    assert outcome.out.count("\n") == 1, outcome.out
    if fault == "error":
        line = 1 + (HEADER + code).splitlines().index('    raise RuntimeError("no luck")')
        assert outcome.out.endswith(f"{Path('my_parts.py').absolute()}:{line})\n")
    if fault == "shape":  # also at the start of a run that uses the part, before its folder
        OPTIM_CONFIGS["unused"] = Unused  # no obstacle to runs without it
        start = ["vit-train", "import=my_parts", "model.positions=square", "hydra.run.dir=run"]
        check.fails(words, *start)
        assert not Path("run").exists()


@pytest.mark.parametrize("has_traceback", [False, True])
def test_without_parts_there_is_nothing_to_check(
    check: Run, monkeypatch: pytest.MonkeyPatch, has_traceback: bool
) -> None:
    monkeypatch.setattr(errors, "SHOW_TRACEBACKS", has_traceback)
    outcome = check("vit-check")
    assert outcome.status == 2 and ("Traceback" in outcome.err) == has_traceback
    assert "\nvit-check: no parts to check: name the module that reg" in f"\n{outcome.err}"


SMALL = ["data.train_images=100", "data.test_images=20", "model.embed_dim=16", "model.depth=1"]
SMALL = [*SMALL, "train.epochs=1", "train.batch_size=16"]


@pytest.mark.slow
def test_the_attention_of_the_docs_is_checked_compared_explained_and_exported(check: Run) -> None:
    """With the commands of the page, at a small size."""
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    section = text.partition("## Attention")[2].partition("\n## ")[0]
    code, shell = re.findall(r"```(?:python|sh)\n(.*?)```", section, re.DOTALL)
    Path("my_parts.py").write_text(code, encoding="utf-8")
    said = {}
    for line in shell.splitlines():
        command, *settings = line.split()
        more = SMALL if command == "vit-train" else []
        more = ["format=torch"] if command == "vit-export" else more
        said[command] = check.succeeds(command, *settings, *more).out
    assert said["vit-check"].endswith("training, resuming, bf16, export: ok\n")
    (row,) = (line for line in said["vit-results"].splitlines() if "sigmoid" in line)
    assert row.split()[0] == "3" and re.search(r"  [+-]\d", row), row  # runs, difference
    assert "checked: the same top-1" in said["vit-export"] and "maps.png" in said["vit-explain"]
    states = []
    for attention in ("softmax", "sigmoid"):
        torch.manual_seed(0)
        states.append(
            VisionTransformer(ViTConfig(init="mimetic", attention=attention)).state_dict()
        )
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_attention_without_weights_trains_without_pictures(check: Run) -> None:
    class Mean(Attention):
        has_weights = False

        def mix(self, q, k, v, bias, need_weights, is_causal=False):  # type: ignore[no-untyped-def]
            return v.mean(2, keepdim=True).expand(q.shape), None

    ATTENTIONS["mean"] = Mean
    check.succeeds("vit-train", *SMALL, "model.attention=mean", "hydra.run.dir=run")
    assert not Path("run/pictures.png").exists()
    check.says("not explained: model.attention=mean has no weights", "vit-eval", "ckpt=run")
    check.fails("model.attention=mean has no weights", "vit-explain", "ckpt=run")
