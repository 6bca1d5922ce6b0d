"""Settings of a benchmark; torch-free, so that a bad value is rejected at once."""

import itertools
from dataclasses import dataclass, field

from vit_train.config import TrainConfig
from vit_train.engine.config import PRECISIONS, require_choice

PEERS = ("timm", "torchvision", "vit-pytorch")
# The words of a benchmark's variants; a variant has at most one of each line.
PRECISION_WORDS = tuple(name for name in PRECISIONS if name != "auto")
OUR_WORDS = {
    "kernels": ("scratch", "fused"),
    "precision": PRECISION_WORDS,
    "compile": ("eager", "compiled"),
}
PEER_WORDS = {
    "as it comes": ("shipped",),
    "allocator": ("allocator",),
    "attention": ("written_out",),
    "precision": PRECISION_WORDS,
    "compile": ("compiled", "cudagraphs"),
}


@dataclass
class BenchOptions:
    """Batch sizes, contenders and durations of a benchmark."""

    # Images per step; several sizes are measured one after another.
    batch_sizes: list[int] = field(default_factory=lambda: [64])
    # Libraries whose model of the same architecture is compared: timm, torchvision, vit-pytorch.
    peers: list[str] = field(default_factory=list)
    # How each of them is measured: as it comes (shipped), with our allocator settings (allocator),
    # with attention by its own formulas (written_out, only timm), in another precision (fp32, tf32,
    # bf16, fp16), compiled (compiled; on a GPU also cudagraphs), or several together, A+B.
    variants: list[str] = field(default_factory=lambda: ["shipped", "allocator+compiled"])
    # How ours is measured besides what the settings say: with other kernels (scratch, fused), in
    # another precision, compiled or not (compiled, eager), or several together, A+B.
    ours: list[str] = field(default_factory=list)
    # Each contender is measured once per round, in a process of its own, for this many seconds.
    rounds: int = 5
    seconds: float = 3.0
    # Begin no round that would end later than this.
    max_minutes: float | None = None
    # Write a trace of some training steps, to be opened in https://ui.perfetto.dev.
    profile: bool = False

    def __post_init__(self) -> None:
        for peer in self.peers:
            require_choice("bench.peers", peer, PEERS)
        for variant in self.variants:
            chosen = chosen_words("bench.variants", variant, PEER_WORDS)
            if "as it comes" in chosen and chosen.keys() - {"as it comes", "precision"}:
                raise ValueError(f"bench.variants={variant}: shipped means as it comes")
        for variant in self.ours:
            chosen_words("bench.ours", variant, OUR_WORDS)
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ValueError(f"bench.batch_sizes={self.batch_sizes} must be numbers of at least 1")
        if self.rounds < 1 or self.seconds <= 0:
            raise ValueError("bench.rounds and bench.seconds must be positive")
        if self.max_minutes is not None and self.max_minutes <= 0:
            raise ValueError(f"bench.max_minutes={self.max_minutes} must be positive, or null")


def chosen_words(setting: str, variant: str, words: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Return a variant's words, A+B, by what they choose; "" chooses nothing.

    Raise ValueError, naming the setting, for unknown words and for two that exclude each other.
    """
    chosen: dict[str, str] = {}
    for word in filter(None, variant.split("+")):
        require_choice(setting, word, tuple(itertools.chain(*words.values())))
        (kind,) = (kind for kind, choices in words.items() if word in choices)
        if chosen.setdefault(kind, word) != word:
            raise ValueError(f"{setting}={variant}: choose either {chosen[kind]} or {word}")
    return chosen


@dataclass
class BenchConfig(TrainConfig):
    """All settings of `vit-bench`: those of a training run, and those of the benchmark."""

    bench: BenchOptions = field(default_factory=BenchOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("resume", "extend"):
            if getattr(self, name) is not None:
                raise ValueError(f"vit-bench measures the settings that it is given: no {name}=")
