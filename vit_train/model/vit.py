"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929): the encoder and its head."""

from typing import overload

from torch import Tensor, nn

from vit_train.model.config import ViTConfig
from vit_train.model.encoder import Encoder
from vit_train.model.initial import draw_weights
from vit_train.model.layers import Head


class VisionTransformer(Encoder):
    """Images (B,C,S,S) → logits (B, num_classes).

    Raises ValueError if the patches do not tile the image.
    """

    def __init__(
        self, config: ViTConfig, image_size: int = 32, in_channels: int = 3, num_classes: int = 10
    ) -> None:
        super().__init__(config, image_size, in_channels)
        dim = config.embed_dim
        hidden = [nn.Linear(dim, dim), nn.Tanh()] if config.head == "token_mlp" else []
        self.pre_head = nn.Sequential(*hidden)
        self.head = Head(dim, num_classes)
        draw_weights(self.pre_head, config)
        if config.init == "xavier":  # the first loss is log(num_classes) whatever the seed
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    @overload
    def forward(self, images: Tensor) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, return_attention: bool) -> tuple[Tensor, list[Tensor]]: ...
    def forward(
        self, images: Tensor, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Return the logits and, if asked for, every layer's attention (B,H,T,T)."""
        # After the last block only the class token is read: the others are not computed.
        alone = self.config.has_class_token and not return_attention
        x, attention = self.encode(
            self.tokens(images), return_attention, num_queries=1 if alone else None
        )
        logits = self.head(self.pre_head(self.pooled(x)))
        return (logits, attention) if return_attention else logits

    def pooled(self, x: Tensor) -> Tensor:
        """What is classified, (B,D). Equation 4 normalises; LayerNorm acts token by token."""
        if self.config.has_class_token:
            return self.norm(x[:, 0])  # type: ignore[no-any-return]
        return self.norm(x).mean(dim=1)  # type: ignore[no-any-return]
