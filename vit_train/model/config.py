"""The models: their settings, and how each is built.

A new model is a config class with a `build`, and a line in MODEL_CONFIGS.
Torch is imported only when one is built, so that bad values are rejected at once.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

CHOICES = {
    "kernels": ("auto", "scratch", "fused"),
    "activation": ("gelu", "gelu_tanh"),
    "positions_at": ("stem", "layers", "shared"),
    "head": ("token", "token_mlp", "gap"),
    "init": ("xavier", "mimetic", "torch"),
    "stem": ("patches", "normed_patches", "conv"),
}
# What LayerNorms add to the variance, unless it is set or pretrained weights need another value.
NORM_EPS = 1e-5
# The fields on which the meaning of an encoder's weights depends.
ENCODER_SHAPE = (
    *("patch_size", "embed_dim", "depth", "num_heads", "hidden_dim", "activation", "pre_norm"),
    *("norm_affine", "final_norm", "qkv_bias", "proj_bias", "mlp_bias"),
    *("positions", "positions_at", "has_class_token", "stem", "patch_overlap", "qk_norm"),
    *("has_layer_scale", "eps"),
)


@dataclass
class ModelConfig:
    """A model's config; `name` selects the model.

    Image size, channels and classes come from the data.
    """

    name: str = "???"

    def build(self, image_shape: tuple[int, int, int], num_classes: int) -> "nn.Module":
        """Build a classifier of images (C,S,S) with newly initialized weights."""
        raise NotImplementedError

    @property
    def layers(self) -> int:
        """Return the number of blocks that have weights."""
        raise NotImplementedError

    @property
    def size_settings(self) -> str:
        """Return the settings that determine the model's size, as typed on the command line."""
        raise NotImplementedError


@dataclass
class ViTConfig(ModelConfig):
    """The Vision Transformer and its variants."""

    name: str = "vit"
    # Pixels of a patch's side; the width of a token; the number of blocks, and of the attention
    # heads in each.
    patch_size: int = 4
    embed_dim: int = 128
    depth: int = 6
    num_heads: int = 4
    # The MLP's hidden width: mlp_dim or, if that is null, mlp_ratio · embed_dim.
    mlp_ratio: float = 4.0
    mlp_dim: int | None = None
    # gelu, or gelu_tanh, its approximation.
    activation: str = "gelu"
    # True: x + f(LN(x)). False: LN(x + f(x)), as in the first Transformers.
    pre_norm: bool = True
    # A LayerNorm after the last block. Post-LN blocks end with one of their own.
    final_norm: bool = True
    # Learned scale and shift in the LayerNorms.
    norm_affine: bool = True
    # What all LayerNorms add to the variance; null: 1e-5 or, with init_from=, as in that model.
    norm_eps: float | None = None
    # What makes tokens of the image: patches, each mapped linearly; the same with a LayerNorm
    # before and after (normed_patches); or for patches of 4 two convolutions (conv).
    stem: str = "patches"
    # Pixels by which patches reach into their neighbors on every side.
    patch_overlap: int = 0
    # LayerNorm of the queries and keys of each head.
    qk_norm: bool = False
    # LayerScale: multiply each value of a residual branch by a learned factor, at first this one.
    layer_scale: float | None = None
    # Initialize the last layer of each residual branch to zero.
    zero_branches: bool = False
    # Biases of the layers that make queries, keys and values, of the one after attention, and of
    # the MLP.
    qkv_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    # Position embeddings: learned, learned_2d, sinusoidal, sincos_2d, relative, rotary_2d, none, or
    # one that your program registers. Absolute ones are added once after the patch embedding
    # (stem), or before every layer, with a separate table for each layer (layers) or one for all
    # of them (shared).
    positions: str = "learned"
    positions_at: str = "stem"
    # Input of the classifier: the class token (token), the class token through a hidden tanh layer
    # (token_mlp), or, without a class token, the mean of all patches (gap).
    head: str = "token"
    # Applied after the positions and all linear layers but those to queries, keys, values and
    # classes.
    dropout: float = 0.0
    # Applied only to the outputs of the two residual branches.
    branch_dropout: float = 0.0
    # Probability of skipping a residual branch: 0 in the first block, rising to this in the last.
    drop_path: float = 0.0
    # Linear layers: Xavier-uniform with zero biases and a zero head (xavier), the same but with
    # attention that looks trained (mimetic), or PyTorch's default (torch). Class token and
    # positions: normal, with the standard deviations below.
    init: str = "xavier"
    cls_std: float = 0.02
    pos_std: float = 0.02
    # Standard deviation of a decoder's mask token; null: pos_std.
    mask_std: float | None = None
    # Implementation of LayerNorm, GELU and attention: this package's own (scratch) or PyTorch's
    # (fused; auto, too), which were faster on most CPUs measured. They agree to rounding.
    kernels: str = "auto"

    def __post_init__(self) -> None:
        for field in ("patch_size", "embed_dim", "depth", "num_heads"):
            if getattr(self, field) < 1:
                raise ValueError(f"model.{field}={getattr(self, field)} must be at least 1")
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"model.embed_dim={self.embed_dim} must be a multiple of "
                f"model.num_heads={self.num_heads}: each head takes an equal share"
            )
        if not 0 < self.mlp_ratio < float("inf"):
            raise ValueError(f"model.mlp_ratio={self.mlp_ratio} must be positive")
        if not self.hidden_dim >= 1:
            raise ValueError(
                f"model.mlp_ratio={self.mlp_ratio}, model.mlp_dim={self.mlp_dim}: the MLP has no "
                "hidden unit"
            )
        for field in ("dropout", "branch_dropout", "drop_path"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"model.{field}={getattr(self, field)} must be in [0, 1)")
        if not self.eps > 0:
            raise ValueError(f"model.norm_eps={self.norm_eps} must be positive")
        if self.layer_scale is not None and not self.layer_scale > 0:
            raise ValueError(f"model.layer_scale={self.layer_scale} must be positive, or null")
        if self.patch_overlap < 0:
            raise ValueError(f"model.patch_overlap={self.patch_overlap} must not be negative")
        if self.stem == "conv" and (self.patch_size != 4 or self.patch_overlap):
            raise ValueError(
                "model.stem=conv has patches of 4 that overlap in its own way: set "
                "model.patch_size=4, model.patch_overlap=0"
            )
        if self.stem == "normed_patches" and self.patch_overlap:
            raise ValueError("model.stem=normed_patches needs model.patch_overlap=0")
        for field in ("cls_std", "pos_std", "mask_std"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise ValueError(f"model.{field}={value} must not be negative")
        for field, choices in CHOICES.items():
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"model.{field}={getattr(self, field)} must be one of: {', '.join(choices)}"
                )

    def build(self, image_shape: tuple[int, int, int], num_classes: int) -> "nn.Module":
        from vit_train.model.vit import VisionTransformer

        channels, size, _ = image_shape
        return VisionTransformer(self, size, channels, num_classes)

    @property
    def hidden_dim(self) -> int:
        """Return the MLP's hidden width."""
        return int(self.embed_dim * self.mlp_ratio) if self.mlp_dim is None else self.mlp_dim

    @property
    def eps(self) -> float:
        """Return what the LayerNorms add to the variance."""
        return NORM_EPS if self.norm_eps is None else self.norm_eps

    @property
    def layers(self) -> int:
        return self.depth

    @property
    def size_settings(self) -> str:
        mlp = "mlp_ratio" if self.mlp_dim is None else "mlp_dim"
        fields = ("embed_dim", "depth", mlp)
        return " ".join(f"model.{field}={getattr(self, field)}" for field in fields)

    @property
    def has_class_token(self) -> bool:
        return self.head != "gap"

    @property
    def has_layer_scale(self) -> bool:
        return self.layer_scale is not None


@dataclass
class CnnConfig(ModelConfig):
    """A plain CNN with one convolution for each width."""

    name: str = "cnn"
    # The channels of each convolution.
    widths: list[int] = dataclasses.field(default_factory=lambda: [32, 32, 64, 64, 128])

    def __post_init__(self) -> None:
        require_widths(self.widths)

    def build(self, image_shape: tuple[int, int, int], num_classes: int) -> "nn.Module":
        from vit_train.model.cnn import SimpleCnn

        channels, size, _ = image_shape
        return SimpleCnn(self, size, channels, num_classes)

    @property
    def layers(self) -> int:
        return len(self.widths)

    @property
    def size_settings(self) -> str:
        return widths_setting(self.widths)


@dataclass
class ResNetConfig(ModelConfig):
    """A residual network with one stage of `blocks` blocks for each width."""

    name: str = "resnet"
    # The channels of each stage, and its residual blocks.
    widths: list[int] = dataclasses.field(default_factory=lambda: [16, 32, 64])
    blocks: int = 2

    def __post_init__(self) -> None:
        require_widths(self.widths)
        if self.blocks < 1:
            raise ValueError(f"model.blocks={self.blocks} must be at least 1")

    def build(self, image_shape: tuple[int, int, int], num_classes: int) -> "nn.Module":
        from vit_train.model.cnn import SmallResNet

        channels, size, _ = image_shape
        return SmallResNet(self, size, channels, num_classes)

    @property
    def layers(self) -> int:
        return len(self.widths) * self.blocks

    @property
    def size_settings(self) -> str:
        return f"{widths_setting(self.widths)} model.blocks={self.blocks}"


def widths_setting(widths: list[int]) -> str:
    more = [] if len(widths) <= 10 else ["…"]
    return f"model.widths=[{','.join([*map(str, widths[:10]), *more])}]"


def require_widths(widths: list[int]) -> None:
    if not widths or min(widths) < 1:
        raise ValueError(f"model.widths={widths} must be one or more numbers, each at least 1")


MODEL_CONFIGS: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "cnn": CnnConfig,
    "resnet": ResNetConfig,
}


def differences(one: ViTConfig, other: ViTConfig) -> list[str]:
    """Return the settings of `one` that make its encoder's weights unusable in `other`.

    They are written as on the command line, where they make `other` fit.
    """
    differing = [f for f in ENCODER_SHAPE if getattr(one, f) != getattr(other, f)]
    typed = {
        "hidden_dim": f"mlp_dim={one.hidden_dim}",
        "has_class_token": f"head={one.head}",
        "has_layer_scale": f"layer_scale={shown(one.layer_scale)}",
        "eps": f"norm_eps={one.eps}",
    }
    return [
        f"model.{typed.get(field, f'{field}={shown(getattr(one, field))}')}" for field in differing
    ]


def shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_vit(config: ModelConfig, what: str) -> ViTConfig:
    """Return the config of a Vision Transformer; raise ValueError for others: `what` needs one."""
    if not isinstance(config, ViTConfig):
        raise ValueError(f"{what} needs a Vision Transformer, but model.name={config.name}")
    return config
