"""vit-export: hand a trained model on to other programs."""

from vit_train.commands.command import make_command
from vit_train.runs.settings import ExportConfig

ABOUT = """\
vit-export: write a trained model as ONNX, torch.export, safetensors, or for timm or Hugging Face.

  vit-export ckpt=outputs/cifar10-tiny format=onnx
  vit-export ckpt=outputs/cifar10-tiny format=hf out=my_model"""


def export(config: ExportConfig) -> None:
    from vit_train.interop.export import export

    export(config)


main = make_command("vit-export", ExportConfig, ABOUT, export, paths=("ckpt", "out", "data.root"))

if __name__ == "__main__":
    main()
