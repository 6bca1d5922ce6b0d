"""Which files are the user's own code: the same ones at any time of a process."""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from vit_train.trained.own_code import own_code

FILES = {
    "own_parts/__init__.py": "from . import att\nimport torch",
    "own_parts/att.py": "class Part:\n    def use(self):\n        from .low import scale",
    "own_parts/low.py": "from own_names.deep import anything",
    "own_names/deep.py": "import own_parts.att",  # in a folder without __init__.py
    "own_parts/other.py": "",
    "own_net.py": "class Net: pass",
    "go.py": "import own_parts",
}


def test_own_code_is_what_the_import_statements_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that have not been executed; parts may be partial, or named by text."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    part = partial(import_module("own_parts").att.Part)
    assert "own_parts.low" not in sys.modules
    found = own_code([part, "own_net:Net", Path, str])
    assert sorted(FILES.keys() - found.keys()) == ["go.py", "own_parts/other.py"]
    assert found["own_net.py"] == b"class Net: pass"
