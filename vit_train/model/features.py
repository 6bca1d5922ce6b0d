"""Features of images: what a model passes to its head, or computes in an earlier layer."""

import copy

from torch import Tensor, nn

from vit_train.model.vit import encoder_of, layer_index


class Features(nn.Module):
    """A trained model without its head, with the same weights: images (B,C,H,W) → features (B,D).

    For a Vision Transformer, the features are the class token (`tokens` is "class") or the mean of
    the patches ("mean") after block `layer`, which counts from 1 or, if negative, from the end. By
    default ("auto"), they are what the head (with its hidden layer, if any) reads or, for an
    autoencoder, the mean. After the last block, they are normalized as for the head.

    For any other network, they are the input of its `head`. Raises ValueError if the model does not
    have the layer or the class token.
    """

    def __init__(self, model: nn.Module, layer: int = -1, tokens: str = "auto") -> None:
        super().__init__()
        shared = {id(each): each for each in (*model.parameters(), *model.buffers())}
        self.model = copy.deepcopy(model, shared)
        encoder = self.encoder = encoder_of(self.model)
        if encoder is None:
            if (layer, tokens) != (-1, "auto"):
                raise ValueError("layer= and tokens= are for Vision Transformers only")
            self.model.head = nn.Identity()
            return
        config = encoder.config
        if tokens == "class" and not config.has_class_token:
            raise ValueError(f"tokens=class: model.head={config.head} has no class token")
        of_head = config.has_class_token and encoder is self.model
        self.of_class = of_head if tokens == "auto" else tokens == "class"
        last = layer_index(layer, config.depth, "model")
        if last < config.depth - 1:
            del encoder.blocks[last + 1 :]
            encoder.norm = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        if self.encoder is None:
            return self.model(images)  # type: ignore[no-any-return]
        x, _ = self.encoder.encode(self.encoder.tokens(images))
        return self.encoder.pool(x, self.of_class)
