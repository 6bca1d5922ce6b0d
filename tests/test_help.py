"""--help: every setting with what the source says of it, and unchanged values."""

from dataclasses import dataclass, field, is_dataclass
from typing import get_type_hints

import pytest
import yaml
from conftest import MAINS, Run

from vit_train.commands.described import comments, described
from vit_train.runs import settings as after
from vit_train.runs.config import CHOSEN_BY_NAME, TrainConfig


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


# Settings that the comment above their neighbor explains, too.
SHARED = {
    *("min_lr", "warmup_epochs", "beta2", "every_minutes", "max_skips", "seconds"),
    *("embed_dim", "depth", "num_heads", "mlp_dim", "proj_bias", "mlp_bias"),
    *("positions_at", "cls_std", "pos_std", "blocks", "train_images", "test_images", "draw_seed"),
    *("std", "val_fraction", "cv_fold", "val_subset", "test_subset", "layer", "variants"),
    *("num_ops", "magnitude", "erase_area", "cutmix_alpha", "mix_prob", "classes"),
}


def test_every_setting_is_explained() -> None:
    groups = [kind for choices in CHOSEN_BY_NAME.values() for kind in choices.values()]
    asked, kinds = [TrainConfig, *groups, *vars(after).values()], []
    for kind in asked:
        if isinstance(kind, type) and is_dataclass(kind) and kind not in kinds:
            kinds.append(kind)
            asked += [each for each in get_type_hints(kind).values() if is_dataclass(each)]
    assert len(kinds) > 25
    for kind in kinds:
        for name, comment in comments(kind).items():
            part = is_dataclass(get_type_hints(kind)[name])
            assert comment or part or name == "name" or name in SHARED, (kind.__name__, name)


@pytest.mark.parametrize("command", sorted(MAINS.keys() - {"vit-results"}))
def test_what_is_shown_can_be_read_as_yaml(run: Run, command: str) -> None:
    _, settings = run(command, "--help").out.split("(change them with key=value) ==\n")
    settings, _, _ = settings.rpartition("\nAdd --cfg job")
    assert yaml.safe_load(settings) == yaml.safe_load(run(command, "--cfg", "job").out)
    assert "# " in settings
