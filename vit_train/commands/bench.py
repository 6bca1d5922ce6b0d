"""vit-bench: measure the speed of training and inference, also against other libraries."""

import sys
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from vit_train.bench.config import BenchConfig
from vit_train.commands.cli.command import refuse_sweep
from vit_train.commands.cli.errors import short_errors
from vit_train.commands.cli.help import run_or_help
from vit_train.commands.cli.naming import is_named
from vit_train.commands.cli.overrides import quote_values
from vit_train.config import CONF_DIR, GROUPS, register_schemas, typed
from vit_train.runs.lock import removed_if_empty

ABOUT = """\
vit-bench: measure how fast training and inference are here, also against other libraries.

  vit-bench model=tiny 'bench.batch_sizes=[64,128]' 'bench.peers=[timm,torchvision]'"""


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="bench")
def job(composed: DictConfig) -> None:
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    with short_errors("vit-bench"), removed_if_empty(folder, is_named(settings)):
        if (folder / "bench.json").exists():
            raise ValueError(f"{folder} already holds a benchmark: choose another hydra.run.dir")
        config = typed(composed, BenchConfig)
        from vit_train.bench.run import benchmark

        benchmark(config, folder)


def main() -> None:
    register_schemas()
    ConfigStore.instance().store(name="bench_schema", node=BenchConfig)
    with short_errors("vit-bench"):
        refuse_sweep(sys.argv[1:])
        sys.argv[1:] = quote_values(sys.argv[1:], ("data.root",))
        run_or_help(job, ABOUT, (*GROUPS, "bench"), BenchConfig)


if __name__ == "__main__":
    main()
