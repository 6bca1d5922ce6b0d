"""Settings with what they mean: the comments above the fields of their dataclasses."""

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import yaml

from vit_train.runs.config import CHOSEN_BY_NAME

WIDTH = 96


@cache
def comments(kind: type) -> dict[str, str]:
    """Return what the source says above each field of a dataclass and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            own = own_comments(base)
            found |= {name: text or found.get(name, "") for name, text in own.items()}
    return found


def own_comments(kind: type) -> dict[str, str]:
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (body,) = (node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef))
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = node.lineno - 2
            said: list[str] = []
            while lines[above].lstrip().startswith("#"):
                said.insert(0, lines[above].lstrip("# "))
                above -= 1
            _, _, beside = lines[node.lineno - 1].partition("  # ")
            found[node.target.id] = " ".join([*said, beside]).strip()
    return found


def described(settings: str, kind: type) -> str:
    """Put the comment of each setting above it, in YAML whose settings are those of `kind`."""
    values = yaml.safe_load(settings)
    kinds: list[tuple[type, Any]] = [(kind, values)]
    result = []
    for line in settings.splitlines():
        key = re.match(r"( *)(\w+):", line)
        if key:
            indent, name = key.groups()
            del kinds[len(indent) // 2 + 1 :]
            parent, content = kinds[-1]
            comment = comments(parent).get(name, "") if is_dataclass(parent) else ""
            result += textwrap.wrap(
                comment, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
            inner = content.get(name) if isinstance(content, dict) else None
            kinds.append((kind_of(parent, name, inner), inner))
        result.append(line)
    return "\n".join(result)


def kind_of(parent: type, field: str, value: Any) -> type:
    """Return the type of a field: of a group, that of the choice that its value names."""
    if not is_dataclass(parent):
        return object
    hint = get_type_hints(parent).get(field, object)
    kind: Any = next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), object)
    name = str(value.get("name")) if isinstance(value, dict) else ""
    chosen: type = CHOSEN_BY_NAME.get(field, {}).get(name, object)
    return chosen if issubclass(chosen, kind) else kind
