"""All commands except vit-train.

Each function imports the code that it calls, so that mistakes are reported before PyTorch loads.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from vit_train.base.text import printable
from vit_train.commands.command import console_command, refuse, version_line
from vit_train.commands.errors import short_errors
from vit_train.runs.settings import (
    EvalConfig,
    ExplainConfig,
    ExportConfig,
    InspectConfig,
    PredictConfig,
    SheetConfig,
)


@console_command(EvalConfig, paths=("ckpt", "data.root"))
def vit_eval(config: EvalConfig) -> None:
    """vit-eval: evaluate a checkpoint, a run's best checkpoint, or a folder's newest finished run.

    vit-eval ckpt=outputs/cifar10-tiny split=test
    vit-eval 'ckpt=[outputs/cifar10-tiny,outputs/cifar10-small]'
    """
    from vit_train.evaluation.comparison import compare_checkpoints
    from vit_train.evaluation.evaluate import evaluate_checkpoint

    if isinstance(config.ckpt, list):
        compare_checkpoints(config)
    else:
        evaluate_checkpoint(config)


@console_command(PredictConfig, paths=("images", "ckpt", "out"))
def vit_predict(config: PredictConfig) -> None:
    """vit-predict: classify images of any size with a trained model.

    vit-predict ckpt=outputs/cifar10-tiny images=photo.jpg
    vit-predict ckpt=outputs/cifar10-tiny images=photos out=predictions.csv
    """
    from vit_train.evaluation.predict import predict_images

    predict_images(config)


@console_command(ExplainConfig, paths=("images", "ckpt", "data.root", "out", "html"))
def vit_explain(config: ExplainConfig) -> None:
    """vit-explain: draw the regions of an image behind a prediction.

    vit-explain ckpt=outputs/cifar10-tiny
    vit-explain ckpt=outputs/cifar10-tiny images=photo.jpg method=rollout
    vit-explain ckpt=outputs/cifar10-tiny html=demo.html
    """
    from vit_train.explain.explain import explain_predictions

    explain_predictions(config)


@console_command(ExportConfig, paths=("ckpt", "out", "data.root"))
def vit_export(config: ExportConfig) -> None:
    """vit-export: write a model as ONNX, torch.export, safetensors, or for timm or Hugging Face.

    vit-export ckpt=outputs/cifar10-tiny format=onnx
    vit-export ckpt=outputs/cifar10-tiny format=hf out=my_model
    """
    from vit_train.interop.export import export

    export(config)


@console_command(
    SheetConfig, groups={"data": "shapes", "augment": "strong"}, paths=("data.root", "out")
)
def vit_augment(config: SheetConfig) -> None:
    """vit-augment: draw some training images, original and augmented.

    vit-augment data=cifar10 augment=strong out=augmented.png
    """
    from vit_train.training.preview import draw_contact_sheet

    draw_contact_sheet(config)


@console_command(
    InspectConfig,
    groups={
        "model": "tiny",
        "task": "classify",
        "data": "shapes",
        "augment": "light",
        "optim": "adamw",
        "experiment": None,
    },
    paths=("out", "data.root"),
)
def vit_inspect(config: InspectConfig) -> None:
    """vit-inspect: show a new model's parameters, arithmetic, symmetry and position table.

      vit-inspect model=tiny model.positions=sinusoidal image_size=32 out=positions.png
      vit-inspect experiment=stl10_vit

    It takes the settings of vit-train and reads no images.
    """
    from vit_train.training.preview import inspect_model

    inspect_model(config)


def vit_results() -> None:
    parser: Any = argparse.ArgumentParser(
        prog="vit-results",
        description="Compare finished runs: their results, with intervals, and plots.",
        epilog="""\
Files are written into the folder given, or the one that contains all folders given:
  results.md    the full table; runs that differ only in seed or fold share a row
  results.csv   a row for each run, for your own analysis
  results.png   the final results
  curves.png    the training curves, if every run has its metrics.csv
  images.png    the results by training-set size, if the runs have three or more sizes
  settings.png  validation results by each searched setting, if five or more values were tried
Existing files with these names are replaced.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error = refuse
    parser.add_argument("--version", action="version", version=version_line())
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders with runs")
    parser.add_argument(
        "--out",
        type=Path,
        help="output folder (default: the folder given, or the one that holds all folders given)",
    )
    parser.add_argument(
        "--baseline",
        metavar="SETTING=VALUE",
        help="the row from which the differences of the others are taken (default: the first); "
        "runs are paired by seed",
    )
    with short_errors("vit-results"):
        arguments = parser.parse_args()
        from vit_train.results.gather import gather

        text, out = gather(arguments.runs, arguments.out, arguments.baseline)
        print(text)
        print(printable(f"written to {out}/: results.md, results.csv, plots"), file=sys.stderr)
