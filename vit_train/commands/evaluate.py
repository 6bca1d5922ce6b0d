"""vit-eval: evaluate a checkpoint."""

import sys
from collections.abc import Sequence

from vit_train.commands.cli.command import make_command
from vit_train.commands.cli.errors import short_errors
from vit_train.config import GROUPS
from vit_train.runs.config import EvalConfig

ABOUT = """\
vit-eval: evaluate a checkpoint, a run's best one, or the newest finished run in a folder.

  vit-eval ckpt=outputs/cifar10-tiny split=test
  vit-eval 'ckpt=[outputs/cifar10-tiny,outputs/cifar10-small]'"""


def evaluate(config: EvalConfig) -> None:
    if isinstance(config.ckpt, list):
        from vit_train.runs.evaluation.comparison import compare_checkpoints

        compare_checkpoints(config)
    else:
        from vit_train.runs.evaluation.evaluate import evaluate_checkpoint

        evaluate_checkpoint(config)


def refuse_groups(arguments: Sequence[str]) -> None:
    """Raise ValueError for a group of `vit-train`, such as data=shapes."""
    for argument in arguments:
        group, _, value = argument.lstrip("+~").partition("=")
        if group in GROUPS and value[:1] != "{":  # data={root:X} sets what is in it
            raise ValueError(
                f"there is no group {group} here: model, task and data come from the run "
                "(data.root= and data.image_size= can be set)"
            )


command = make_command("vit-eval", EvalConfig, ABOUT, evaluate, paths=("ckpt", "data.root"))


def main() -> None:
    with short_errors("vit-eval"):
        refuse_groups(sys.argv[1:])
        command()


if __name__ == "__main__":
    main()
