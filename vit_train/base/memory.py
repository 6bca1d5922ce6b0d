"""Check, before memory is allocated, that a data set or a model fits into the machine's RAM."""

import os


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
