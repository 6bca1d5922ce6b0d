"""vit-augment: a contact sheet of augmented training images."""

import hydra
from omegaconf import DictConfig

from vit_train.commands.cli.errors import short_errors
from vit_train.commands.cli.help import run_or_help
from vit_train.config import CONF_DIR, SheetConfig, register_schemas, typed

ABOUT = """\
vit-augment: draw some training images as they are, and augmented.

  vit-augment data=cifar10 augment=strong out=augmented.png"""


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="augmentations")
def job(composed: DictConfig) -> None:
    with short_errors("vit-augment"):
        config = typed(composed, SheetConfig)
        from vit_train.runs.augment import draw_contact_sheet

        draw_contact_sheet(config)


def main() -> None:
    register_schemas()
    with short_errors("vit-augment"):
        run_or_help(job, ABOUT)


if __name__ == "__main__":
    main()
