"""Titles for pictures of augmented images."""

from torch import Tensor


def label_title(target: Tensor, classes: tuple[str, ...]) -> str:
    """Return the name of the class, or the shares of a mixed label: "cat 70% dog 30%"."""
    if target.ndim == 0:
        return classes[int(target)] if target >= 0 else "no label"
    shares = zip(target.tolist(), classes, strict=True)
    shown = sorted(((share, name) for share, name in shares if share >= 0.005), reverse=True)
    if not shown:
        return "no label"
    if shown[0][0] > 0.995:
        return shown[0][1]
    return " ".join(f"{name} {share:.0%}"[-40:] for share, name in shown)
