"""--help: every setting with its text, and unchanged values."""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import get_type_hints

import pytest
import yaml
from conftest import MAINS, Run
from omegaconf import DictConfig, OmegaConf
from test_bounds import all_kinds

from vit_train.base.setting import Settings, setting
from vit_train.commands.command import described
from vit_train.data.config import FolderConfig
from vit_train.engine.config import MuonConfig
from vit_train.runs.config import CHOSEN_BY_NAME, TrainConfig


@dataclass
class Inner(Settings):
    plain: int = 1
    text: str = setting("a", 'Two lines: "quoted" and x: y. ' + "word " * 30)


@dataclass
class Outer(Settings):
    inner: Inner = field(default_factory=Inner)
    last: list[int] = setting(list, "The last.")


def test_the_text_of_a_setting_is_above_it() -> None:
    values = {"inner": {"text": "a: # b"}, "last": [1, 2]}
    config = OmegaConf.merge(OmegaConf.structured(Outer), values)
    assert isinstance(config, DictConfig)
    lines = "\n".join(described(config)).splitlines()
    assert yaml.safe_load("\n".join(lines)) == OmegaConf.to_container(config)
    assert lines[lines.index("last:") - 1] == "# The last."
    place = lines.index("  text: 'a: # b'")
    assert lines[place - 2].startswith('  # Two lines: "quoted" and x: y. word')
    assert lines[place - 3] == "  plain: 1" and all(len(line) <= 96 for line in lines)


def test_a_choice_has_its_own_settings_explained(run: Run) -> None:
    outcome = run.succeeds("vit-train", "optim=muon", "data=folder", "data.root=x", "--help")
    shown = " ".join(line.strip("# ") for line in outcome.out.splitlines())
    for kind in (TrainConfig, MuonConfig, FolderConfig):
        for each in fields(kind):
            assert each.metadata.get("help", "") in shown, each.name
    assert "Weight decay of matrices" in shown  # a field of a base of Muon's settings


def test_every_setting_is_explained() -> None:
    kinds = all_kinds()
    assert len(kinds) > 25
    for kind in kinds:
        for each in fields(kind):
            part = is_dataclass(get_type_hints(kind)[each.name])
            chosen = each.name == "name" and hasattr(kind, "group") and kind.group in CHOSEN_BY_NAME
            assert each.metadata.get("help") or part or chosen, (kind.__name__, each.name)


@pytest.mark.parametrize("command", sorted(MAINS.keys() - {"vit-results"}))
def test_what_is_shown_can_be_read_as_yaml(run: Run, command: str) -> None:
    _, settings = run(command, "--help").out.split("(change them with key=value) ==\n")
    settings, _, _ = settings.rpartition("\nAdd --cfg job")
    assert yaml.safe_load(settings) == yaml.safe_load(run(command, "--cfg", "job").out)
    assert "# " in settings
