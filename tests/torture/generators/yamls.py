"""config.yaml in a run's folder: anything that YAML can say, and what it cannot."""

import random
from collections.abc import Callable

from torture.place import Place


def make(rng: random.Random, place: Place) -> None:
    run = place.copy(rng.choice(["interrupted", "finished"]))
    path = run / "config.yaml"
    text = path.read_text(encoding="utf-8")
    name = rng.choice(list(TEXTS))
    place.note(name)
    path.write_bytes(TEXTS[name](text, rng))
    if rng.random() < 0.4:
        (run / "summary.json").unlink()
    arguments = rng.choice([[], ["train.max_minutes=null"], ["checkpoint.keep=2"]])
    place.run("vit-train", "resume=run", *arguments, writes=["run"])


def appended(more: str) -> Callable[[str, random.Random], bytes]:
    return lambda text, rng: (text + more).encode()


def instead(more: str | bytes) -> Callable[[str, random.Random], bytes]:
    data = more.encode() if isinstance(more, str) else more
    return lambda text, rng: data


def changed_value(text: str, rng: random.Random) -> bytes:
    """Of one of the lines."""
    lines = text.splitlines()
    number = rng.randrange(len(lines))
    key, _, _ = lines[number].partition(":")
    lines[number] = f"{key}: {rng.choice(VALUES)}"
    return "\n".join(lines).encode()


def lost_lines(text: str, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    del lines[(start := rng.randrange(len(lines))) : start + rng.randrange(1, 9)]
    return "".join(lines).encode()


def damaged(text: str, rng: random.Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(rng.choice([1, 3, 30])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def merges(depth: int, width: int) -> str:
    """The same, with YAML's keys for merging."""
    levels = (", ".join([f"*a{n - 1}"] * width) for n in range(1, depth))
    lines = (f"a{n}: &a{n} {{<<: [{inner}]}}\n" for n, inner in enumerate(levels, start=1))
    return "a0: &a0 {x: 1}\n" + "".join(lines)


def laughs(depth: int, width: int, form: str) -> str:
    """Aliases of aliases: small here, and width ** depth for who follows them all."""
    opening, closing, sign = form
    lines = [f"a0: &a0 {opening}{'x' if sign == ',' else 'x: 1'}{closing}"]
    for n in range(1, depth):
        inner = ", ".join(
            f"*a{n - 1}" if opening == "[" else f"k{i}: *a{n - 1}" for i in range(width)
        )
        lines.append(f"a{n}: &a{n} {opening}{inner}{closing}")
    return "\n".join(lines) + "\n"


VALUES = (
    "!!python/object/apply:os.system ['touch ../outside/evil']", "!!python/name:os.system ''",
    "!!binary x", "!!set {a, b}", "!!timestamp 2001-01-01", "2001-01-01", "!!float x", "!!int x",
    "!foreign x", "&a [*a]", "&a {b: *a}", "*nothing", "9" * 5000, "0x" + "f" * 5000,
    "1" + "_0" * 3000, ".nan", ".inf", "-.inf", "1e400", "-1", "0", "10000000000000000000000", "~",
    "null", "''", "x" * 10**6, "${seed}", "${oc.env:HOME}", "${oc.env:NOWHERE}", "${model}", "${",
    "???", "${.x}", "${now:}", "[1, 2", "{a: ", "'", '"\\ud800"', '"\\0"', '"\\e[2J"', "é", "|",
    ">-", "- - -", "yes", "1:30:00", "${oc.create:{a:1}}", "[" * 300 + "]" * 300,
    "{a: " * 300 + "}" * 300, "2147483648", "1e9", "9223372036854775807", "9223372036854775808",
    "[x]", "{x: 1}", "true", "1.5", "../..", "/",
)  # fmt: skip
DEEP = 50_000
TEXTS = {
    "a changed value": changed_value,
    "a changed value again": changed_value,
    "a changed value once more": changed_value,
    "lost lines": lost_lines,
    "damaged": damaged,
    "cut": lambda text, rng: text[: rng.randrange(len(text))].encode(),
    "noise": lambda text, rng: rng.randbytes(rng.randrange(5000)),
    "laughs in lists": appended(laughs(9, 9, "[],")),
    "laughs in lists, instead": instead(laughs(30, 2, "[],")),
    "laughs in dicts": appended(laughs(9, 9, "{}:")),
    "laughs in dicts, instead": instead(laughs(30, 2, "{}:")),
    "laughs by merging": appended(merges(9, 9)),
    "laughs in the model": lambda text, rng: text.replace(
        "model:", laughs(9, 9, "[],") + "model:\n  more: *a8", 1
    ).encode(),
    "deep lists": instead("[" * DEEP + "]" * DEEP),
    "deep lists that do not end": instead("[" * DEEP),
    "deep dicts": instead("{a: " * DEEP + "}" * DEEP),
    "deep blocks": instead("".join(" " * n + "a:\n" for n in range(2000))),
    "deep dashes": instead("- " * DEEP + "x"),
    "deep value": appended("more: " + "[" * 5000 + "]" * 5000 + "\n"),
    "in itself": instead("&a\nmodel: *a\ntask: *a\ndata: *a\n"),
    "a list in itself": instead("&a [*a, *a]"),
    "merged with itself": instead("&a\n<<: *a\nmodel: x\n"),
    "keys that are no words": appended("? [a, b]\n: 1\n? {a: 1}\n: 2\n1: 3\nnull: 4\n1.5: 6\n"),
    "duplicate keys": lambda text, rng: (text + text).encode(),
    "another document": lambda text, rng: (text + "\n---\n" + text).encode(),
    "many documents": instead("---\n" * 100_000),
    "a directive": instead("%YAML 9.9\n%TAG ! tag:x,2000:\n--- !x {}\n"),
    "UTF-16": lambda text, rng: text.encode("utf-16"),
    "zeros": instead(bytes(10**6)),
    "empty": instead(""),
    "a word": instead("x"),
    "a list": instead("- 1\n- 2\n"),
    "a number": instead("9" * 5000),
    "tabs": instead("model:\n\tname: vit\n"),
    "many keys": appended("".join(f"k{n}: {n}\n" for n in range(50_000))),
    "a long line": appended("k: '" + "x" * 10**7 + "'\n"),
    "comments": appended("# x\n" * 10**6),
    "an object": instead("!!python/object/new:os.system ['true']"),
    "unknown settings": appended("hydra: {run: {dir: x}}\n_target_: os.system\ndefaults: [x]\n"),
    "interpolations of interpolations": appended(
        "a0: x\n" + "".join(f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}\n" for n in range(1, 40))
    ),
    "interpolations in a circle": appended("a: ${b}\nb: ${a}\n"),
}  # fmt: skip
