"""Where a result comes from: the machine, its memory, the program's versions and its commit."""

import contextlib
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from vit_train.base.text import printable

if TYPE_CHECKING:
    import torch  # slow; only in functions, because short error messages need this module

CPUINFO = Path("/proc/cpuinfo")


def versions() -> dict[str, str]:
    import torch

    return {
        "vit_train": version_of("vit-train"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": version_of("torchvision"),
    }


def version_of(package: str) -> str:
    """Return the version of a package, or "not installed" if pip has not installed the package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def commit(top: Path = Path(__file__).parents[2]) -> str | None:
    """Return the commit of the checkout `top`, with "+changes" if tracked files have changed.

    Return None if `top` is not a checkout, or if git fails. The result is cached at the start of a
    run, so commits made during training do not count.
    """
    if (top / ".git").exists():
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            return subprocess.check_output(
                ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"],
                cwd=top,
                text=True,
                stderr=subprocess.DEVNULL,
            ).strip()
    return None


def today() -> str:
    """Return today's date in UTC, such as 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def hardware(device: "torch.device") -> dict[str, str | int | None]:
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def cpu_info() -> str:
    """Return what the system reports of the CPU.

    On Windows, this is a line such as "AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD".
    """
    if CPUINFO.exists():
        return CPUINFO.read_text(errors="replace", encoding="utf-8")
    return platform.processor()


def cpu_model() -> str:
    """Return the name of the CPU, or "" if the system does not report the name."""
    found = re.search(r"^model name\s*:\s*(.*)$", cpu_info(), re.MULTILINE)  # absent on ARM
    return found[1].strip() if found else platform.processor()


def cpu_identity() -> tuple[str, int]:
    """Return the maker of an x86 CPU and the number of its family; ("", 0) if they are unknown."""
    text = cpu_info()
    maker = re.search(r"GenuineIntel|AuthenticAMD", text)
    family = re.search(r"(?i)family\s*:?\s*(\d+)", text)
    return (maker[0], int(family[1])) if maker and family else ("", 0)


def command_line(arguments: list[str] | None = None) -> str:
    """Return the command line of this process, quoted for the shell.

    If `arguments` are given, they replace the process's own arguments.
    """
    module = getattr(sys.modules["__main__"].__spec__, "name", "")
    program = {
        "vit_train": ["python", "-m", module],  # needed by torchrun
        "benchmarks": ["python", "-m", module.removesuffix(".__main__")],
        "submitit": ["vit-train"],  # a sweep's job on Slurm
    }.get(module.partition(".")[0], [Path(sys.argv[0]).name])
    return printable(shlex.join([*program, *(sys.argv[1:] if arguments is None else arguments)]))


def memory_bytes() -> float:
    """Return the RAM in bytes, or infinity if the system does not report its size (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, advice: str) -> None:
    """Raise ValueError if the machine's RAM is smaller than `needed` bytes.

    The message begins with `what`, the thing that needs the memory, and ends with `advice`.
    """
    available = memory_bytes()
    if needed > available:
        raise ValueError(
            f"{what} would take {gigabytes(needed)} of memory, but this machine has "
            f"{gigabytes(available)}: {advice}"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if Python or PyTorch raised `error` because memory ran out, on a CPU or a GPU."""
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in phrases)
