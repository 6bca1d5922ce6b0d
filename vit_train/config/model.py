"""Settings of the models.

To add a model, write a config class that names what it builds, and add a line to MODEL_CONFIGS.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from vit_train.base.reading import as_word
from vit_train.config.fields import Settings, setting

# The epsilon of LayerNorms, unless it is set or pretrained weights need a different value.
NORM_EPS = 1e-5
# No real model is deeper, and ten million blocks would take hours to build.
MOST_BLOCKS = 1000
# Published models have 1 to 16.
MOST_REGISTERS = 100


@dataclass
class ModelConfig(Settings):
    """Settings common to all models; `name` selects the model.

    Image size, channels and classes come from the data.
    """

    group: ClassVar[str] = "model"
    # The settings that determine the model's size.
    sizes: ClassVar[tuple[str, ...]] = ()

    name: str = "???"

    @property
    def size_settings(self) -> str:
        """Return the settings that determine the model's size, as typed on the command line."""
        return " ".join(
            f"model.{name}={getattr(self, name)}".replace(" ", "")[:60]
            for name in self.sizes
            if getattr(self, name) is not None
        )


@dataclass
class ViTConfig(ModelConfig):
    """Settings of the Vision Transformer and its variants."""

    sizes = ("embed_dim", "depth", "mlp_ratio", "mlp_dim")
    builds = "vit_train.model.vit:VisionTransformer"

    name: str = "vit"
    from_weights: bool = setting(
        True,
        "With init_from=, take the model's shape from the pretrained weights, except settings that "
        "differ from their defaults. False in presets such as model=tiny.",
        alters="nothing",  # once a run has begun, because its settings then include the shape
    )
    patch_size: int = setting(4, "Side of a patch in pixels.", at_least=1, shapes=True)
    embed_dim: int = setting(
        128, "Width of a token, a multiple of the number of heads.", at_least=1, shapes=True
    )
    depth: int = setting(6, "Number of blocks.", at_least=1, at_most=MOST_BLOCKS, shapes=True)
    num_heads: int = setting(
        4, "Number of attention heads in each block.", at_least=1, at_most=10_000, shapes=True
    )
    mlp_ratio: float = setting(
        4.0, "Hidden width of the MLP, relative to model.embed_dim.", above=0
    )
    mlp_dim: int | None = setting(
        None,
        "Hidden width of the MLP; null: model.mlp_ratio · model.embed_dim.",
        at_least=1,
        shapes="hidden_dim",
    )
    activation: str = setting(
        "gelu",
        "The MLP's activation: gelu, its approximation gelu_tanh, relu, silu, swiglu (half of the "
        "channels gate the others), or an activation that your module registers.",
        shapes=True,
    )
    pre_norm: bool = setting(
        True,
        "Order of LayerNorm and residual branch. true (pre-LN): x + f(LN(x)); false (post-LN): "
        "LN(x + f(x)), as in the first Transformers.",
        shapes=True,
    )
    final_norm: bool = setting(
        True,
        "Add a LayerNorm after the last block. Post-LN blocks already end with a LayerNorm.",
        shapes=True,
    )
    norm_eps: float | None = setting(
        None,
        "Epsilon of all LayerNorms; null: 1e-5 or, with init_from=, the pretrained model's "
        "epsilon.",
        above=0,
        shapes="eps",
        otherwise=NORM_EPS,
    )
    stem: str = setting(
        "patches",
        "Conversion of the image to tokens. patches: a linear map of each patch; normed_patches: "
        "the same, with a LayerNorm before and after the linear map; conv: convolutions with "
        "poolings (only with model.patch_size=2, 4, 8, 16 or 32).",
        choices=("patches", "normed_patches", "conv"),
        shapes=True,
    )
    patch_overlap: int = setting(
        0,
        "Number of pixels by which each patch extends into its neighbors on every side.",
        at_least=0,
        shapes=True,
    )
    qk_norm: bool = setting(
        False, "Apply a LayerNorm to the queries and keys of each head.", shapes=True
    )
    layer_scale: float | None = setting(
        None,
        "LayerScale: initial value of a learned factor for each channel of a residual "
        "branch; null: no factors.",
        above=0,
        shapes="has_layer_scale",
    )
    qkv_bias: bool = setting(
        True, "Add biases to the layers that make queries, keys and values.", shapes=True
    )
    proj_bias: bool = setting(True, "Add a bias to attention's output projection.", shapes=True)
    mlp_bias: bool = setting(True, "Add biases to the MLP.", shapes=True)
    attention: str = setting(
        "softmax",
        "Attention of the encoder's blocks: softmax, or an attention that your module registers.",
        shapes=True,
    )
    positions: str = setting(
        "learned",
        "Position embeddings: learned, learned_2d, sinusoidal, sincos_2d, relative, rotary_2d, "
        "none, or positions that your module registers.",
        shapes=True,
    )
    positions_at: str = setting(
        "stem",
        "Where to add absolute positions. stem: once, after the patch embedding; layers: before "
        "every block, from one table per block; shared: before every block, from a single table.",
        choices=("stem", "layers", "shared"),
        shapes=True,
    )
    head: str = setting(
        "token",
        "Input of the classifier. token: the class token; token_mlp: the class token through a "
        "hidden tanh layer; gap: the mean of the patch tokens after the final LayerNorm; gap_norm: "
        "the same mean before the final LayerNorm. gap and gap_norm have no class token.",
        choices=("token", "token_mlp", "gap", "gap_norm"),
        shapes="has_class_token",
    )
    registers: int = setting(
        0,
        "Number of register tokens (Darcet et al. 2024): learned extra tokens without positions, "
        "which the classifier ignores; they come after the class token.",
        at_least=0,
        at_most=MOST_REGISTERS,
        shapes=True,
    )
    dropout: float = setting(
        0.0,
        "Dropout after the encoder's positions and all linear layers, except those that make "
        "queries, keys, values and logits.",
        at_least=0,
        below=1,
    )
    branch_dropout: float = setting(
        0.0, "Dropout on the outputs of a block's two residual branches.", at_least=0, below=1
    )
    drop_path: float = setting(
        0.0,
        "Stochastic depth: probability of skipping a residual branch, rising from 0 in the "
        "first block to this value in the last.",
        at_least=0,
        below=1,
    )
    patch_dropout: float = setting(
        0.0,
        "PatchDropout: share of each training image's patches that a classifier does not see; "
        "other tasks ignore it. 0.5 about halves the time.",
        at_least=0,
        below=1,
    )
    patch_dropout_epochs: int | None = setting(
        None,
        "Number of epochs with PatchDropout, after which the model sees all patches; null: all "
        "epochs.",
        at_least=1,
    )
    init: str = setting(
        "xavier",
        "Initialization of linear layers. xavier: Xavier-uniform, with zero biases and a zero "
        "head; mimetic: the same, with attention initialized to resemble trained attention "
        "(Trockman & Kolter 2023); torch: PyTorch's default.",
        choices=("xavier", "mimetic", "torch"),
    )
    cls_std: float = setting(
        0.02, "Initial standard deviation of the class token and registers.", at_least=0
    )
    pos_std: float = setting(
        0.02, "Standard deviation of the learned positions' initial values.", at_least=0
    )
    mask_std: float | None = setting(
        None,
        "Standard deviation of the initial values of a decoder's mask token; null: model.pos_std.",
        at_least=0,
    )
    kernels: str = setting(
        "auto",
        "Implementation of LayerNorm, GELU and attention. scratch: this package's; fused or auto: "
        "PyTorch's (except attention in bf16 training on a CPU), which was faster on most CPUs "
        "measured. The results agree up to rounding.",
        choices=("auto", "scratch", "fused"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"model.embed_dim={self.embed_dim} must be a multiple of "
                f"model.num_heads={self.num_heads}: each head takes an equal share"
            )
        if self.hidden_dim < 1:
            raise ValueError(
                f"model.mlp_ratio={self.mlp_ratio}: the MLP would have no hidden units; "
                "choose a larger ratio"
            )
        if self.stem != "patches" and self.patch_overlap:
            raise ValueError(f"model.stem={self.stem} needs model.patch_overlap=0")
        if self.stem == "conv" and self.patch_size not in (2, 4, 8, 16, 32):
            raise ValueError("model.stem=conv needs model.patch_size=2, 4, 8, 16 or 32")

    @property
    def hidden_dim(self) -> int:
        """Return the MLP's hidden width."""
        return int(self.embed_dim * self.mlp_ratio) if self.mlp_dim is None else self.mlp_dim

    @property
    def eps(self) -> float:
        """Return the epsilon of the LayerNorms."""
        return float(self.value("norm_eps"))

    @property
    def has_class_token(self) -> bool:
        return self.head not in ("gap", "gap_norm")

    @property
    def sees_neighbors(self) -> bool:
        """Return True if the embedding of a patch depends on pixels of its neighbors, too."""
        return self.stem == "conv" or self.patch_overlap > 0

    @property
    def num_prefix_tokens(self) -> int:
        """Return the number of tokens before the patches: the class token and the registers."""
        return self.has_class_token + self.registers

    @property
    def has_layer_scale(self) -> bool:
        return self.layer_scale is not None


@dataclass
class CnnConfig(ModelConfig):
    """Settings of a plain CNN with one convolution for each width in `widths`."""

    sizes: ClassVar[tuple[str, ...]] = ("widths",)
    builds = "vit_train.model.cnn:SimpleCnn"

    name: str = "cnn"
    widths: list[int] = setting(
        lambda: [32, 32, 64, 64, 128], "Number of channels of each convolution.", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.widths) <= 50:
            raise ValueError("model.widths must be a list of 1 to 50 numbers, each at least 1")


@dataclass
class ResNetConfig(CnnConfig):
    """Settings of a residual network with one stage of `blocks` blocks for each width."""

    sizes = ("widths", "blocks")
    builds = "vit_train.model.cnn:SmallResNet"

    name: str = "resnet"
    widths: list[int] = setting(
        lambda: [16, 32, 64], "Number of channels of each stage.", at_least=1
    )
    blocks: int = setting(2, "Number of residual blocks in each stage.", at_least=1, at_most=200)


@dataclass
class FastCnnConfig(CnnConfig):
    """Settings of a CNN that trains fast, with two convolutions for each width in `widths`."""

    builds = "vit_train.model.cnn:FastCnn"

    name: str = "fast_cnn"
    widths: list[int] = setting(
        lambda: [64, 256, 256], "Number of channels of each pair of convolutions.", at_least=1
    )


MODEL_CONFIGS: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "cnn": CnnConfig,
    "resnet": ResNetConfig,
    "fast_cnn": FastCnnConfig,
}


def differences(source: ViTConfig, target: ViTConfig) -> dict[str, Any]:
    """Return the settings of `source` that `target` must copy to load the encoder of `source`.

    The keys are those of the command line, such as "model.depth".
    """
    # Replace an MLP width that is given as a ratio, and a null epsilon, by numbers.
    explicit = replace(source, mlp_dim=source.hidden_dim, norm_eps=source.eps)
    found: dict[str, Any] = {}
    for each in fields(ViTConfig):
        shapes = each.metadata.get("shapes")
        meaning = each.name if shapes is True else shapes
        if meaning and getattr(source, meaning) != getattr(target, meaning):
            found[f"model.{each.name}"] = getattr(explicit, each.name)
    if source.embed_dim != target.embed_dim:  # a ratio would give another MLP width
        found["model.mlp_dim"] = source.hidden_dim
    return found


def as_arguments(settings: dict[str, Any]) -> str:
    """Return settings as on the command line, such as "model.depth=4 model.head=gap"."""
    return " ".join(f"{key}={as_word(value)}" for key, value in settings.items())


# Some of the values that settings can have, by the settings' names.
Choices = Mapping[str, tuple[Any, ...]]


def unsupported(config: ViTConfig, supported: Choices) -> list[str]:
    """Return the settings, such as "model.qk_norm=True", that have none of the supported values."""
    return [
        f"model.{name}={getattr(config, name)}"
        for name, values in supported.items()
        if getattr(config, name) not in values
    ]


def require_vit(config: ModelConfig, what: str) -> ViTConfig:
    """Return the config if it is a ViTConfig; otherwise raise ValueError.

    In the message, `what` names the thing that needs a Vision Transformer.
    """
    if not isinstance(config, ViTConfig):
        raise ValueError(f"{what} needs a Vision Transformer, but model.name={config.name}")
    return config
