"""How much memory there is, and what needs more is refused before it is taken."""

import os


def memory_bytes() -> float:
    """What the machine has; no limit where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, advice: str) -> None:
    """ValueError where `what` needs more bytes than this machine has."""
    there = memory_bytes()
    if needed > there:
        raise ValueError(
            f"{what} would take {gigabytes(needed)} of memory, this machine has "
            f"{gigabytes(there)}: {advice}"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, or PyTorch on any device, could not get the memory it asked for."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(each in str(error).lower() for each in words)
