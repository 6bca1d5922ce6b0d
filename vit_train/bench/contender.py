"""A contender: a library's model with its options and its input.

Nothing here imports torch or the rest of the package, which would count as a peer's start-up.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vit_train.engine.config import OptimConfig
from vit_train.model.config import ViTConfig

if TYPE_CHECKING:
    from vit_train.bench.config import BenchConfig

OURS = "vit_train"


@dataclass(frozen=True)
class Contender:
    """What all contenders have; `precision` is fp32, bf16 or fp16, `seconds` is bench.seconds."""

    package: str
    device: str
    precision: str
    batch_size: int
    image_shape: tuple[int, int, int]
    num_classes: int
    seed: int
    seconds: float

    @property
    def is_ours(self) -> bool:
        return self.package == OURS

    @property
    def compiles(self) -> bool:
        raise NotImplementedError

    @property
    def options(self) -> list[str]:
        """Return what distinguishes this contender from others of its library."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return f"{self.package} ({', '.join(self.options)})"


@dataclass(frozen=True)
class Ours(Contender):
    """Our model; if `complete`, the whole loop and the parts of a step are timed, too."""

    config: "BenchConfig"
    complete: bool

    @property
    def compiles(self) -> bool:
        return self.config.compile is True

    @property
    def options(self) -> list[str]:
        model = self.config.model
        kernels = [model.kernels] if isinstance(model, ViTConfig) else []
        graphs = ["CUDA graph"] if self.device == "cuda" and self.config.train.cuda_graph else []
        compiled = ["compiled"] if self.compiles else []
        return [*kernels, self.precision, *compiled, *graphs]


@dataclass(frozen=True)
class Peer(Contender):
    """Another library's model of the same architecture.

    `allocator` gives it our allocator settings, `written_out` replaces
    `F.scaled_dot_product_attention` by the library's own formulas, `compile_mode` is one of
    torch.compile's. Its number of parameters must be close to `parameters`, those of our model.
    """

    model: ViTConfig
    optim: OptimConfig
    label_smoothing: float
    parameters: int
    allocator: bool = False
    written_out: bool = False
    compile_mode: str | None = None

    @property
    def compiles(self) -> bool:
        return self.compile_mode is not None

    @property
    def options(self) -> list[str]:
        chosen = {
            "our allocator": self.allocator,
            "written-out attention": self.written_out,
            "compiled": self.compiles,
            "CUDA graphs": self.compile_mode == "reduce-overhead",
        }
        return [self.precision, *(name for name, is_chosen in chosen.items() if is_chosen)]
