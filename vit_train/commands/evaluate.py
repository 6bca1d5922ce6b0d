"""vit-eval: evaluate a checkpoint."""

import sys
from collections.abc import Sequence

import hydra
from omegaconf import DictConfig

from vit_train.commands.cli.errors import short_errors
from vit_train.commands.cli.help import run_or_help
from vit_train.commands.cli.overrides import quote_values
from vit_train.config import CHOSEN_BY_NAME, CONF_DIR, EvalConfig, register_schemas, typed

ABOUT = """\
vit-eval: evaluate a checkpoint, or a run folder's best one.

  vit-eval ckpt=outputs/cifar10-tiny/2026-11-21_12-00-00 split=test"""


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="eval")
def job(composed: DictConfig) -> None:
    with short_errors("vit-eval"):
        config = typed(composed, EvalConfig)
        from vit_train.runs.evaluate import evaluate_checkpoint

        evaluate_checkpoint(config)


def refuse_groups(arguments: Sequence[str]) -> None:
    """Raise ValueError for a group of `vit-train`, such as data=shapes."""
    folders = {path.name for path in CONF_DIR.iterdir() if path.is_dir()}
    groups = folders | CHOSEN_BY_NAME.keys()
    for argument in arguments:
        group, _, value = argument.lstrip("+~").partition("=")
        if group in groups and value[:1] != "{":  # data={root:X} sets what is in it
            raise ValueError(
                f"there is no group {group} here: model, task and data come from the run "
                "(data.root= and data.image_size= can be set)"
            )


def main() -> None:
    register_schemas()
    with short_errors("vit-eval"):
        refuse_groups(sys.argv[1:])
        sys.argv[1:] = quote_values(sys.argv[1:], ("ckpt", "data.root"))
        run_or_help(job, ABOUT)


if __name__ == "__main__":
    main()
