"""What can be learned; torch-free, so that a bad value is refused at once."""

from dataclasses import dataclass


@dataclass
class TaskConfig:
    """`name` selects the task."""

    name: str = "???"

    @property
    def layers(self) -> int:
        """How many blocks it is said to add to the model's."""
        return 0


@dataclass
class ClassifyConfig(TaskConfig):
    """Which class an image belongs to."""

    name: str = "classify"
    # The share of the target that goes to all classes alike (Szegedy et al. 2016).
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"task.label_smoothing={self.label_smoothing} must be in [0, 1)")


@dataclass
class DecodeConfig(TaskConfig):
    """Tasks whose result is pixels."""

    # The decoder's blocks; null is as many as the encoder has.
    decoder_depth: int | None = None

    def __post_init__(self) -> None:
        if self.decoder_depth is not None and self.decoder_depth < 1:
            raise ValueError(f"task.decoder_depth={self.decoder_depth} must be at least 1, or null")

    @property
    def layers(self) -> int:
        return self.decoder_depth or 0


@dataclass
class ReconstructConfig(DecodeConfig):
    """The hidden patches of an image, from those left visible: a masked autoencoder."""

    name: str = "reconstruct"
    mask_ratio: float = 0.75
    # Predict each patch with its own mean taken away and divided by its own deviation: better
    # features, but pictures without the patches' colours (He et al. 2022, section 3).
    normalise_target: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"task.mask_ratio={self.mask_ratio} must be between 0 and 1")


@dataclass
class AutoregressConfig(DecodeConfig):
    """Patch after patch, each from those before it."""

    name: str = "autoregress"
    # The first rows of patches, which the encoder sees; 0 for images out of nothing.
    given_rows: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given_rows < 0:
            raise ValueError(f"task.given_rows={self.given_rows} must not be negative")


TASK_CONFIGS: dict[str, type[TaskConfig]] = {
    "classify": ClassifyConfig,
    "reconstruct": ReconstructConfig,
    "autoregress": AutoregressConfig,
}
