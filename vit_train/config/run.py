"""The settings of `vit-train`, their schemas, and the folder of YAML presets."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from vit_train.base.reading import flatten, require_config
from vit_train.config.augment import AugmentConfig
from vit_train.config.data import DATA_CONFIGS, DataConfig
from vit_train.config.fields import Settings, UsageError, seed_setting, setting
from vit_train.config.model import MODEL_CONFIGS, ModelConfig
from vit_train.config.tasks import TASK_CONFIGS, TaskConfig
from vit_train.config.training import (
    OPTIM_CONFIGS,
    PRECISIONS,
    CheckpointConfig,
    DistributedConfig,
    LoopConfig,
    OptimConfig,
    device_setting,
)

# The only classes that a group's `name` can select; the first is the default.
CHOSEN_BY_NAME: dict[str, dict[str, Any]] = {
    "model": MODEL_CONFIGS,
    "task": TASK_CONFIGS,
    "data": DATA_CONFIGS,
    "optim": OPTIM_CONFIGS,
}
# The groups on which predictions depend; evaluation needs neither the optimizer nor the data.
PREDICTING = ("model", "task")
# All groups of a training run.
GROUPS = (*CHOSEN_BY_NAME, "augment", "experiment")
# The arguments that name an earlier run; the command starts from that run's settings.
CONTINUED = ("resume", "extend", "fork", "config")
# The argument that names modules with the user's own parts.
IMPORT = "import="
# In the wheel, conf/ is a subpackage; in a checkout, it is at the top level.
CONF_DIR = next(filter(Path.is_dir, (top / "conf" for top in Path(__file__).parents[1:3])))


@dataclass
class TrainConfig(Settings):
    """All settings of `vit-train`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    resume: str | None = setting(
        None, "Resume this unfinished run (its folder or one of its checkpoints) with its settings."
    )
    extend: str | None = setting(
        None,
        "Continue training from the end of this finished run (its folder) for train.epochs more "
        "epochs, in a new folder.",
    )
    fork: str | None = setting(
        None,
        "Continue a copy of this run (its folder or one of its checkpoints) in a new folder, "
        "changing only the settings on the command line.",
    )
    config: str | None = setting(
        None,
        "Start a new run with the settings of this run (its folder, its config.yaml, or a summary "
        "such as docs/results/cifar10_vit/0.json), changing only the settings on the command "
        "line.",
    )
    name: str | None = setting(
        None,
        "Name of the run, used for its folder and in the tables of vit-results; null: no name.",
        alters="nothing",
    )
    notes: str | None = setting(
        None,
        "The purpose of the run, shown in results.md by vit-results (a text with commas needs two "
        "pairs of quotes: notes=\"'a, b'\"); null: no note.",
        alters="nothing",
    )
    trackers: list[str] = setting(
        list,
        "Also send the curves to these trackers, each an installed package: trackio (local), "
        "wandb or mlflow.",
        choices=("trackio", "wandb", "mlflow"),
        alters="nothing",
    )
    init_from: str | None = setting(
        None,
        "Start from pretrained weights: a run (its folder or a checkpoint), a file or folder "
        "of another library, timm:NAME, or builtin:cifar10; null: random weights.",
    )
    seed: int = seed_setting(
        "Seed for the initial weights, the order of the images, augmentation and dropout."
    )
    device: str = device_setting()
    precision: str = setting(
        "auto",
        "auto, fp32, tf32 (NVIDIA GPUs), bf16 or fp16 (GPUs). auto: bf16 on a GPU that "
        "supports bf16, or on a CPU on which the model trains at least 1.05 times as fast in bf16 "
        "(measured at the start); fp16 on T4, and on V100, which needs PyTorch for CUDA 12.6; "
        "otherwise fp32.",
        choices=PRECISIONS,
        alters="machine",
    )
    compile: bool | str = setting(
        "auto",
        "Compile the model before training: true, false, or auto (only on a GPU). On a CPU, "
        "compiling takes up to a minute and did not make steps faster; its effect on a GPU has "
        "not been measured.",
        choices=("auto", True, False),
        alters="machine",
    )
    deterministic: bool = setting(
        False,
        "Make runs on a GPU reproducible bit for bit, at some cost in speed. Runs on a CPU are "
        "always reproducible on the same CPU model with the same number of cores.",
        alters="machine",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data.sampler == "balanced" and getattr(self.task, "class_weights", None) == "auto":
            raise ValueError(
                "task.class_weights=auto and data.sampler=balanced both compensate for "
                "uneven classes: choose one of them"
            )
        if self.train.patience is not None and self.data.val == "none":
            raise ValueError(
                f"train.patience={self.train.patience} needs validation images, but data.val=none "
                "does not hold out any: choose data.val=split"
            )


def with_defaults(config: TrainConfig) -> TrainConfig:
    """Fill in the groups that a config made in Python leaves unset.

    The default of a group is its first class: a Vision Transformer that classifies generated
    shapes, trained with AdamW.
    """
    for group, classes in CHOSEN_BY_NAME.items():
        if getattr(config, group) == getattr(TrainConfig(), group):
            config = replace(config, **{group: next(iter(classes.values()))()})
    return config


def readable(config: TrainConfig) -> TrainConfig:
    """Check a config made in Python, and return it as it would be read from a checkpoint.

    Raise ValueError if a group has an unregistered class, or if a value has the wrong type.
    """
    for group, classes in CHOSEN_BY_NAME.items():
        if type(getattr(config, group)) not in classes.values():
            names = ", ".join(each.__name__ for each in classes.values())
            raise ValueError(
                f"{group} must be one of: {names}; a class of your own must be registered under a "
                f"unique name ({group.upper()}_CONFIGS[NAME] = …)"
            )
    return from_checkpoint(asdict(config))


# What the field of each setting declares, by the setting's key.
Declared = dict[str, dict[str, Any]]

# Hydra takes milliseconds to store each of these, and a program may call several commands.
store = cache(ConfigStore.instance().store)


def declared(kind: type[Settings] = TrainConfig, prefix: str = "") -> Declared:
    """Map the key of every setting, such as "optim.lr", to its type and what its field declares.

    The settings are those of the command with the dataclass `kind`. The groups themselves, such as
    "optim", and the settings of all their choices are included. See `setting`.
    """
    found: Declared = {}
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        key = f"{prefix}{each.name}"
        # Another choice has another state. A user's own command may take any dataclass.
        kept = getattr(kind, "kept_by_fork", True) or each.name == "name"
        own = {name: value for name, value in each.metadata.items() if value is not None}
        found[key] = {"type": hint, "kept_by_fork": kept, **own}
        if isinstance(hint, type) and is_dataclass(hint):
            found[key]["kept_by_fork"] = getattr(hint, "kept_by_fork", True)
            for choice in (hint, *CHOSEN_BY_NAME.get(each.name, {}).values()):
                if issubclass(choice, hint):
                    found |= declared(choice, f"{key}.")
    return found


def declared_by(config: dict[str, Any]) -> Declared:
    """Return what is `declared` for the choices in a run's settings.

    For example, data.root alters nothing for CIFAR-10, whose images are the same in every folder.
    """
    found = declared()
    for group, classes in CHOSEN_BY_NAME.items():
        if choice := classes.get(choice_of(config, group)):
            found |= declared(choice, f"{group}.")
    return found


def may_change(key: str, argument: str, known: Declared) -> bool:
    """Return True if `argument`, one of CONTINUED, allows a setting or group of a run to change.

    `known` is the result of `declared`.

    resume= allows only settings that change results by no more than rounding, and those that depend
    on the machine, because another machine may not support the run's own values. (The summary
    records the precision of every step.) extend= and fork= also allow settings that are not
    `kept_by_fork`. config= allows all settings.
    """
    own = known.get(key, {})
    if argument == "config" or own.get("alters", "results") != "results":
        return True
    return argument != "resume" and not own.get("kept_by_fork", True)


def register_schemas() -> None:
    """Register the settings' dataclasses with Hydra.

    Defaults then come from the dataclasses, and the YAML files in conf/ hold only presets.
    """
    store(name="train_schema", node=TrainConfig)
    for group, classes in CHOSEN_BY_NAME.items():
        for name, node in classes.items():
            store(name=f"{group}_{name}_schema", node=node)
            if not (CONF_DIR / group / f"{name}.yaml").exists():
                store(group=group, name=name, node=node)


Config = TypeVar("Config", bound=Settings)


def to_config(config: DictConfig, kind: type[Config]) -> Config:
    """Convert a composed config to the dataclass `kind`; raise UsageError for an invalid config."""
    # A group's name is chosen through the group: model=tiny.
    missing = sorted(key.removesuffix(".name") for key in OmegaConf.missing_keys(config))
    if missing:
        known = declared(kind)
        lines = (
            f"{key}= is missing. {known[key].get('help', f'Choose it with {key}=NAME.')}"
            for key in missing
        )
        raise UsageError("\n".join(lines))
    try:
        result = OmegaConf.to_object(config)
    except ValueError as error:
        raise UsageError(str(error)) from error
    assert isinstance(result, kind)
    for group, classes in CHOSEN_BY_NAME.items():
        part: Any = getattr(result, group, None)
        if type(part) in classes.values() and classes.get(part.name) is not type(part):
            raise UsageError(
                f"{group}.name={part.name} cannot be set: use {group}=NAME instead; a class of "
                "your own needs its NAME as the default of its field `name`"
            )
    return result


def schema_of(stored: dict[str, Any], needed: Collection[str] = GROUPS) -> DictConfig:
    """Return the schema of a saved run's config: the settings of the run's choices, with defaults.

    A choice that is not registered, such as a user's own model, has an unknown schema. If the group
    of this choice is in `needed`, raise UsageError. Otherwise, use only the settings that all
    choices of the group share.
    """
    chosen = {}
    for group, classes in CHOSEN_BY_NAME.items():
        name = choice_of(stored, group)
        if not name or (group in needed and name not in classes):
            raise UsageError(
                f"the config's {group} must be one of: {', '.join(classes)}; if your own "
                "module registers another one, add import=MODULE"
            )
        if name in classes:
            chosen[group] = classes[name]
    return schema(tuple(chosen.items()))


@cache
def schema(chosen: tuple[tuple[str, type], ...]) -> DictConfig:
    """Return the config schema for `chosen`, pairs of a group and a class.

    The schema is cached, because building it takes 30 ms, and a folder of runs has many configs.
    Callers must not change the schema.
    """
    return OmegaConf.merge(OmegaConf.structured(TrainConfig), dict(chosen))  # type: ignore[return-value]


def from_checkpoint(stored: dict[str, Any], needed: Collection[str] = GROUPS) -> TrainConfig:
    """Convert the config in a checkpoint to a TrainConfig; raise ValueError for an invalid config.

    For a choice that is not registered in this program, such as a user's own model, keep only the
    settings that all choices of the group share. If the group is in `needed`, raise ValueError
    instead.
    """
    require_config(stored, "the config")
    schema = schema_of(stored, needed)
    config = dict(stored)
    for group in CHOSEN_BY_NAME.keys() - needed:
        if choice_of(stored, group) not in CHOSEN_BY_NAME[group]:
            known = schema[group].keys()
            config[group] = {key: value for key, value in stored[group].items() if key in known}
    return to_config(OmegaConf.merge(schema, OmegaConf.create(config)), TrainConfig)  # type: ignore[arg-type]


def default_settings(stored: dict[str, Any], needed: Collection[str] = GROUPS) -> dict[str, Any]:
    """Return the default of every setting by its key, given a saved run's choice for each group."""
    return by_key(OmegaConf.to_container(schema_of(stored, needed)))  # type: ignore[arg-type]


def with_settings(config: TrainConfig, settings: dict[str, Any]) -> TrainConfig:
    """Return the config with other values for some settings, such as {"model.depth": 4}."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        group, _, name = key.rpartition(".")
        groups.setdefault(group, {})[name] = value
    changes = groups.pop("", {})
    # All settings of a group at once, because some values are allowed only together.
    changes |= {group: replace(getattr(config, group), **each) for group, each in groups.items()}
    return replace(config, **changes)


def values(config: TrainConfig) -> dict[str, Any]:
    """Return the values of all settings by their keys, such as "model.depth"."""
    return {
        f"{name}.{key}".removesuffix("."): value
        for name, part in vars(config).items()
        for key, value in (vars(part) if isinstance(part, Settings) else {"": part}).items()
    }


def by_key(settings: dict[str, Any]) -> dict[str, Any]:
    """Flatten a run's settings; a null setting has its value of `otherwise` (see `setting`)."""
    known = declared_by(settings)
    return {
        key: known.get(key, {}).get("otherwise", value) if value == "null" else value
        for key, value in flatten(settings)
    }


def choice_of(settings: dict[str, Any], group: str) -> str:
    """Return the name of a run's choice for a group, or "" if the settings do not state it."""
    part = settings.get(group, {})
    name = part.get("name") if isinstance(part, dict) else ""
    return name if isinstance(name, str) else ""


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings without the paths on the machine that trained the model."""
    named = {
        group: {
            key: Path(value).name
            if key in ("teacher", "file", "split_as", "decisions") and value
            else value
            for key, value in config[group].items()
        }
        for group in ("task", "data")
    }
    named["data"] |= {"root": "data", "download": False}
    return config | named | dict.fromkeys(("init_from", *CONTINUED))


def keys_of(overrides: Sequence[str]) -> list[str]:
    """Return the names of the settings and groups in `overrides`; for a={b: 1}, return a.b."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [key for key, _ in flatten({each.key_or_group: each.value() for each in parsed})]
