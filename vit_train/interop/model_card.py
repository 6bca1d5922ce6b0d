"""The model card of an export: what it is, what it learned from, how good it is, how to use it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vit_train.files.reading import read_json
from vit_train.files.text import counted, markdown_cell, printable
from vit_train.interop.deployed import Deployed
from vit_train.interop.formats import Format
from vit_train.runs.paths import summary_file
from vit_train.runs.provenance import today
from vit_train.runs.trained import Meta


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
        f"**Images**: {model.about['preprocessing']}; mean {numbers(meta.statistics.mean)}, std "
        f"{numbers(meta.statistics.std)}.",
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
        "It knows these classes alone, and images like those it was trained on: anything else gets "
        "one of the classes, too.",
    ]
    return "\n".join(lines) + "\n"


def numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


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
