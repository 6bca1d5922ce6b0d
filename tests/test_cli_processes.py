"""Training in several processes, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, SmallRun, posix

import vit_train
from vit_train.base.reading import read_json
from vit_train.commands import train
from vit_train.trained.checkpoint import Checkpoint

pytestmark = posix

# Two processes here and its own log apart.
QUIET = os.environ | {"OMP_NUM_THREADS": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# What torchrun does, from a process that has imported torch: two processes for each command.
PAIRS = """
import os, signal, socket, sys, time
import torch._dynamo, vit_train.run.train

for arguments in {commands}:
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    children = []
    endless, began = "train.epochs=100000" in arguments, time.time()
    for rank in "01":
        children.append(os.fork())
        if not children[-1]:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = rank
            sys.argv = ["vit-train", *arguments]
            from vit_train.commands.train import main
            main()
            sys.exit()
    if endless:
        silent = "hydra.run.dir=silent" in arguments
        last = ("silent" if silent else "endless") + "/checkpoints/last.safetensors"
        while not os.path.exists(last) and time.time() < began + 60:
            time.sleep(0.1)
        os.kill(children[1], signal.SIGSTOP if silent else signal.SIGKILL)
    statuses = []
    for child in children:
        if endless and statuses:
            os.kill(child, signal.SIGKILL)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("statuses", *statuses, "\\n== next ==", flush=True)
"""
COMMANDS = {
    "interrupted": [*SMALL, "precision=fp32", "hydra.run.dir=two", "train.max_minutes=1e-9"],
    "forked": ["fork=two", "train.max_minutes=null", "hydra.run.dir=forked"],
    "resumed": ["resume=two", "train.max_minutes=null"],
    "refused": [each for each in SMALL if not each.startswith("model.")]
    + ["model=cnn", "hydra.run.dir=refused"],
    "endless": [*SMALL, "hydra.run.dir=endless", "train.epochs=100000", "train.max_minutes=1"],
    "silent": [*SMALL, "hydra.run.dir=silent", "train.epochs=100000", "train.max_minutes=1",
               "distributed.timeout_s=10"],
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """The folder of the commands, the output of each with its statuses, and all errors."""
    place = tmp_path_factory.mktemp("pairs")
    command = [sys.executable, "-c", PAIRS.format(commands=list(COMMANDS.values()))]
    env = QUIET | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    kept = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, cwd=place, env=env, **kept)
    assert done.returncode == 0, done.stderr
    return place, done.stdout.split("== next ==\n")[:-1], done.stderr


@pytest.mark.slow
def test_two_processes_train_and_resume_one_run(
    pairs: tuple[Path, list[str], str], small_run: SmallRun, run: Run
) -> None:
    place, (interrupted, forked, resumed, *_), errors = pairs
    assert interrupted.endswith("statuses 0 0 \n"), errors
    assert "fp32 on cpu in 2 processes" in interrupted
    assert interrupted.count("stopped after step 1, because train.max_minutes has passed") == 1
    assert resumed.endswith("statuses 0 0 \n"), errors
    assert resumed.count("resuming after step 1") == 1
    assert forked.count("forks two after step 1") == 1 and forked.endswith("statuses 0 0 \n")
    ends = (
        Checkpoint.load(place / name / "checkpoints/last.safetensors") for name in ("two", "forked")
    )
    torch.testing.assert_close(*(end.model for end in ends), rtol=0, atol=0)
    assert not (place / "outputs").exists(), "only the run's folder is written"
    fork = f"fork={place}/two/checkpoints/last-1.safetensors"  # after the first step of two
    run.succeeds("vit-train", fork, "train.max_minutes=null", "hydra.run.dir=alone")
    folders = place / "two", small_run("finished", "one"), Path("alone")
    two, *others = (dict(vit_train.load(folder).model.state_dict()) for folder in folders)
    for weights in others:
        torch.testing.assert_close(two, weights, rtol=0, atol=1e-4)
    two, one, _ = (read_json(folder / "summary.json") for folder in folders)
    assert two["processes"] == 2 and two["images_seen"] == one["images_seen"]
    assert two["test"]["final"]["per_class_count"] == one["test"]["final"]["per_class_count"]
    assert two["test"]["final"]["acc"] == pytest.approx(one["test"]["final"]["acc"], abs=0.04)


@pytest.mark.slow
def test_a_process_ends_if_another_one_fails(
    pairs: tuple[Path, list[str], str],
) -> None:
    _, (*_, refused, endless, silent), errors = pairs
    assert refused.endswith("statuses 1 1 \n") and "BatchNorm" in errors
    assert endless.endswith("statuses 1 -9 \n"), endless
    assert silent.endswith("statuses 1 -9 \n"), silent
    lost = "another training process has ended, or did not respond within distributed."
    assert errors.count(lost) == 2 and "gloo" not in errors.lower()


@pytest.mark.slow
def test_a_single_process_with_a_rank_is_a_run_like_any_other(tmp_path: Path) -> None:
    alone = QUIET | {"RANK": "1"}
    command = [sys.executable, "-m", "vit_train.commands.train", *SMALL, "train.max_minutes=1e-9"]
    subprocess.run(command, cwd=tmp_path, env=alone, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_a_sweep_in_several_processes_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second run would wait for a meeting that the others have left."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    run.fails("torchrun cannot run a sweep (-m)", "vit-train", "-m", "seed=0,1", *SMALL)
    assert not list(Path().rglob("checkpoints"))


def test_a_restart_of_the_same_launch_resumes_its_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "LAUNCH", tmp_path / "launch")
    small = [*SMALL, "checkpoint.every_steps=1"]
    run.succeeds("vit-train", *small, "train.max_minutes=1e-9")
    (begun,) = Path("outputs/shapes-tiny").iterdir()
    monkeypatch.setattr(train, "LAUNCH", None)
    run.succeeds("vit-train", *small, "train.max_minutes=1e-9")
    monkeypatch.setattr(train, "LAUNCH", tmp_path / "launch")
    run.says("resuming after step 1", "vit-train", *small)
    assert read_json(begun / "summary.json")["status"] == "finished"
    assert len(list(Path("outputs/shapes-tiny").iterdir())) == 2


@pytest.mark.slow
def test_torchrun_restarts_what_was_killed_and_leaves_no_folders(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from vit_train.commands.train import main\n"
        "from vit_train.run.saver import CheckpointManager\n"
        "def killed(self, trainer):\n"
        "    rank, attempt = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "    if trainer.step == 8 and attempt == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    saved(self, trainer)\n"
        "saved, CheckpointManager.on_step = CheckpointManager.on_step, killed\n"
        "main()\n"
    )
    (tmp_path / "own.py").write_text(program, encoding="utf-8")
    (tmp_path / "temp").mkdir()
    # The model's shape, for one, is that of the pretrained model; only one process resumes it.
    small = [*SMALL[:2], "train.epochs=2", "train.batch_size=32", "init_from=builtin:cifar10"]
    command = [*TORCHRUN, "--max-restarts=1", "own.py", *small, "checkpoint.every_steps=2"]
    env = QUIET | {"TMPDIR": str(tmp_path / "temp")}
    done = subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=300,
                          capture_output=True, text=True)  # fmt: skip
    assert "resuming after step 6" in done.stdout
    (folder,) = (tmp_path / "outputs/shapes-tiny").iterdir()
    summary = read_json(folder / "summary.json")
    assert summary["status"] == "finished" and summary["processes"] == 2
    assert not list((tmp_path / "temp").glob("vit_train*"))
