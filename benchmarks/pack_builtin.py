"""Pack a trained model into the package, as `builtin:NAME`, in half precision and with a card.

`python -m benchmarks.pack_builtin RUN NAME` packs a finished run's last weights, evaluates
them as they are now, in fp32 and in the run's precision, and writes the card from what was found.
"""

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vit_train.base.reading import read_json
from vit_train.base.text import counted
from vit_train.base.writing import save_archive, write_json, write_text
from vit_train.config.run import portable
from vit_train.config.tools import EvalConfig
from vit_train.evaluate.evaluate import Evaluated, evaluate_checkpoint
from vit_train.loop.metrics import Classification
from vit_train.loop.state import RandomState
from vit_train.trained.checkpoint import Checkpoint
from vit_train.trained.folder import CHECKPOINTS, FOLDER, LAST, PREFIX, SUFFIX, SUMMARY
from vit_train.trained.load import load

WIDTH = 110


def pack(checkpoint: Path, target: Path) -> None:
    """Write what `load` needs of a checkpoint, its weights in half precision.

    The averaged weights are taken if there are any. What belongs to the machine that trained them
    is left out.
    """
    whole, meta = Checkpoint.load(checkpoint), load(checkpoint).meta
    weights = whole.model if whole.ema is None else whole.ema
    packed = replace(
        whole,
        model={key: halved(value) for key, value in weights.items()},
        ema=None,
        optimizers=[],
        random=RandomState(torch.empty(0), []),
        config=portable(whole.config),
        seen=None,
        temperature=meta.temperature,
        thresholds=meta.thresholds,
    )
    save_archive(target, packed.to_bytes())


def halved(value: torch.Tensor) -> torch.Tensor:
    return value.half() if value.is_floating_point() else value


def card(name: str, summary: dict[str, Any], evaluated: Sequence[Evaluated]) -> str:
    """Return the card of a model, from its run's summary and evaluations of its packed form.

    They differ in precision; the last has that of the run.
    """
    found = evaluated[-1].content
    config, test, machine = summary["config"], summary["test"]["final"], summary["machine"]
    low, high = (percent(end) for end in test["acc_interval_95"])
    calibration, classes = found["calibration"], found["classes"]
    shape, start = config["model"], "random weights"
    if config["init_from"]:
        first = read_json(Path(config["init_from"]) / SUMMARY)
        start = (
            f"the encoder that `{first['command']}` trained on {first['images']['train']:,} images "
            "without labels"
        )
    about = (
        f"A Vision Transformer that classifies images into {len(classes)} classes: "
        f"{', '.join(classes)}. It has {summary['parameters']:,} parameters, patches of "
        f"{shape['patch_size']}, width {shape['embed_dim']}, {shape['depth']} layers and "
        f"{shape['num_heads']} heads (model.positions={shape['positions']}, "
        f"model.head={shape['head']})."
    )
    points = [
        f"**Trained** by `{summary['command']}` at commit {summary['commit'][:7]}, with the labels "
        f"of {summary['images']['train']:,} images of {config['data']['name']}: "
        f"{summary['images_seen']:,} images seen in {summary['seconds'] / 60:.0f} minutes on "
        f"{counted(machine['threads'], 'core')} of an {machine['cpu']}. It starts from {start}.",
        f"**Test accuracy** {percent(test['acc'])} % of {test['count']:,} images (95 % interval "
        f"{low} to {high}), computed in {summary['precision']}. These weights, "
        f"stored in half precision: {accuracies(evaluated)}.",
        f"**Probabilities** are calibrated with the temperature {calibration['temperature']:.3f}, "
        "fitted on validation images: expected calibration error "
        f"{percent(found['result']['ece'])} % before, "
        f"{percent(calibration['ece_with_temperature'])} % after, in {found['precision']}.",
        "**Limits**: it suits images like those of its data set: small, with one object in the "
        "middle. It always answers with one of these classes, even for unrelated images.",
    ]
    lines = [f"# {PREFIX}{name}", "", *textwrap.wrap(about, WIDTH), ""]
    for point in points:
        lines += textwrap.wrap(f"- {point}", WIDTH, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def accuracies(evaluated: Sequence[Evaluated]) -> str:
    """Return the accuracy in each precision and how many predictions it changes."""
    precisions, predictions = [], []
    for each in evaluated:
        result = each.result
        assert isinstance(result, Classification)
        precisions.append(f"{percent(result.acc)} % in {each.content['precision']}")
        predictions.append(result.predictions.predicted)
    first, *others = predictions
    differing = [
        f"; {(first != other).sum()} predictions differ between the two" for other in others
    ]
    return ", ".join(precisions) + "".join(differing)


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def main(run: Path, name: str) -> None:
    target = FOLDER / f"{name}{SUFFIX}"
    # Only an evaluation of the run tells the temperature and the thresholds.
    checkpoint = run / CHECKPOINTS / LAST
    evaluate_checkpoint(EvalConfig(ckpt=str(checkpoint)))
    pack(checkpoint, target)
    summary = read_json(run / SUMMARY)
    evaluated = [
        evaluate_checkpoint(EvalConfig(ckpt=f"{PREFIX}{name}", precision=precision))
        for precision in dict.fromkeys(("fp32", summary["precision"]))
    ]
    write_text(FOLDER / f"{name}.md", card(name, summary, evaluated))
    write_json(FOLDER / f"{name}.json", summary)
    write_text(FOLDER / f"{name}.csv", (run / "metrics.csv").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
