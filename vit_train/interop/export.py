"""`vit-export`: write a trained model in another format, check it, and write its card."""

import logging
import time
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit_train.base.reading import read_json
from vit_train.base.text import counted, markdown_cell, printable, reason
from vit_train.base.writing import make_folder, require_own_folder
from vit_train.engine.precision import keep_freed_memory
from vit_train.interop.deployed import Deployed, deployed
from vit_train.interop.formats import WRITERS, Answer, Format
from vit_train.runs.images import evaluated_images
from vit_train.runs.load import load
from vit_train.runs.paths import run_folder, summary_file
from vit_train.runs.provenance import today
from vit_train.runs.settings import ExportConfig
from vit_train.runs.trained import Meta

logger = logging.getLogger(__name__)


def model_card(model: Deployed, form: Format, name: str, checks: Sequence[str]) -> str:
    """Return the card in Markdown, with the head that the Hugging Face Hub reads.

    `checks` are the figures of the comparison with the model it was made from.
    """
    meta = model.meta
    parameters = sum(each.numel() for each in model.fused.parameters())
    channels, size, _ = meta.image_shape
    shape = f"uint8 (N, {channels}, {size}, {size})"
    images = shape if model.normalize else f"normalized float32 (N, {channels}, {size}, {size})"
    head = ["---", *([f"library_name: {form.package}"] if form.package else []),
            "tags:", "- image-classification", "---"]  # fmt: skip
    settings = meta.config.model.size_settings
    mean, std = (", ".join(map("{:.4f}".format, values)) for values in meta.statistics)
    lines = [
        *head,
        "",
        f"# A classifier of {markdown_cell(meta.config.data.title)} images",
        "",
        f"An image classifier with {parameters:,} parameters ({settings}), trained with vit_train "
        f"{markdown_cell(meta.versions.get('vit_train', ''))} on `data={meta.config.data.name}`: "
        f"epoch {meta.epoch}, {counted(meta.images_seen, 'image')} seen, {meta.weights} weights. "
        f"Exported on {today()}.",
        "",
        f"**Classes**: {', '.join(map(markdown_cell, meta.classes))}.",
        "",
        f"**Images**: {model.about['preprocessing']}; mean {mean}, std {std}.",
        "",
        "**Checked** against the model it was made from:",
        "",
        *(f"- {check}" for check in checks),
        "",
        *results(meta),
        "## Use",
        "",
        "```python",
        printable(form.use.replace("NAME", name).replace("INPUT", images), keep="\n"),
        "```",
        "",
        "## Limits",
        "",
        "The model always answers with one of these classes, even for unrelated images.",
    ]
    return "\n".join(lines) + "\n"


def results(meta: Meta) -> list[str]:
    """Return the lines about the run's summary and evaluations; none if there are none."""
    summary = summary_file(meta.path)
    rows = list(result_rows(summary, meta))
    if not rows:
        return []
    head = [
        "| evaluated on | precision | accuracy | 95 % interval | images |",
        "|---|---|---|---|---|",
    ]
    return ["## Results", "", *trained_by(summary), *head, *rows, ""]


def trained_by(summary: Path) -> list[str]:
    """Return the command and the commit that the run's summary names; nothing if it has none."""
    try:
        content: Any = read_json(summary)
        command = printable(str(content["command"])).replace("`", "'")
        commit = content.get("commit")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    at = f" at commit {markdown_cell(str(commit))}" if commit else ""
    return [f"Trained by `{command}`{at}.", ""]


def result_rows(summary: Path, meta: Meta) -> Iterator[str]:
    """Yield a row for each result in the run's summary and in evaluations of these weights."""
    weights_of = meta.path.name, meta.weights, meta.epoch
    files = [summary, *sorted(summary.parent.glob("eval-*/results.json"))]
    for file in files:
        try:
            content: Any = read_json(file)
            if file == summary:
                test = content["test"]
                found = {f"test images, {name} weights": test[name] for name in test}
            elif weights_of == (
                Path(content["checkpoint"]).name,
                content["weights"],
                content["epoch"],
            ):
                found = {file.parent.name: content["result"]}
            else:
                continue
            precision = markdown_cell(str(content["precision"]))
            for what, result in found.items():
                low, high = result["acc_interval_95"]
                yield (
                    f"| {markdown_cell(what)} | {precision} | {100 * result['acc']:.2f} % | "
                    f"{100 * low:.2f} to {100 * high:.2f} | {result['count']:,} |"
                )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # a run that was copied without them, or a damaged file


RANDOM_IMAGES, BATCH = 256, 50
# The largest difference of logits that counts as rounding, in the largest logit.
TOLERANCE = 1e-4


def export(config: ExportConfig) -> Path:
    """Write the model; return the path.

    Raise ValueError if the format cannot hold the model or misses a package, or if the
    predictions of the exported model differ; nothing is left then.
    """
    keep_freed_memory()
    chosen = WRITERS[config.format]
    require_packages(chosen, config.format)
    if chosen.suffix and config.out is not None and Path(config.out).suffix != chosen.suffix:
        raise ValueError(f"out={config.out} must end in {chosen.suffix} for format={config.format}")
    model = deployed(
        load(config.ckpt, "cpu", config.weights, config.data.image_size), config.normalize
    )
    require_format_holds(model, chosen, config.format)
    name = f"model{chosen.suffix}" if chosen.suffix else config.format
    out = Path(config.out or run_folder(model.meta.path) / "export" / name)
    if out.resolve() == model.meta.path.resolve():
        raise ValueError(f"out={out} is the checkpoint itself: choose another name")
    if config.out is None:  # in the folder of a run that somebody else may have made
        require_own_folder(out.parent)
    make_folder(out.parent)
    sets = dict(image_sets(config, model))

    def check(answer: Answer) -> str:
        said = [compared(model, answer, name, images) for name, images in sets.items()]
        return model_card(model, chosen, out.name, said)

    chosen.write(model, out, check)
    logger.info(f"written: {out}")
    return out


def require_format_holds(model: Deployed, chosen: Format, name: str) -> None:
    """Raise ValueError, naming settings and formats, if a format cannot hold the model."""
    if refused := chosen.refused(model):
        *others, last = (other for other, each in WRITERS.items() if not each.refused(model))
        raise ValueError(
            f"format={name} has no place for {', '.join(refused)}: choose "
            f"format={', '.join(others)} or {last}"
        )


def require_packages(chosen: Format, name: str) -> None:
    missing = [package for package in chosen.needs if util.find_spec(package) is None]
    if missing:
        raise ValueError(
            f"format={name} needs {', '.join(missing)}: pip install -e '.[export]' in the checkout "
            "(format=torch needs nothing more)"
        )


def image_sets(config: ExportConfig, model: Deployed) -> Iterator[tuple[str, Tensor]]:
    """Yield images, uint8 (N,C,S,S), with what they are: random ones, and the run's test images."""
    generator = torch.Generator().manual_seed(0)
    shape = (RANDOM_IMAGES, *model.meta.image_shape)
    yield "random images", torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    try:
        (images, *_), _ = evaluated_images(config.data, "test", model.meta)
    except (ValueError, OSError) as error:
        logger.info(f"not checked on test images: {reason(error)}")
        return
    yield "test images", images.images


def agreement(expected: Tensor, given: Tensor) -> tuple[int, float]:
    """Return on how many images logits (N,K) name the same class, and their largest difference.

    Classes that differ by rounding alone are the same. The difference is relative to the largest
    logit.
    """
    chosen = expected.gather(1, given.argmax(1, keepdim=True)).squeeze(1)
    same = expected.amax(1) - chosen <= TOLERANCE * expected.abs().amax(1)
    difference = (expected - given).abs().max().nan_to_num(torch.inf).item()
    return int(same.sum()), difference / expected.abs().max().item() if difference else 0.0


@torch.no_grad()
def compared(model: Deployed, answer: Answer, name: str, images: Tensor) -> str:
    """Compare an export's answers with the model's; return the figures in words.

    Raise ValueError if they differ by more than rounding.
    """
    normalize, seconds = model.trained.normalize, 0.0
    all_expected, all_given = [], []
    for batch in images.split(BATCH):
        pixels = normalize(batch)
        expected = model.trained.model(pixels)
        model.meta.require_finite(expected)
        began = time.perf_counter()
        given = answer(batch if model.normalize else pixels)
        seconds += time.perf_counter() - began
        if given.shape != expected.shape:
            raise ValueError(
                f"the export answers {tuple(given.shape)}, not {tuple(expected.shape)}"
            )
        all_expected.append(expected)
        all_given.append(given)
    same, difference = agreement(torch.cat(all_expected), torch.cat(all_given))
    said = (
        f"the same top-1 on {same:,} of {len(images):,} {name}, logits to {difference:.1e} of the "
        "largest"
    )
    if same < len(images) or difference > TOLERANCE:
        raise ValueError(
            "the exported model's predictions differ from the original's; the file was deleted: "
            f"{said}"
        )
    speed = f"; {len(images) / seconds:,.0f} images a second in batches of {BATCH}"
    logger.info(f"checked: {said}{speed if len(images) >= 2 * BATCH else ''}")
    return said
