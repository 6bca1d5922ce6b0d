"""vit-predict: classify images."""

from vit_train.commands.command import make_command
from vit_train.runs.settings import PredictConfig

ABOUT = """\
vit-predict: classify images of any size with a trained model.

  vit-predict ckpt=outputs/cifar10-tiny images=photo.jpg
  vit-predict ckpt=outputs/cifar10-tiny images=photos out=predictions.csv"""


def predict(config: PredictConfig) -> None:
    from vit_train.evaluation.predict import predict_images

    predict_images(config)


main = make_command("vit-predict", PredictConfig, ABOUT, predict, paths=("images", "ckpt", "out"))

if __name__ == "__main__":
    main()
