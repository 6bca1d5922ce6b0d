"""vit-train: train a model."""

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from vit_train.commands.boundary import short_errors
from vit_train.config import CONF_DIR, TrainConfig, register_schemas, typed


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")
def job(composed: DictConfig) -> None:
    with short_errors("vit-train"):
        config = typed(composed, TrainConfig)
        from vit_train.training import train

        finished = train(config, Path(HydraConfig.get().runtime.output_dir))
    if not finished:
        sys.exit(130)


def main() -> None:
    register_schemas()
    with short_errors("vit-train"):
        job()


if __name__ == "__main__":
    main()
