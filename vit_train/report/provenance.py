"""The origin of a result: program versions, the commit, the machine."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    return {
        "vit_train": version("vit-train"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": version("torchvision"),
    }


def commit() -> str | None:
    """Return the checkout's commit, with "+changes" if tracked files differ from it.

    None means that there is no checkout, or that git failed.
    """
    top = Path(__file__).parents[2]
    if not (top / ".git").exists():
        return None
    try:
        head = _git(top, "rev-parse", "HEAD")
        return head + ("+changes" if _git(top, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(top: Path, *arguments: str) -> str:
    command = ["git", "-C", str(top), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine(device: torch.device) -> dict[str, str | int | None]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "gpu": gpu,
    }


def command_line() -> str:
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
