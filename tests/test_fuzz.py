"""Whatever is typed and whatever a checkpoint holds: a result or a short message, and no harm."""

import hashlib
import io
import signal
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import SMALL_MODEL, Outcome, Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vit_train.config import TrainConfig
from vit_train.data.config import ShapesConfig
from vit_train.engine.checkpoint import SEAL, SEAL_LENGTH
from vit_train.model.config import ViTConfig
from vit_train.report.flat import flatten
from vit_train.tasks.config import ReconstructConfig

pytestmark = pytest.mark.slow
many = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
TINY = ["data.train_images=60", "data.test_images=20", *SMALL_MODEL, "train.epochs=1"]
SECONDS = 60


@contextmanager
def no_hang() -> Iterator[None]:
    def late(*what: object) -> None:
        raise AssertionError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_in_order(outcome: Outcome, command: str) -> None:
    assert "Traceback" not in outcome.err + outcome.out
    if outcome.status == 1:
        assert outcome.err.startswith(f"{command}: "), outcome.err
        assert len(outcome.err) < 3000 and outcome.err.count("\n") < 40, outcome.err
    else:
        assert outcome.status == 0 or "usage:" in outcome.err, outcome.err


def tree(folder: Path) -> dict[str, float]:
    """All there is, apart from what runs and Hydra's help may leave."""
    paths = [each for each in folder.rglob("*") if each.relative_to(folder).parts[0] != "outputs"]
    return {str(each): each.lstat().st_mtime for each in paths if each != folder}


# Every setting that a run of the built-in data has, and some words that are none.
KEYS = [key for part in ("optim", "train", "checkpoint", "augment")
        for key, _ in flatten(asdict(getattr(TrainConfig(), part)), f"{part}.")]  # fmt: skip
KEYS += [f"model.{key}" for key in asdict(ViTConfig())]
KEYS += [f"data.{key}" for key in asdict(ShapesConfig())]
KEYS += [f"task.{key}" for key in asdict(ReconstructConfig())]
KEYS += ["model", "task", "data", "augment", "experiment", "seed", "device", "precision"]
KEYS += ["deterministic", "init_from", "resume", "optim", "train", "modle", "hydra.run.x", ""]
VALUES = [
    "-1", "0", "1", "2", "3", "7", "0.5", "-0.0", "1e-9", "1e300", "nan", "inf", "-inf", "null",
    "true", "''", "x", "[]", "{}", "[1,2]", "{a: 1}", "[null]", "é", "\x1b[2J", "a b", "a,b",
    "range(3)", "${seed}", "${oc.env:NOWHERE}", "${", "'", "\\", "???", "vit", "cnn", "resnet",
    "tiny", "reconstruct", "autoregress", "strong", "none", "split", "test", "mae", "learned_2d",
    "relative", "gap", "fused", "fp32", "bf16", "cpu", "mps", "nowhere", "/", ".", "9" * 20,
]  # fmt: skip
settings_typed = st.builds(
    lambda prefix, key, value: f"{prefix}{key}={value}",
    st.sampled_from(["", "", "", "", "+", "++", "~"]),
    st.sampled_from(KEYS),
    st.one_of(st.sampled_from(VALUES), st.text(max_size=8)),
)
# Flags are Hydra's own; its words for them are not ours.
anything = st.one_of(*[settings_typed] * 4, st.text(max_size=12).filter(lambda t: t[:1] != "-"))


@many
@given(typed=st.lists(anything, min_size=1, max_size=3))
def test_whatever_is_typed(run: Run, tmp_path: Path, typed: list[str]) -> None:
    before = tree(tmp_path)
    with no_hang():
        outcome = run("vit-train", *TINY, *typed, "train.max_minutes=0.02")
    assert_in_order(outcome, "vit-train")
    assert tree(tmp_path) == before, typed


damage = st.tuples(
    st.sampled_from(["flip", "set", "delete", "insert"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
)


def damaged(data: bytes, damages: list[tuple[str, float, int]], below: int) -> bytearray:
    """Each at a place before `below`, which is given as a share of it."""
    result = bytearray(data)
    for kind, share, value in damages:
        place = min(int(share * below), len(result) - 1)
        if kind == "flip":
            result[place] ^= 1 << value % 8
        elif kind == "set":
            result[place] = value
        elif kind == "delete":
            del result[place : place + value % 9 + 1]
        else:
            result[place:place] = bytes([value])
    return result


@many
@given(damages=st.lists(damage, min_size=1, max_size=5), seal=st.booleans())
def test_whatever_a_checkpoint_holds(
    run: Run, tmp_path: Path, checkpoint: bytes, damages: list[tuple[str, float, int]], seal: bool
) -> None:
    """Damaged, or sealed again by who made the damage: mostly where the pickle is read."""
    pickled = next(
        each for each in zipfile.ZipFile(io.BytesIO(checkpoint)).infolist()
        if each.filename.endswith("data.pkl")
    )  # fmt: skip
    data = damaged(checkpoint[:-SEAL_LENGTH], damages, pickled.file_size + 100)
    digest = hashlib.sha256(data).hexdigest().encode()
    Path("fuzzed.pt").write_bytes(data + (SEAL + digest if seal else checkpoint[-SEAL_LENGTH:]))
    before = tree(tmp_path)
    with no_hang():
        outcome = run("vit-eval", "ckpt=fuzzed.pt")
    assert_in_order(outcome, "vit-eval")
    after = tree(tmp_path)
    if outcome.status:
        assert after == before
    else:  # a result is beside the file
        assert {Path(each).name for each in after.keys() - before.keys()} <= {
            "eval-test.json", "eval-test.png",
        }  # fmt: skip
