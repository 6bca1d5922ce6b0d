"""vit-eval: evaluate a checkpoint."""

import sys

import hydra
from omegaconf import DictConfig

from vit_train.commands.cli.errors import short_errors
from vit_train.commands.cli.help import run_or_help
from vit_train.commands.cli.overrides import quote_values
from vit_train.config import CONF_DIR, EvalConfig, register_schemas, typed

ABOUT = """\
vit-eval: evaluate a checkpoint, or a run folder's best one.

  vit-eval ckpt=outputs/cifar10-tiny/2026-11-21_12-00-00 split=test"""


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="eval")
def job(composed: DictConfig) -> None:
    with short_errors("vit-eval"):
        config = typed(composed, EvalConfig)
        from vit_train.runs.evaluate import evaluate_checkpoint

        evaluate_checkpoint(config)


def main() -> None:
    register_schemas()
    with short_errors("vit-eval"):
        sys.argv[1:] = quote_values(sys.argv[1:], ("ckpt", "data.root"))
        run_or_help(job, ABOUT)


if __name__ == "__main__":
    main()
