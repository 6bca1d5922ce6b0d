"""The page in which a model runs: what is in it, and that a browser computes what PyTorch does."""

import gzip
import html
import json
import math
import re
import shutil
import time
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from browser import CHROMIUM, browser, dumped, needs_driver
from checkpoints import rewrite
from conftest import SMALL, Run, SmallRun
from PIL import Image
from torch import Tensor

from vit_train.config.tools import ExplainConfig
from vit_train.data.splits import sample
from vit_train.explain import page as demo
from vit_train.explain.attribution import patch_maps, relevance, rollout
from vit_train.explain.page import require_supported, write_demo
from vit_train.model.patches import patchify, show_only
from vit_train.model.vit import VisionTransformer
from vit_train.trained.load import load
from vit_train.trained.model import Trained

TEMPERATURE = 1.5
HOSTILE = ["</script><b>cat", "<!--<script>", "\"'&\u2028\x1b[1m{{ 7*7 }}", *map(str, range(7))]


def test_the_page_of_the_documents_has_todays_script() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/demo.html").read_text(encoding="utf-8")
    lines: list[str] = []
    for path in (root / "vit_train/explain/templates").iterdir():
        script = path.read_text(encoding="utf-8")
        lines += script.splitlines()
        assert script.strip() in page or path.suffix == ".html", path
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("//")]
    assert len(code) <= 1300 and max(map(len, lines)) <= 110


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
    assert "default-src 'none'" in page and not re.search(r"[^\n -~×▶❚’·²−√Σσ∂πΦφ…→x̂]", page)
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


def test_the_page_records_earlier_epochs(small_run: SmallRun, tmp_path: Path) -> None:
    run = small_run("finished")
    files = {name: run / f"checkpoints/{name}.safetensors" for name in ("epoch-1", "last")}
    shutil.copy(run / "checkpoints/best.safetensors", files["epoch-1"])
    rewrite(files["epoch-1"], epoch=1)  # whichever epoch was the best
    path = tmp_path / "page.html"
    config = ExplainConfig("run", count=3)
    write_demo(load(files["last"]), config, path)
    page = path.read_text(encoding="utf-8")
    assert 'id="tab-learning"' in page
    said = json.loads(re.findall(r'id="model">(.*?)</script>', page)[0])
    stored = gzip.decompress(b64decode(re.findall(r'id="weights">(.*?)</script>', page)[0]))
    assert [each["epoch"] for each in said["epochs"]] == [1, 2]
    images = demo.evaluated_images(config.data, "test", load(run).meta, 3)[0].images.images[:]
    recorded = torch.frombuffer(bytearray(stored), dtype=torch.uint8)
    start = 2 * sum(size for _, size in said["tensors"]) + images.numel()
    for each, file in zip(said["epochs"], files.values(), strict=True):
        model = load(file).model
        logits, layers = model(load(file).normalize(images), True)
        torch.testing.assert_close(torch.tensor(each["logits"]), logits)
        maps = torch.stack(layers, dim=1)[:, :, :, 0, 1:]
        found = recorded[start : start + maps.numel()].view(maps.shape)
        assert (found / 255 - maps.sqrt()).abs().max() < 1 / 255
        start += maps.numel() + 64**2
        places = torch.nn.functional.normalize(model.pos_embed[0]()[0, 1:], dim=1)
        found = recorded[start - 64**2 : start].view(64, 64)
        assert (found / 127.5 - 1 - places @ places.T).abs().max() < 1 / 127
    assert start == len(recorded)


def answers(page: Path, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page computes in Chromium, without network, for images with changes."""
    address = f"{page.absolute().as_uri()}#check={quote(json.dumps(questions))}"
    (found,) = re.findall(r'id="checked">(.*?)</pre>', dumped(address, page.parent))
    return json.loads(html.unescape(found))  # type: ignore[no-any-return]


def computed(trained: Trained, pixels: list[int], changes: dict[str, Any]) -> list[Tensor]:
    """The same by PyTorch, changing its weights: logits, attention, rollout, relevance, steps."""
    model, size = trained.model, trained.meta.image_shape[1]
    assert isinstance(model, VisionTransformer)
    images = torch.tensor(pixels, dtype=torch.uint8).view(1, size, size, 3).permute(0, 3, 1, 2)
    shown = {*range(math.prod(model.grid))}.difference(changes.get("hidden", []))
    visible = torch.tensor([sorted(shown)], dtype=torch.long)
    batch = show_only(trained.normalize(images), visible, model.config.patch_size)
    with torch.no_grad():
        for layer, head in changes.get("off", []):
            model.blocks[layer].attn.proj.weight.unflatten(1, (4, 4))[:, head] = 0
        for layer in changes.get("skip", []):
            for last in (model.blocks[layer].attn.proj, model.blocks[layer].mlp.fc2):
                last.weight.zero_()
                last.bias.zero_()
        if "order" in changes:
            table = model.pos_embed[0].weight[:, model.config.has_class_token :]
            table[:] = table[:, changes["order"]] if changes["order"] else 0
    opened = opened_steps(model, batch, *changes["steps"]) if "steps" in changes else torch.zeros(0)
    logits, layers = model(batch.requires_grad_(), return_attention=True)
    gradients = torch.autograd.grad(logits[0, changes.get("target", logits.argmax())], layers)
    kept = [layer not in changes.get("skip", []) for layer in range(len(layers))]
    layers = [each * keep for each, keep in zip(layers, kept, strict=True)]
    maps = [rollout(layers), relevance(layers, gradients)]
    maps = [patch_maps(each, model.grid, model.config.has_class_token) for each in maps]
    found = (logits, torch.stack(layers), *maps, opened)
    return [each.detach().flatten() for each in found]


@torch.no_grad()
def opened_steps(
    model: VisionTransformer, batch: Tensor, token: int, layer: int, head: int
) -> Tensor:
    """All numbers of one token on its way through a layer, in the order of the page."""
    config, block = model.config, model.blocks[layer]
    prefix, width = config.num_prefix_tokens, config.embed_dim // config.num_heads
    embedded = model.tokens(batch)
    x = first = embedded + model.positions(0)
    for earlier in model.blocks[:layer]:
        x, _ = earlier(x)
    normed = block.norm1(x)
    q, k, v = block.attn.qkv(normed).view(-1, 3, config.num_heads, width).unbind(1)  # (T,H,Dh)
    added, attention = block.attn(normed, need_weights=True)
    collected = torch.einsum("hs,shd->hd", attention[0, :, token], v)
    middle = x + added
    wide = block.mlp.fc1(block.norm2(middle))
    active = torch.nn.functional.gelu(wide)
    narrow = block.mlp.fc2(active)
    out = middle + narrow
    logits = model.head(model.norm(out))
    pixels = patchify(batch, config.patch_size)[0, token - prefix]
    rows = [
        *(embedded, first - embedded, first, x, normed, q[None, :, head], k[None, :, head]),
        *(v[None, :, head], None, attention[:, head], None, None, added, middle),
        *(
            block.norm2(middle),
            wide,
            active,
            narrow,
            out,
            logits,
            (logits / TEMPERATURE).softmax(2),
        ),
    ]
    scores = k[:, head] @ q[token, head] / math.sqrt(width)
    apart = iter([scores, collected[head], collected.flatten()])
    found = [next(apart) if each is None else each[0, token] for each in rows]
    return torch.cat([*([pixels] if token >= prefix else []), *found])


def shuffled(number: int, count: int) -> list[int]:
    """The page's order of patches with this number."""
    drawn = []
    for _ in range(count):
        number = number * 48271 % 2147483647
        drawn.append(number)
    return sorted(range(count), key=lambda n: -drawn[n])


def claimed(images: list[list[int]]) -> list[list[str]]:
    """What each lesson must claim, computed by PyTorch, about these images; the first is shown."""

    def found(**changes: Any) -> list[list[Tensor]]:
        every = []
        for pixels in images:
            trained = load("run")
            trained.model.half().float()
            every.append(computed(trained, pixels, changes))
        return every

    def classes(**changes: Any) -> list[int]:
        return [int(each[0].argmax()) for each in found(**changes)]

    model, meta = load("run")
    page = Path("page.html").read_text(encoding="utf-8")
    labels = json.loads(re.findall(r'id="model">(.*?)</script>', page)[0])["labels"]
    plain, right = found(), lambda answers: sum(map(int.__eq__, answers, labels))
    before, count = classes(), math.prod(model.grid)
    after = classes(off=[[layer, head] for layer in range(2) for head in range(4)])
    moved = [
        sum(map(int.__ne__, classes(order=order), before)) for order in (shuffled(1, count), [])
    ]
    tokens = count + model.config.has_class_token
    maps = torch.stack([each[1].view(2, 4, tokens, tokens) for each in plain])
    maps = maps[..., -count:, -count:] / maps[..., -count:, -count:].sum(-1, keepdim=True)
    places = torch.cartesian_prod(*(torch.arange(side).float() for side in model.grid))
    far = (maps * torch.cdist(places, places)).sum(-1).mean((0, 3)).flatten()
    named = [
        f"head {at % 4 + 1} of layer {at // 4 + 1} ({far[at]:.1f} patches away"
        for at in (int(far.argmin()), int(far.argmax()))
    ]
    is_far = torch.cdist(places, places, p=math.inf) > 1
    beyond = float((maps[:, 0] * is_far).sum(-1).mean())
    order = plain[0][3].argsort(descending=True).tolist()
    number = next(
        (n for n in range(1, count + 1) if classes(hidden=order[:n])[0] != before[0]), count
    )
    gray = meta.classes[classes(hidden=order)[0]]
    layer, kinds, wrong = appears_in(images[0]), len(set(after)), 3 - right(before)
    return [
        [f"{right(before)} of the 3 images are right", f"{right(after)} without it, with {kinds} "],
        [f"Shuffled, {moved[0]} of the 3 images", f"without positions, {moved[1]}."],
        [f"nearest in {named[0]}", f"farthest in {named[1]}"],
        [f"appears in layer {layer};" if layer else "from the start"],
        [f"after {number} of {count}. Unchanged, {wrong} of the 3 images", f"color is {gray} "],
        [f"In layer 1, {100 * beyond:.0f}\u00a0% of the attention"],
    ]


@torch.no_grad()
def appears_in(pixels: list[int]) -> int:
    """The layer after which the head gives the final answer for good."""
    trained = load("run")
    model, size = trained.model.half().float(), trained.meta.image_shape[1]
    images = torch.tensor(pixels, dtype=torch.uint8).view(1, size, size, 3).permute(0, 3, 1, 2)
    x = model.tokens(trained.normalize(images)) + model.positions(0)
    states = [x, *(x := block(x)[0] for block in model.blocks)]
    logits = [model.head(model.norm(each)) for each in states]
    reads = slice(0, 1) if model.config.has_class_token else slice(None)
    found = [int(each[0, reads].mean(0).argmax()) for each in logits]
    return max((at + 1 for at, each in enumerate(found) if each != found[-1]), default=0)


@pytest.mark.slow
@needs_driver
def test_the_page_is_used_by_touch_by_keys_and_by_ear(tmp_path: Path) -> None:
    def patch(row: int, column: int) -> str:
        return f"#patches [role=row]:nth-child({row}) button:nth-child({column})"

    def hidden(number: int) -> str:
        return f"document.querySelectorAll('#patches .hidden').length === {number}"

    with browser(tmp_path, 360, 680) as page:
        page.open(Path(__file__).parents[2] / "docs/demo.html")
        page.until("document.querySelector('#telling').textContent.startsWith('A telling')")
        width = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.script(width) == 0
        page.drag(patch(5, 5))
        page.until(f'document.querySelector("{patch(5, 5)}").ariaSelected === "true"')
        assert page.spoken(patch(5, 5)) == ("gridcell", "row 5, column 5")
        time.sleep(1)  # two quick touches are one gesture
        page.drag(patch(5, 5))
        page.until(hidden(1))
        down, enter = "\ue015", "\ue007"
        page.press(down, enter)
        page.until(hidden(2))
        assert page.spoken(patch(6, 5)) == ("gridcell", "row 6, column 5, hidden")
        page.drag(patch(2, 2), patch(2, 3), patch(2, 4))
        page.until(hidden(5))
        page.drag(patch(2, 3), patch(2, 4))  # from a hidden patch, a drag shows
        page.until(hidden(3))
        assert page.spoken(patch(2, 2)) == ("gridcell", "row 2, column 2, hidden")
        page.script(
            "for (const id of ['restore', 'tab-steps']) document.getElementById(id).click()"
        )
        page.until(hidden(0))
        assert page.spoken("#tab-steps")[0] == "tab"
        page.until("document.querySelectorAll('#steps canvas').length > 0")
        unnamed = """
            const isNamed = (each) =>
              each.ariaLabel || each.textContent.trim() || each.labels?.length;
            return [...document.querySelectorAll("button, a, input, [role=img]")]
              .filter((each) => each.checkVisibility() && !isNamed(each))
              .map((each) => each.outerHTML);"""
        assert page.script(unnamed) == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    "settings",
    ["", "model.head=gap model.positions=sincos_2d data.image_size=48 model.patch_size=6"],
)
def test_a_browser_computes_what_pytorch_does(run: Run, settings: str) -> None:
    run.succeeds("vit-train", *SMALL, *settings.split(), "hydra.run.dir=run")
    run.succeeds("vit-explain", "ckpt=run", "html=page.html", "count=3")
    page = Path("page.html")
    text = page.read_text(encoding="utf-8").replace(
        '"temperature": 1.0', f'"temperature": {TEMPERATURE}'
    )
    page.write_text(text, encoding="utf-8")
    noise = np.random.default_rng(0).integers(0, 256, (40, 53, 3), dtype=np.uint8)
    Image.fromarray(noise).save("photo.png")
    photo = {"photo": b64encode(Path("photo.png").read_bytes()).decode()}
    changes = {"hidden": [3, 9], "off": [[0, 1], [1, 3]], "order": [*range(63, -1, -1)]}
    questions = [
        {"image": 0, "steps": [5, 0, 2]},
        {"image": 1, "steps": [0, 1, 3], "target": 2},
        {"image": 2} | changes,
        {"image": 2, "steps": [63, 1, 0], "skip": [0]},
        photo,
    ]
    lessons = [{"image": 0, "lesson": number, "names": ["lesson"]} for number in range(6)]
    silent = [
        {"image": 0, "steps": [20, 0, 1]} | each for each in ({"off": [[0, 1]]}, {"skip": [0]})
    ]
    found = answers(page, questions + silent + lessons)
    for kind, each in zip(("head", "layer"), found[len(questions) :], strict=False):
        said = {title: words for title, _, words, _ in each["steps"]}
        for title in ("Softmax", "Collect the values"):
            assert said[title] == f"This {kind} is switched off: it adds nothing."
    told = [each["lesson"] for each in found[-len(lessons) :]]
    for text, claims in zip(told, claimed([each["pixels"] for each in found[:3]]), strict=True):
        assert all(claim in text for claim in claims), (text, claims)
    for question, answer in zip(questions, found, strict=False):
        trained = load("run")
        trained.model.half().float()
        expected = computed(trained, answer["pixels"], question)
        names = ("logits", "layers", "rollout", "relevance", "steps")
        for name, own in zip(names, expected, strict=True):
            values = answer.get(name, [])
            if name == "steps":  # each has a title, shapes, words and parts [name, numbers, kind]
                values = [part[1] for step in values for part in step[3]]
            values = torch.tensor(flat(values))
            atol = 1e-3 * float(own.abs().max()) if len(own) else 0
            torch.testing.assert_close(values, own, rtol=1e-3, atol=atol)
    pixels = load("run").pixels(noise).permute(1, 2, 0).flatten()
    assert (pixels - torch.tensor(answer["pixels"])).abs().max() <= 1


def flat(values: Any) -> list[float]:
    if not isinstance(values, list):
        return [values]
    return [value for each in values for value in flat(each)]
