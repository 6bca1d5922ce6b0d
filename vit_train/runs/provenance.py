"""The origin of a result: program versions, the commit, the machine."""

import contextlib
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from vit_train.base.text import printable

CPUINFO = Path("/proc/cpuinfo")
# On which the speed and the rounding of matrix products depend.
EXTENSION = re.compile("amx|avx|bf16|f16c|fma|i8mm|neon|sme|sve").match


def versions() -> dict[str, str]:
    return {
        "vit_train": version_of("vit-train"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": version_of("torchvision"),
    }


def version_of(package: str) -> str:
    """Return an installed package's version; a bare checkout is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def commit() -> str | None:
    """Return the commit of this program's checkout as it was when this was first called.

    A run calls it at its start; what is committed while it trains has no part in it.
    """
    return commit_of(Path(__file__).parents[2])


def commit_of(top: Path) -> str | None:
    """Return a checkout's commit, with "+changes" if tracked files differ from it.

    None means that there is no checkout, or that git failed.
    """
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


def today() -> str:
    """Return the date, in UTC, as 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def machine(device: torch.device) -> dict[str, str | int | list[str] | None]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_extensions": cpu_extensions(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "gpu": gpu,
    }


def cpu_model() -> str:
    """Return the CPU's name, or "" if the system does not tell."""
    with contextlib.suppress(OSError):
        for line in CPUINFO.read_text(errors="replace", encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":  # absent on ARM
                return value.strip()
    return platform.processor()


def cpu_extensions() -> list[str]:
    """Return the CPU's extensions for vectors and matrices; [] if this PyTorch cannot tell."""
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return sorted(name for name, has in found.items() if has is True and EXTENSION(name))


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Return this process's command, with other `arguments` if given, as it can be typed again."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "")
    if module.startswith("vit_train."):  # python -m MODULE, which torchrun needs
        program = ["python", "-m", module]
    elif module.startswith("submitit."):  # a sweep's job on Slurm
        program = ["vit-train"]
    else:
        program = [Path(sys.argv[0]).name]
    return printable(shlex.join([*program, *(sys.argv[1:] if arguments is None else arguments)]))
