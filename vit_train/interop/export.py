"""`vit-export`: write a trained model in another format, check the result, add a model card."""

import re
import statistics
import timeit
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.reading import read_json
from vit_train.base.text import counted, markdown_cell, printable, reason
from vit_train.base.writing import output_folder
from vit_train.config.tools import ExportConfig
from vit_train.data.batches import Normalize
from vit_train.interop.formats import FORMATS_BY_NAME, Deployed, Format, Predictor, deployed
from vit_train.trained.folder import run_folder, summary_file
from vit_train.trained.images import evaluated_images
from vit_train.trained.load import load
from vit_train.trained.model import Meta
from vit_train.trained.provenance import cpu_model, today

RANDOM_IMAGES, BATCH = 256, 50
# The largest difference in logits that counts as rounding error, relative to the largest logit.
TOLERANCE = 1e-4


def export(config: ExportConfig) -> Path:
    """Export a trained model with a model card; return the path of the exported file or folder.

    Raise ValueError, and leave no file, if the format does not support the model, if a package is
    missing, or if the exported model's predictions differ from the original's.
    """
    name, chosen = config.format, FORMATS_BY_NAME[config.format]
    if missing := [package for package in chosen.needs if util.find_spec(package) is None]:
        raise ValueError(
            f"format={name} needs {', '.join(missing)}: pip install -e '.[export]' in the "
            "checkout (format=torch needs no other package)"
        )
    trained = load(config.ckpt, "cpu", config.weights, config.data.image_size)
    model = deployed(trained, config.normalize, config.calibrated)
    require_format_supports(model, name)
    folder = run_folder(model.meta.path) / "export"
    file = f"model{chosen.suffix}" if chosen.suffix else name
    out = Path(config.out or output_folder(None, folder) / file)
    if out.resolve() == model.meta.path.resolve():
        raise ValueError(f"out={out} is the checkpoint itself: choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    sets = list(image_sets(config, model))

    def checked_card(predict: Predictor) -> str:
        checks = [compared(model, predict, *each, exact=chosen.exact) for each in sets]
        return model_card(model, chosen, out.name, [*checks, latency(model, predict, sets[0][1])])

    chosen.write(model, out, checked_card)
    logger.info(f"written: {out}")
    return out


def require_format_supports(model: Deployed, name: str) -> None:
    """Raise ValueError if the format does not support the model; name the formats that do."""
    if unsupported := FORMATS_BY_NAME[name].unsupported(model):
        others = (other for other, each in FORMATS_BY_NAME.items() if not each.unsupported(model))
        raise ValueError(
            f"format={name} does not support {', '.join(unsupported)}: choose one of: "
            f"{', '.join(others)}"
        )


def image_sets(
    config: ExportConfig, model: Deployed
) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yield the images to check the export with: a name, uint8 (N,C,H,W), and their labels (N,).

    The first set has random pixels; the second is the test images, if they can be loaded.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (RANDOM_IMAGES, *model.meta.image_shape)
    yield "random images", torch.randint(256, shape, dtype=torch.uint8, generator=generator), None
    try:
        (images, *_), _ = evaluated_images(config.data, "test", model.meta)
        yield "test images", images.images[:], None if images.has_tags else images.labels
    except (ValueError, OSError) as error:
        logger.info(f"not checked on test images: {reason(error)}")


@torch.no_grad()
def compared(
    model: Deployed,
    predict: Predictor,
    name: str,
    images: Tensor,
    labels: Tensor | None,
    exact: bool,
) -> str:
    """Compare the exported model's logits with the original's; return the result as text.

    `predict` returns the exported model's logits, and `name` describes the images. With `exact`,
    raise ValueError if the predictions differ by more than rounding error; without, also compare
    the accuracies, if there are labels.
    """
    normalize, batches = Normalize(model.meta.statistics), images.split(BATCH)
    expected = torch.cat([model.original(normalize(batch)) for batch in batches]) / model.divisor
    model.meta.require_finite(expected)
    taken = batches if model.normalize else map(normalize, batches)
    given = torch.cat(list(map(predict, taken)))
    same, difference = agreement(expected, given)
    first = "top-1" if model.meta.task.one_class else "most probable tag"
    figures = (
        f"the same {first} on {same:,} of {len(images):,} {name}, relative logit error "
        f"{difference:.1e}"
    )
    if labels is not None and not exact:
        ours, theirs = ((each.argmax(1) == labels).float().mean() for each in (expected, given))
        figures += f", accuracy {theirs:.2%} (the original: {ours:.2%})"
    if exact and (same < len(images) or difference > TOLERANCE):
        raise ValueError(
            "the exported model's predictions differ from the original's; the file was deleted: "
            f"{figures}"
        )
    logger.info(f"checked: {figures}")
    return figures


@torch.no_grad()
def latency(model: Deployed, predict: Predictor, images: Tensor) -> str:
    """Return, as text, the median time that the exported model takes for one image."""
    image = images[:1] if model.normalize else Normalize(model.meta.statistics)(images[:1])
    seconds = timeit.repeat(lambda: predict(image), number=1, repeat=20)
    return f"{1e3 * statistics.median(seconds):.1f} ms for one image on {cpu_model()}"


def agreement(expected: Tensor, given: Tensor) -> tuple[int, float]:
    """Compare logits (N,K): return how many predicted classes agree, and the largest difference.

    The difference is relative to the largest expected logit. A predicted class also counts as
    agreeing if its expected logit is within rounding error of the highest expected logit.
    """
    chosen = expected.gather(1, given.argmax(1, keepdim=True)).squeeze(1)
    same = expected.amax(1) - chosen <= TOLERANCE * expected.abs().amax(1)
    difference = (expected - given).abs().max().nan_to_num(torch.inf).item()
    return int(same.sum()), difference / expected.abs().max().item() if difference else 0.0


def model_card(model: Deployed, form: Format, name: str, checks: Sequence[str]) -> str:
    """Return the model card in Markdown, with the header that the Hugging Face Hub reads.

    `name` is the name of the exported file or folder; `checks` are the results of `compared`.
    """
    meta = model.meta
    parameters = sum(each.numel() for each in model.exportable.parameters())
    shape = ", ".join(map(str, meta.image_shape))
    kind = "uint8" if model.normalize else "normalized float32"
    use = form.use.replace("NAME", name).replace("INPUT", f"{kind} (N, {shape})")
    mean, std = (", ".join(map("{:.4f}".format, values)) for values in meta.statistics)
    thresholds = ", ".join(
        f"{markdown_cell(name)} {least:.3f}"
        for name, least in model.thresholds.items()
        if least is not None
    )
    abstain = (
        " To abstain as `vit-predict abstain=ACCURACY` does, answer only if the highest "
        f"softmax(logits / {meta.temperature or 1:.5g}) reaches the threshold of this accuracy: "
        f"{thresholds}."
        if thresholds
        else ""
    )
    # The processors of timm and Hugging Face cannot crop first.
    differs = (
        f" {form.package} scales images before it crops them, so images that are not square have "
        "slightly different pixels, and sometimes another predicted class, than in vit-predict."
        if meta.fit == "crop" and not form.suffix
        else ""
    )
    lines = [
        "---",
        *([f"library_name: {form.package}"] if form.package else []),
        "tags:",
        "- image-classification",
        "---",
        "",
        f"# A classifier of {markdown_cell(meta.config.data.title)} images",
        "",
        f"An image classifier with {parameters:,} parameters ({meta.config.model.size_settings}), "
        f"trained with vit_train {markdown_cell(meta.versions.get('vit_train', ''))} on "
        f"data={markdown_cell(meta.config.data.name)}: epoch {meta.epoch}, "
        f"{counted(meta.images_seen, 'image')} seen, {meta.weights} weights. "
        f"Exported on {today()}.",
        "",
        f"**Classes**: {', '.join(map(markdown_cell, meta.classes))}."
        if meta.task.one_class
        else f"**Tags**, with the thresholds of their probabilities: {thresholds}.",
        "",
        f"**Images**: {model.about['preprocessing']}; mean {mean}, std {std}.{differs}",
        "",
        "**Checked** against the original model, and timed:",
        "",
        *(f"- {check}" for check in checks),
        "",
        *results(meta),
        "## Use",
        "",
        "```python",
        printable(use, keep="\n"),
        "```",
        "",
        "## Limits",
        "",
        f"The model always answers with one of these classes, even for unrelated images.{abstain}"
        if meta.task.one_class
        else "An image may have any number of these tags. The sigmoid of a logit is the "
        "probability of its tag; the tag is predicted if the probability reaches the threshold.",
    ]
    return "\n".join(lines) + "\n"


def results(meta: Meta) -> list[str]:
    """Return the model card's lines about training and test results.

    Return [] if the run's summary is missing or damaged.
    """
    try:
        summary: Any = read_json(summary_file(meta.path))
        # Without the folders of the machine that trained the model.
        command = re.sub(r"(?<==)\S*/(?=[^/\s])", "", str(summary["command"])[:10_000])
        command = printable(command).replace("`", "'")
        precision = markdown_cell(str(summary["precision"]))
        name = "acc" if all("acc" in result for result in summary["test"].values()) else "map"
        ends = "{:.2%} to {:.2%}".format
        best = "best (selected on test)" if summary.get("selected_on") == "test" else "best"
        rows = [
            f"| test images, {best if weights == 'best' else markdown_cell(weights)} weights | "
            f"{precision} | "
            f"{result[name]:.2%} | {ends(*result[f'{name}_interval_95'])} | {result['count']:,} |"
            for weights, result in summary["test"].items()
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # copied without its summary, or damaged
    return [
        "## Results",
        "",
        f"Trained by `{command}` (commit {markdown_cell(str(summary.get('commit')))}).",
        "",
        "The run evaluated the model at its own image size:",
        "",
        f"| evaluated on | precision | {'accuracy' if name == 'acc' else 'mAP'} | 95 % interval "
        "| images |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]
