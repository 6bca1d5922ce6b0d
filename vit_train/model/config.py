"""What a Vision Transformer is made of; torch-free, so that a bad value is refused at once."""

from dataclasses import dataclass

KERNELS = ("scratch", "fused")


@dataclass
class ViTConfig:
    """The architecture. Image size, channels and classes are not here: they come from the data."""

    name: str = "vit"
    patch_size: int = 4
    embed_dim: int = 128
    depth: int = 6
    num_heads: int = 4
    mlp_ratio: float = 4.0
    # After the positions, the attention's output projection and both layers of the MLP.
    dropout: float = 0.0
    # Chance of leaving a residual branch out, rising linearly from 0 to this at the last block.
    drop_path: float = 0.0
    # Who computes LayerNorm, GELU and attention: this package or PyTorch. Same numbers.
    kernels: str = "scratch"

    def __post_init__(self) -> None:
        for field in ("patch_size", "embed_dim", "depth", "num_heads"):
            if getattr(self, field) < 1:
                raise ValueError(f"model.{field}={getattr(self, field)} must be at least 1")
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"model.embed_dim={self.embed_dim} must be a multiple of "
                f"model.num_heads={self.num_heads}: each head takes an equal share"
            )
        if not self.embed_dim * self.mlp_ratio >= 1:
            raise ValueError(f"model.mlp_ratio={self.mlp_ratio} leaves the MLP no hidden unit")
        for field in ("dropout", "drop_path"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"model.{field}={getattr(self, field)} must be in [0, 1)")
        if self.kernels not in KERNELS:
            raise ValueError(f"model.kernels={self.kernels} must be one of: {', '.join(KERNELS)}")
