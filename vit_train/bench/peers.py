"""The same architecture built by other libraries, trained the way their examples show."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vit_train.bench.contender import Peer
from vit_train.bench.turn import Subject, Turn, take_turn
from vit_train.engine.device import keep_freed_memory, pick_device
from vit_train.engine.precision import set_precision
from vit_train.model.config import ViTConfig


def timm(config: ViTConfig, image_size: int, num_classes: int) -> Any:
    return import_module("timm.models.vision_transformer").VisionTransformer(
        img_size=image_size,
        patch_size=config.patch_size,
        num_classes=num_classes,
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.hidden_dim / config.embed_dim,
    )


def torchvision(config: ViTConfig, image_size: int, num_classes: int) -> Any:
    return import_module("torchvision.models").VisionTransformer(
        image_size=image_size,
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.embed_dim,
        mlp_dim=config.hidden_dim,
        num_classes=num_classes,
    )


def vit_pytorch(config: ViTConfig, image_size: int, num_classes: int) -> Any:
    """Build vit-pytorch's ViT, which has 0.2 % fewer weights.

    It has no biases in qkv and a LayerNorm before and after the patches.
    """
    return import_module("vit_pytorch").ViT(
        image_size=image_size,
        patch_size=config.patch_size,
        num_classes=num_classes,
        dim=config.embed_dim,
        depth=config.depth,
        heads=config.num_heads,
        dim_head=config.embed_dim // config.num_heads,
        mlp_dim=config.hidden_dim,
    )


# Settings that these builders do not pass on, so that they must have their defaults.
NOT_BUILT = (
    *("activation", "pre_norm", "norm_affine", "stem", "patch_overlap", "qk_norm", "qkv_bias"),
    *("layer_scale", "proj_bias", "mlp_bias", "positions", "positions_at", "head"),
    *("dropout", "branch_dropout", "drop_path"),
)
BUILDERS: dict[str, Callable[[ViTConfig, int, int], nn.Module]] = {
    "timm": timm,
    "torchvision": torchvision,
    "vit-pytorch": vit_pytorch,
}


def measure(peer: Peer, started: float) -> Turn:
    return take_turn(build(peer), peer.seconds, started)


def build(peer: Peer) -> Subject:
    """Return a peer's model and work.

    Training is as in every tutorial: the whole batch at once, forward, backward, step.
    """
    if peer.allocator:
        keep_freed_memory()
    device = pick_device(peer.device)
    precision = set_precision(peer.precision, device)
    torch.manual_seed(peer.seed)
    require_plain(peer.model)
    model = BUILDERS[peer.package](peer.model, peer.image_shape[1], peer.num_classes)
    require_same_size(model, peer.parameters)
    if peer.written_out:
        write_attention_out(model)
    model.to(device).train()
    optimizers = peer.optim.make(model)
    if peer.compile_mode:
        model.compile(dynamic=False, mode=peer.compile_mode)
    images = torch.randn(peer.batch_size, *peer.image_shape, device=device)
    labels = torch.randint(peer.num_classes, (peer.batch_size,), device=device)

    def train() -> None:
        with precision.autocast():
            loss = F.cross_entropy(model(images), labels, label_smoothing=peer.label_smoothing)
        loss.backward()
        if peer.optim.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), peer.optim.clip_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def infer() -> None:
        if model.training:
            model.eval()
        with precision.autocast():
            model(images)

    return Subject(device, model, train, {"train": train, "infer": infer})


def require_plain(config: ViTConfig) -> None:
    """Raise ValueError if the model has settings with which the peers would build another one."""
    plain = ViTConfig()
    others = [
        f"model.{name}={getattr(config, name)}"
        for name in NOT_BUILT
        if getattr(config, name) != getattr(plain, name)
    ]
    if others:
        raise ValueError(f"it is not compared with {', '.join(others)}: a plain ViT is")


def require_same_size(model: nn.Module, ours: int) -> None:
    """Raise ValueError if this is another model than ours; vit-pytorch's is 0.2 % smaller."""
    theirs = sum(parameter.numel() for parameter in model.parameters())
    if abs(theirs / ours - 1) > 0.01:
        raise ValueError(
            f"it builds a model of {theirs:,} parameters, ours has {ours:,}: they cannot be "
            "compared"
        )


def write_attention_out(model: nn.Module) -> None:
    """Let timm compute attention by its own formulas."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            vars(module)["fused_attn"] = False
