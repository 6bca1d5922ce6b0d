"""What the README says of the configuration is what conf/ holds."""

import re
from pathlib import Path

from vit_train.config import CONF_DIR

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
NO_CHOICE = {"hydra"}  # logging set-ups that no user selects


def test_the_table_of_groups_names_every_choice() -> None:
    groups = {path.name: path for path in CONF_DIR.iterdir() if path.is_dir()}
    rows = dict(re.findall(r"^\| `(\w+)=` \| (.+?) \|", README, re.MULTILINE))
    for name in groups.keys() - NO_CHOICE:
        choices = {path.stem for path in groups[name].glob("*.yaml")}
        assert set(re.findall(r"`(\w+)`", rows[name])) == choices, name
