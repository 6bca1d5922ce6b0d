"""Import here what the commands import on their way: children begin with it."""

import gc
import importlib
import os

# Children compute in one thread; a process that has started OpenMP's threads could not be forked.
os.environ["OMP_NUM_THREADS"] = "1"

from conftest import MAINS

# What they bring only when they come to it, and what torch, matplotlib and Hydra bring then.
LATER = (
    *("training.train", "training.preview", "evaluation.evaluate", "evaluation.comparison"),
    *("results.table", "data.published", "data.folder"),
)
OTHERS = (
    *("torch._dynamo", "torch.distributed", "torchvision.datasets", "matplotlib.pyplot"),
    *("matplotlib.backends.backend_agg", "PIL.PngImagePlugin", "filelock", "tqdm"),
    *("hydra_plugins.hydra_optuna_sweeper.optuna_sweeper", "optuna", "antlr4.LL1Analyzer"),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher",
)
for name in (*(f"vit_train.{each}" for each in LATER), *OTHERS):
    importlib.import_module(name)
# Children's garbage collections leave all of it alone, and so the pages are not copied.
gc.freeze()

__all__ = ["MAINS"]
