"""The order of the arguments, and the folder that they name for a run."""

from pathlib import Path

import pytest
from conftest import Run

from vit_train.commands import train
from vit_train.runs.paths import Outcome


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the runs that would start, below the current one."""
    seen: list[str] = []

    def note(composed: object, settings: object) -> Outcome:
        folder = Path(settings.runtime.output_dir)
        seen.append(str(folder.relative_to(Path.cwd())))
        return Outcome(folder, None)

    monkeypatch.setattr(train, "start", note)
    return seen


@pytest.mark.parametrize(
    "arguments, name",
    [
        ([], "shapes-tiny"),
        (["task=reconstruct"], "shapes-tiny-reconstruct"),
        (["data=cifar10", "model=small", "data.root=x"], "cifar10-small"),
        (["data=folder", "data.root=my/pets"], "pets-tiny"),
        (["data=folder", "data.root='a b'"], "a_b-??????-tiny"),
        (["model=cnn", "data=cifar10"], "cifar10-cnn"),
        (["experiment=mae"], "mae"),
        (["experiment=[quickstart,paper_example]"], "shapes-tiny"),
        (["extend=runs/first"], "first-extended"),
    ],
)
def test_a_run_is_named_by_what_was_chosen(
    run: Run, folders: list[str], arguments: list[str], name: str
) -> None:
    run.succeeds("vit-train", *arguments)
    (folder,) = folders
    assert Path(folder).match(f"outputs/{name}/20??-??-??_??-??-??")


@pytest.mark.parametrize(
    "arguments",
    [
        "seed=0,1 model=cnn --multirun",
        "seed=0,1 --config-dir mine -m model=own",
        "-m seed=0,1 --config-dir=mine model=own",
    ],
)
def test_flags_may_stand_anywhere(run: Run, folders: list[str], arguments: str) -> None:
    Path("mine/model").mkdir(parents=True)
    Path("mine/model/own.yaml").write_text("defaults: [tiny]\ndepth: 3\n", encoding="utf-8")
    run.succeeds("vit-train", *arguments.split())
    assert [Path(folder).name for folder in folders] == ["0", "1"]
    assert {Path(folder).parts[:2] for folder in folders} == {("outputs", "multirun")}


def test_flags_may_stand_anywhere_for_every_command(run: Run) -> None:
    for command in ("vit-train", "vit-augment"):
        outcome = run.succeeds(command, "seed=3", "--cfg", "job", "data=cifar10")
        assert "seed: 3" in outcome.out and "name: cifar10" in outcome.out
    assert "split: val" in run.succeeds("vit-eval", "ckpt=x", "--cfg", "job", "split=val").out


FEW = ["data.train_images=9", "data.test_images=9"]


@pytest.mark.parametrize(
    "command, arguments",
    [
        ("vit-train", ["data.train_images=1", "data.test_images=9"]),
        ("vit-train", [*FEW, "experiment=quickstart", "model.patch_size=5"]),
        ("vit-train", ["model.num_heads=3"]),
    ],
)
def test_a_start_that_is_refused_leaves_no_folder(
    run: Run, command: str, arguments: list[str]
) -> None:
    assert run(command, *arguments).status == 1
    assert list(Path().iterdir()) == []
    Path("outputs/kept").mkdir(parents=True)
    assert run(command, *arguments).status == 1
    assert list(Path("outputs").iterdir()) == [Path("outputs/kept")]
    Path("mine").mkdir()
    assert run(command, *arguments, "hydra.run.dir=mine/run").status == 1
    assert Path("mine").is_dir() and not Path("mine/run").exists()
