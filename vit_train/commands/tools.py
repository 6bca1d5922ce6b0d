"""All commands except vit-train.

Each names the function that it calls, which is imported only after the settings have been accepted,
so that invalid settings are reported before PyTorch is loaded.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from vit_train.base.text import printable
from vit_train.commands.command import console_command, refuse, version_line
from vit_train.commands.errors import explain, short_errors
from vit_train.config.run import TrainConfig
from vit_train.config.tools import (
    DataReportConfig,
    EvalConfig,
    ExplainConfig,
    ExportConfig,
    FeaturesConfig,
    InspectConfig,
    PredictConfig,
    SheetConfig,
    SuspectsConfig,
)


def evaluate(config: EvalConfig) -> None:
    from vit_train.evaluate.compare import compare_checkpoints
    from vit_train.evaluate.evaluate import evaluate_checkpoint

    if isinstance(config.ckpt, list):
        compare_checkpoints(config)
    else:
        evaluate_checkpoint(config)


vit_eval = console_command(
    """vit-eval: evaluate a trained model, or compare several models on the same images.

    vit-eval ckpt=outputs/cifar10-tiny split=test
    vit-eval 'ckpt=[outputs/cifar10-tiny,outputs/cifar10-small]'
    """,
    evaluate,
    EvalConfig,
    "ckpt",
)
vit_suspects = console_command(
    """vit-suspects: find wrong labels, with the runs of a cross-validation.

      vit-train -m data.cv_folds=5 data.cv_fold=0,1,2,3,4 data=folder data.root=my_images
      vit-suspects runs=outputs/multirun/TIME

    Each image is classified by the runs that did not train on it.
    """,
    "vit_train.evaluate.suspects:find_suspects",
    SuspectsConfig,
    "runs",
)
vit_predict = console_command(
    """vit-predict: classify images of any size with a trained model.

    vit-predict ckpt=outputs/cifar10-tiny images=photo.jpg
    vit-predict ckpt=outputs/cifar10-tiny images=photos out=predictions.csv
    """,
    "vit_train.evaluate.predict:predict_images",
    PredictConfig,
    "images",
)
vit_features = console_command(
    """vit-features: write a trained model's features of images to a NumPy file.

      vit-features ckpt=outputs/cifar10-tiny out=features.npz
      vit-features ckpt=outputs/cifar10-tiny images=photos layer=4 tokens=mean

    The file has arrays for each split: train_features (N,D), train_labels (N,), train_names (N,)
    and so on. For images of your own, it has features and names.
    """,
    "vit_train.evaluate.features:write_features",
    FeaturesConfig,
    "images",
)
vit_explain = console_command(
    """vit-explain: show which regions of an image led to a prediction.

    vit-explain ckpt=outputs/cifar10-tiny
    vit-explain ckpt=outputs/cifar10-tiny images=photo.jpg method=rollout
    vit-explain ckpt=outputs/cifar10-tiny html=demo.html
    """,
    "vit_train.explain.explain:explain_predictions",
    ExplainConfig,
    "images",
)
vit_export = console_command(
    """vit-export: export a model to ONNX, torch.export, safetensors, timm or Hugging Face.

    vit-export ckpt=outputs/cifar10-tiny format=onnx
    vit-export ckpt=outputs/cifar10-tiny format=hf out=my_model
    """,
    "vit_train.interop.export:export",
    ExportConfig,
    "ckpt",
)
vit_augment = console_command(
    """vit-augment: draw training images beside augmented versions of the same images.

    vit-augment data=cifar10 augment=strong out=augmented.png
    """,
    "vit_train.run.preview:draw_contact_sheet",
    SheetConfig,
    "data.root",
    {"data": "shapes", "augment": "light"},
)
vit_data = console_command(
    """vit-data: count the images of each class and split; find broken files and copies.

      vit-data data=folder data.root=my_images

    Copies are found even if they were resaved, resized or made a little brighter. A page shows your
    own photos that are in question, to keep, relabel or leave out.
    """,
    "vit_train.run.data_report:report_data",
    DataReportConfig,
    "data.root",
    {"data": "shapes"},
)


# The groups of vit-train, with their choices for a new model.
NEW_MODEL = {
    "model": "tiny",
    "task": "classify",
    "data": "shapes",
    "augment": "light",
    "optim": "adamw",
    "experiment": None,
}


def check(config: TrainConfig) -> None:
    from vit_train.run.check import check_parts, outcome

    parts = list(check_parts(config))
    if not parts:
        refuse("no parts to check: name the module that registers yours, import=my_parts")
    status = 0
    for name, checks in parts:
        try:
            print(printable(outcome(name, checks)))
        except ValueError as error:
            status = 1
            print(printable(explain(error)))
    sys.exit(status)


vit_check = console_command(
    """vit-check: try the parts that your own module registers, before any run.

      vit-check import=my_parts

    A line for each part says what was checked, or what is wrong. The settings, which are those of
    vit-train, are used to try the parts.
    """,
    check,
    TrainConfig,
    "import",
    NEW_MODEL,
)
vit_inspect = console_command(
    """vit-inspect: show a new model's parameters, FLOPs, permutation test and position table.

      vit-inspect model=tiny model.positions=sinusoidal out=positions.png
      vit-inspect experiment=stl10_vit

    The settings are those of vit-train; no images are read.
    """,
    "vit_train.run.preview:inspect_model",
    InspectConfig,
    "out",
    NEW_MODEL,
)


def vit_results() -> None:
    parser: Any = argparse.ArgumentParser(
        prog="vit-results",
        description="Compare the results of finished runs, with confidence intervals and curves.",
        epilog="""\
Files are written to the folder given or, for several, to the folder that contains all of them:
  results.md    the full table; runs that differ only in seed or fold share a row
  results.csv   the same rows for your own analysis: means, spreads, intervals, differences
  results.tex   the table on the terminal for LaTeX, with booktabs
  runs.csv      a row for each run
  curves.png    the training curves, if every run has its metrics.csv
Existing files with these names are replaced.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error = refuse
    parser.add_argument("--version", action="version", version=version_line())
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders with runs")
    parser.add_argument(
        "--out",
        type=Path,
        help="output folder (default: the folder given or, for several, the folder that contains "
        "all of them)",
    )
    parser.add_argument(
        "--baseline",
        metavar="SETTING=VALUE,...",
        help="the row to compare the others with, by the differences between runs with the same "
        "seed (default: the first row)",
    )
    with short_errors("vit-results"):
        arguments = parser.parse_args()
        from vit_train.evaluate.results import gather_results

        out = gather_results(arguments.runs, arguments.out, arguments.baseline)
        tables = "results.csv, results.tex, runs.csv"
        curves = ", curves.png" if (out / "curves.png").exists() else ""
        print(printable(f"written to {out}/: results.md, {tables}{curves}"), file=sys.stderr)
