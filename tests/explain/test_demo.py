"""The page in which a model runs: what is in it, and that a browser computes what PyTorch does."""

import html
import json
import math
import re
import shutil
import subprocess
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from conftest import SMALL, Run, SmallRun
from PIL import Image
from torch import Tensor

from vit_train.config.tools import ExplainConfig
from vit_train.data.splits import sample
from vit_train.explain import explain as demo
from vit_train.explain.attribution import patch_maps, relevance, rollout
from vit_train.explain.explain import require_supported, write_demo
from vit_train.model.patches import show_only
from vit_train.model.vit import VisionTransformer
from vit_train.trained.load import load
from vit_train.trained.model import Trained

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
HOSTILE = ["</script><b>cat", "<!--<script>", "\"'&\u2028\x1b[1m{{ 7*7 }}", *map(str, range(7))]


def test_the_page_of_the_documents_has_todays_script() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/demo.html").read_text(encoding="utf-8")
    for name in ("demo.css", "demo.js", "model.js"):
        script = (root / "vit_train/explain/templates" / name).read_text(encoding="utf-8")
        assert script.strip() in page, name


def test_the_page_needs_no_network_and_no_name_is_markup(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, meta = load(small_run("finished"))
    every = demo.evaluated_images(ExplainConfig("run").data, "test", meta)[0].images
    found = demo.evaluated_images(ExplainConfig("run").data, "test", meta, 12)
    monkeypatch.setattr(demo, "evaluated_images", lambda *what: found)
    hostile = Trained(model, replace(meta, classes=HOSTILE, temperature=1.5))
    path = tmp_path / "made/page.html"
    write_demo(hostile, ExplainConfig("run"), path)
    page = path.read_text(encoding="utf-8")
    assert page.lower().count("</script") == 4 and page.lower().count("<script") == 4
    assert not re.search(r"https?:|\b(?:src|href)=|@import|url\((?!\$)", page)
    assert "default-src 'none'" in page and not re.search(r"[^\n -~×▶❚’·−σ∂πΦφ…→x̂]", page)
    (content,) = re.findall(r'id="model">(.*?)</script>', page)
    said = json.loads(content)
    assert said["classes"][0] == HOSTILE[0] and said["temperature"] == 1.5
    assert said["classes"][2] == "\"'&\\u2028\\x1b[1m{{ 7*7 }}"
    assert said["labels"] == sample(every, 12).labels.tolist()
    assert not said["stretches"]  # as vit-predict crops photos for a model of the shapes


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"positions": "rotary_2d"}, "html= does not support model.positions=rotary_2d"),
        ({"layer_scale": 0.1}, "html= does not support model.layer_scale=0.1"),
        ({"patch_size": 1}, r"more than 400 patches \(this model has 1024\)"),
    ],
)
def test_a_model_that_the_page_does_not_compute_is_refused(
    small_run: SmallRun, changed: dict[str, Any], words: str
) -> None:
    meta = load(small_run("finished")).meta
    model = VisionTransformer(replace(meta.config.model, **changed), 32)
    with pytest.raises(ValueError, match=words):
        require_supported(Trained(model, meta))
    with pytest.raises(ValueError, match="html= needs a Vision Transformer that classifies"):
        require_supported(Trained(OwnTransformer(meta.config.model, 32), meta))


class OwnTransformer(VisionTransformer):
    """A model that may compute anything else."""


def answers(page: Path, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page computes in Chromium, without network, for images with changes."""
    address = f"{page.absolute().as_uri()}#check={quote(json.dumps(questions))}"
    how = ["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", address]
    done = subprocess.run([str(CHROMIUM), *how], capture_output=True, text=True, timeout=120)
    (found,) = re.findall(r'id="checked">(.*?)</pre>', done.stdout)
    return json.loads(html.unescape(found))  # type: ignore[no-any-return]


def computed(trained: Trained, pixels: list[int], changes: dict[str, Any]) -> list[Tensor]:
    """The same by PyTorch, changing its weights: logits, attention, rollout, relevance."""
    model, size = trained.model, trained.meta.image_shape[1]
    assert isinstance(model, VisionTransformer)
    images = torch.tensor(pixels, dtype=torch.uint8).view(1, size, size, 3).permute(0, 3, 1, 2)
    shown = {*range(math.prod(model.grid))}.difference(changes.get("hidden", []))
    visible = torch.tensor([sorted(shown)], dtype=torch.long)
    batch = show_only(trained.normalize(images), visible, model.config.patch_size)
    with torch.no_grad():
        for layer, head in changes.get("off", []):
            model.blocks[layer].attn.proj.weight.unflatten(1, (4, 4))[:, head] = 0
        if "order" in changes:
            table = model.pos_embed[0].weight[:, model.config.has_class_token :]
            table[:] = table[:, changes["order"]]
    logits, layers = model(batch.requires_grad_(), return_attention=True)
    gradients = torch.autograd.grad(logits[0, changes.get("target", logits.argmax())], layers)
    maps = [rollout(layers), relevance(layers, gradients)]
    maps = [patch_maps(each, model.grid, model.config.has_class_token) for each in maps]
    return [each.flatten() for each in (logits, torch.stack(layers), *maps)]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    "settings",
    ["", "model.head=gap model.positions=sincos_2d data.image_size=48 model.patch_size=6"],
)
def test_a_browser_computes_what_pytorch_does(run: Run, settings: str) -> None:
    run.succeeds("vit-train", *SMALL, *settings.split(), "hydra.run.dir=run")
    run.succeeds("vit-explain", "ckpt=run", "html=page.html", "count=3")
    noise = np.random.default_rng(0).integers(0, 256, (40, 53, 3), dtype=np.uint8)
    Image.fromarray(noise).save("photo.png")
    photo = {"photo": b64encode(Path("photo.png").read_bytes()).decode()}
    changes = {"hidden": [3, 9], "off": [[0, 1], [1, 3]], "order": [*range(63, -1, -1)]}
    questions = [{"image": 0}, {"image": 1, "target": 2}, {"image": 2} | changes, photo]
    for question, answer in zip(questions, answers(Path("page.html"), questions), strict=True):
        trained = load("run")
        trained.model.half().float()
        expected = computed(trained, answer["pixels"], question)
        for name, own in zip(("logits", "layers", "rollout", "relevance"), expected, strict=True):
            found = torch.tensor(answer[name]).flatten()
            atol = 1e-3 * float(own.detach().abs().max())
            torch.testing.assert_close(found, own, rtol=1e-3, atol=atol)
    pixels = load("run").pixels(noise).permute(1, 2, 0).flatten()
    assert (pixels - torch.tensor(answer["pixels"])).abs().max() <= 1
