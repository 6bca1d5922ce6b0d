"""Who takes part: a library in one variant, as PACKAGE:WORD:WORD."""

from dataclasses import dataclass

PRECISIONS = ("fp32", "bf16", "fp16", "tf32")
# What each package can be asked for besides a precision.
PEER = ("allocator", "compiled", "cudagraphs", "no_cudnn")
WORDS = {
    "vit_train": ("scratch", "fused", "compiled", "eager"),
    "timm": (*PEER, "written_out"),
    "torchvision": PEER,
    "vit-pytorch": PEER,
}
HELP = """\
A contender is PACKAGE or PACKAGE:WORD:WORD. Packages: vit_train, timm, torchvision, vit-pytorch.
Words: fp32, bf16, fp16, tf32 (else --precision); compiled; of vit_train scratch, fused, eager; of
the others allocator (our memory settings), written_out (timm's own attention formulas), no_cudnn
and cudagraphs (on a GPU)."""


@dataclass(frozen=True)
class Contender:
    """A package and its variant; `precision` is never "auto"."""

    package: str
    precision: str
    words: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str, precision: str = "fp32") -> "Contender":
        """Return the contender that a text describes; raise ValueError for an unknown word."""
        package, *words = text.split(":")
        if package not in WORDS:
            raise ValueError(f"{text}: {package} must be one of: {', '.join(WORDS)}")
        for word in words:
            if word not in (*PRECISIONS, *WORDS[package]):
                known = ", ".join((*PRECISIONS, *WORDS[package]))
                raise ValueError(f"{text}: {word} must be one of: {known}")
        chosen = [word for word in words if word in PRECISIONS]
        if len(chosen) > 1:
            raise ValueError(f"{text}: choose one precision")
        others = tuple(word for word in words if word not in PRECISIONS)
        return Contender(package, (chosen or [precision])[0], others)

    @property
    def is_ours(self) -> bool:
        return self.package == "vit_train"

    @property
    def name(self) -> str:
        return ":".join((self.package, self.precision, *self.words))
