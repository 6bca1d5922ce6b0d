"""`vit-export`: write a trained model in another format, check the result, add a model card."""

import re
import statistics
import timeit
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from jinja2 import TemplateError
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.machine import cpu_model
from vit_train.base.reading import read_object
from vit_train.base.text import markdown_cell, reason, render
from vit_train.config.tools import ExportConfig
from vit_train.data.batches import Normalize
from vit_train.interop.exportable import Exportable, exportable
from vit_train.interop.formats import FORMATS_BY_NAME, Format, Predictor
from vit_train.model.build import parameter_count
from vit_train.trained.folder import run_folder, summary_file
from vit_train.trained.images import evaluated_images
from vit_train.trained.load import load

RANDOM_IMAGES = 256
# Number of images to compare at once.
COMPARED = 50
# The largest difference in logits that counts as rounding error, relative to the largest logit.
TOLERANCE = 1e-4


def export(config: ExportConfig) -> Path:
    """Export a trained model with a model card; return the path of the exported file or folder.

    Raise ValueError, and leave no file, if the format does not support the model, if a package is
    missing, or if the exported model's predictions differ from the original's.
    """
    name = config.format
    chosen = FORMATS_BY_NAME[name]
    if missing := [package for package in chosen.needs if find_spec(package) is None]:
        raise ValueError(
            f"format={name} needs {', '.join(missing)}: pip install -e '.[export]' in the "
            "checkout (format=torch needs no other package)"
        )
    trained = load(config.ckpt, "cpu", config.weights, config.data.image_size)
    model = exportable(trained, config.normalize, config.calibrated)
    require_format_supports(model, name)
    folder = run_folder(model.meta.path) / "export"
    file = f"model{chosen.suffix}" if chosen.suffix else name
    out = Path(config.out or folder / file)
    if out.resolve() == model.meta.path.resolve():
        raise ValueError(f"out={out} is the checkpoint itself: choose another name")
    if out.is_dir() or (out.exists() and not chosen.suffix):
        raise ValueError(f"{out} already exists: delete it, or choose another name with out=")
    out.parent.mkdir(parents=True, exist_ok=True)
    sets = list(image_sets(config, model))

    def checked_card(predict: Predictor) -> str:
        checks = [check_logits(model, predict, *each, exact=chosen.exact) for each in sets]
        return model_card(model, chosen, out.name, [*checks, latency(model, predict, sets[0][1])])

    chosen.write(model, out, checked_card)
    logger.info(f"written: {out}")
    return out


def require_format_supports(model: Exportable, name: str) -> None:
    """Raise ValueError if the format does not support the model; name the formats that do."""
    if unsupported := FORMATS_BY_NAME[name].unsupported(model):
        others = (other for other, each in FORMATS_BY_NAME.items() if not each.unsupported(model))
        raise ValueError(
            f"format={name} does not support {', '.join(unsupported)}: choose one of: "
            f"{', '.join(others)}"
        )


def image_sets(
    config: ExportConfig, model: Exportable
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
def check_logits(
    model: Exportable,
    predict: Predictor,
    name: str,
    images: Tensor,
    labels: Tensor | None,
    exact: bool,
) -> str:
    """Compare the exported model's logits with the original's; return the result as text.

    `predict` returns the exported model's logits, and `name` describes the images. With `exact`,
    raise ValueError if the predictions differ by more than rounding error. Without `exact`, also
    compare the accuracies, if there are labels.
    """
    normalize = Normalize(model.meta.statistics)
    batches = images.split(COMPARED)
    expected = torch.cat([model.original(normalize(batch)) for batch in batches]) / model.divisor
    model.meta.require_finite(expected)
    given = torch.cat([predict(model.inputs(batch)) for batch in batches])
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
def latency(model: Exportable, predict: Predictor, images: Tensor) -> str:
    """Return, as text, the median time that the exported model takes for one image."""
    image = model.inputs(images[:1])
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


def model_card(model: Exportable, form: Format, name: str, checks: Sequence[str]) -> str:
    """Return the model card in Markdown, with the header that the Hugging Face Hub reads.

    `name` is the name of the exported file or folder; `checks` are the results of `check_logits`.
    The card has the results of the run, unless its summary is missing or damaged.
    """
    meta = model.meta
    kind = "uint8" if model.normalize else "normalized float32"
    inputs = f"{kind} (N, {', '.join(map(str, meta.image_shape))})"
    mean, std = (", ".join(map("{:.4f}".format, values)) for values in meta.statistics)
    thresholds = (
        f"{markdown_cell(tag)}: {least:.3f}"
        for tag, least in model.thresholds.items()
        if least is not None
    )
    card = partial(
        render,
        "interop",
        "card.md",
        meta=meta,
        about=model.about,
        form=form,
        use=form.use.replace("NAME", name).replace("INPUT", inputs),
        parameters=parameter_count(model.network),
        mean=mean,
        std=std,
        thresholds=", ".join(thresholds),
        checks=checks,
    )
    try:
        summary = read_object(summary_file(meta.path))
        # Without absolute folders, which tell about the machine that trained the model.
        command = re.sub(r"(?<==)[~/]\S*/(?=[^/\s])", "", summary.get("command", ""))
        return card(summary=summary, command=command.replace("`", "'"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, TemplateError):
        return card(summary={}, command="")
