"""vit-inspect: what a model is before it is trained."""

from vit_train.commands.command import make_command
from vit_train.runs.settings import InspectConfig

ABOUT = """\
vit-inspect: a new model's parameters, arithmetic, symmetry and position table.

  vit-inspect model=tiny model.positions=sinusoidal image_size=32 out=positions.png
  vit-inspect experiment=stl10_vit

It takes the settings of vit-train, and reads no images."""


def inspect(config: InspectConfig) -> None:
    from vit_train.training.preview import inspect_model

    inspect_model(config)


main = make_command(
    "vit-inspect",
    InspectConfig,
    ABOUT,
    inspect,
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

if __name__ == "__main__":
    main()
