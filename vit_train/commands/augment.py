"""vit-augment: a contact sheet of augmented training images."""

from vit_train.commands.command import make_command
from vit_train.runs.settings import SheetConfig

ABOUT = """\
vit-augment: draw some training images as they are, and augmented.

  vit-augment data=cifar10 augment=strong out=augmented.png"""


def draw(config: SheetConfig) -> None:
    from vit_train.training.preview import draw_contact_sheet

    draw_contact_sheet(config)


main = make_command(
    "vit-augment",
    SheetConfig,
    ABOUT,
    draw,
    groups={"data": "shapes", "augment": "strong"},
    paths=("data.root", "out"),
)

if __name__ == "__main__":
    main()
