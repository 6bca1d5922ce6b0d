"""vit-eval: evaluate a checkpoint."""

from vit_train.commands.command import make_command
from vit_train.runs.settings import EvalConfig

ABOUT = """\
vit-eval: evaluate a checkpoint, a run's best one, or the newest finished run in a folder.

  vit-eval ckpt=outputs/cifar10-tiny split=test
  vit-eval 'ckpt=[outputs/cifar10-tiny,outputs/cifar10-small]'"""


def evaluate(config: EvalConfig) -> None:
    if isinstance(config.ckpt, list):
        from vit_train.evaluation.comparison import compare_checkpoints

        compare_checkpoints(config)
    else:
        from vit_train.evaluation.evaluate import evaluate_checkpoint

        evaluate_checkpoint(config)


main = make_command("vit-eval", EvalConfig, ABOUT, evaluate, paths=("ckpt", "data.root"))

if __name__ == "__main__":
    main()
