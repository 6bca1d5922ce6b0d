"""--help: every setting with what the source says of it, and unchanged values."""

from dataclasses import dataclass, field

import pytest
import yaml
from conftest import MAINS, Run

from vit_train.commands.cli.described import comments, described
from vit_train.config import TrainConfig


@dataclass
class Inner:
    # Not a comment of this field, because a line is between.

    plain: int = 1
    beside: int = 2  # what stands beside
    # Two lines:
    # "quoted" and x: y.
    above: str = "a"


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    # The last.
    last: list[int] = field(default_factory=list)


def test_the_comments_above_a_field_describe_it() -> None:
    assert comments(Inner) == {
        "plain": "",
        "beside": "what stands beside",
        "above": 'Two lines: "quoted" and x: y.',
    }
    text = "inner:\n  plain: 1\n  beside: 2\n  above: 'a: # b'\nlast:\n- 1\n- 2\n"
    shown = described(text, Outer)
    assert yaml.safe_load(shown) == yaml.safe_load(text)
    lines = shown.splitlines()
    assert lines[lines.index("  above: 'a: # b'") - 1] == '  # Two lines: "quoted" and x: y.'
    assert lines[lines.index("last:") - 1] == "# The last."


def test_a_choice_has_its_own_settings_described(run: Run) -> None:
    outcome = run("vit-train", "optim=muon", "data=folder", "data.root=x", "--help")
    assert outcome.status == 0
    for name, comment in comments(TrainConfig).items():
        assert comment.split(".")[0][:60] in " ".join(
            line.strip("# ") for line in outcome.out.splitlines()
        ), name
    assert "# Applied to matrices only" in outcome.out  # a field of a base of Muon's settings
    assert "# Files that cannot be decoded" in outcome.out


@pytest.mark.parametrize("command", sorted(MAINS.keys() - {"vit-results"}))
def test_what_is_shown_can_be_read_as_yaml(run: Run, command: str) -> None:
    _, settings = run(command, "--help").out.split("changed by key=value ==\n")
    settings, _, _ = settings.rpartition("\nAdd --cfg job")
    assert yaml.safe_load(settings) == yaml.safe_load(run(command, "--cfg", "job").out)
    assert "# " in settings
