"""vit-explain: draw where a model's predictions come from."""

from vit_train.commands.command import make_command
from vit_train.runs.settings import ExplainConfig

ABOUT = """\
vit-explain: draw which parts of an image a prediction comes from.

  vit-explain ckpt=outputs/cifar10-tiny
  vit-explain ckpt=outputs/cifar10-tiny images=photo.jpg method=rollout"""


def explain(config: ExplainConfig) -> None:
    from vit_train.explain.explain import explain_answers

    explain_answers(config)


main = make_command(
    "vit-explain", ExplainConfig, ABOUT, explain, paths=("images", "ckpt", "data.root", "out")
)

if __name__ == "__main__":
    main()
