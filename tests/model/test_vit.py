"""The whole model: against torchvision's, scratch against fused, and what it refuses."""

import functools

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from vit_train.config.model import ViTConfig
from vit_train.interop.layouts import TORCHVISION
from vit_train.model.layers import Dropout
from vit_train.model.patches import patchify, unpatchify
from vit_train.model.positions import POSITIONS
from vit_train.model.vit import VisionTransformer

SIZE, BATCH, CLASSES = 16, 3, 7
CONFIG = {"patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "mlp_ratio": 2.0}
TOKENS = 1 + (SIZE // 4) ** 2

kernels = pytest.mark.parametrize("kernels", ["scratch", "fused"])


def build(dtype=torch.float64, in_channels=3, image_size=SIZE, **config):
    """A model in evaluation mode with every parameter random, the zero-initialized head too."""
    model = VisionTransformer(ViTConfig(**(CONFIG | config)), image_size, in_channels, CLASSES)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.to(dtype).eval()


def images(dtype=torch.float64, in_channels=3, image_size=SIZE):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, in_channels, image_size, image_size, generator=generator).to(dtype)


def logits_and_gradients(model, batch):
    logits = model(batch)
    F.cross_entropy(logits, torch.arange(len(batch))).backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters()}


# torchvision ------------------------------------------------------------------------------------


def build_torchvision(state, image_size=SIZE, **config):
    used = CONFIG | config
    reference = torchvision.models.VisionTransformer(
        image_size=image_size,
        patch_size=used["patch_size"],
        num_layers=used["depth"],
        num_heads=used["num_heads"],
        hidden_dim=used["embed_dim"],
        mlp_dim=int(used["embed_dim"] * used["mlp_ratio"]),
        dropout=used.get("dropout", 0.0),
        num_classes=CLASSES,
        norm_layer=functools.partial(nn.LayerNorm, eps=1e-5),
    )
    reference.double().load_state_dict(TORCHVISION.to_theirs(state))
    return reference.eval()


@kernels
@pytest.mark.parametrize(
    "config, image_size",
    [
        ({}, SIZE),
        ({"patch_size": 8, "mlp_ratio": 4.0, "num_heads": 1}, 32),
        ({"depth": 1, "embed_dim": 16, "num_heads": 8}, 20),
    ],
)
def test_logits_and_gradients_are_torchvisions(kernels, config, image_size):
    model = build(kernels=kernels, image_size=image_size, **config)
    reference = build_torchvision(model.state_dict(), image_size, **config)
    batch = images(image_size=image_size)
    logits, gradients = logits_and_gradients(model, batch)
    expected, expected_gradients = logits_and_gradients(reference, batch)
    assert logits.std() > 0.1  # not the zero-initialized head
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    gradients = TORCHVISION.to_theirs(gradients)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-10)


@kernels
def test_dropout_acts_where_torchvisions_does(kernels, monkeypatch):
    # Masks depend on the memory layout; a visible function in their place does not.
    monkeypatch.setattr(nn.Dropout, "forward", lambda self, x: x.sin() * self.p if self.p else x)
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x.sin() * self.rate if self.rate else x)
    model = build(kernels=kernels, dropout=0.3).train()
    reference = build_torchvision(model.state_dict(), dropout=0.3).train()
    torch.testing.assert_close(model(images()), reference(images()), rtol=0, atol=1e-10)


# scratch and fused ------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["token", "gap"])
@pytest.mark.parametrize("positions", ["none", "learned", "relative"])
def test_under_autocast_residuals_and_logits_stay_float32(head: str, positions: str) -> None:
    model = build(torch.float32, head=head, positions=positions, depth=2)
    kinds = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: kinds.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(2, 3, SIZE, SIZE))
    assert kinds == [torch.float32] * 2
    assert logits.dtype == torch.float32 and not torch.equal(logits, logits.bfloat16().float())


# initialization ---------------------------------------------------------------------------------


def test_a_block_is_near_the_identity_at_initialization():
    config = ViTConfig(init="torch", qkv_bias=False, proj_bias=False)  # system B
    model, x = VisionTransformer(config), torch.randn(4, 65, 128)
    for block in model.blocks:
        assert (block(x)[0] - x).norm() < 0.3 * x.norm()


def test_initial_weights_are_xavier_uniform_with_the_patch_fan_in_and_zero_biases():
    model = VisionTransformer(ViTConfig(embed_dim=128, depth=1), SIZE)
    bounds = {
        model.patch_embed.proj: (6 / (3 * 4 * 4 + 128)) ** 0.5,
        model.blocks[0].attn.qkv: (6 / (128 + 3 * 128)) ** 0.5,
        model.blocks[0].mlp.fc1: (6 / (128 + 4 * 128)) ** 0.5,
    }
    for module, bound in bounds.items():
        assert module.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert module.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
        assert module.bias.count_nonzero() == 0
    assert model.pos_embed[0].weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.25)


# attention maps ---------------------------------------------------------------------------------


@kernels
def test_return_attention_gives_one_map_a_layer_and_the_same_logits(kernels):
    model, batch = build(kernels=kernels), images()
    logits, attention = model(batch, return_attention=True)
    assert len(attention) == CONFIG["depth"]
    for layer in attention:
        assert layer.shape == (BATCH, CONFIG["num_heads"], TOKENS, TOKENS)
        assert (layer >= 0).all()
        torch.testing.assert_close(layer.sum(-1), torch.ones_like(layer[..., 0]))
    torch.testing.assert_close(logits, model(batch), rtol=0, atol=1e-10)


# registers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["token", "gap"])
@pytest.mark.parametrize("positions", [*POSITIONS, "none"])
def test_registers_that_no_token_attends_to_change_nothing(positions: str, head: str) -> None:
    plain = build(positions=positions, head=head)
    model, batch = build(positions=positions, head=head, registers=2), images()
    model.load_state_dict(plain.state_dict(), strict=False)
    first = int(head == "token")
    others = [n for n in range(first + 2 + TOKENS - 1) if n not in (first, first + 1)]
    mask = torch.zeros(len(others) + 2, len(others) + 2, dtype=torch.bool)
    mask[:, others] = True
    x = model.tokens(batch)
    if len(model.pos_embed):
        x = x + model.positions(0)
    for block in model.blocks:
        x, _ = block(x, mask=mask)
    expected, _ = plain.encode(plain.tokens(batch))
    torch.testing.assert_close(x[:, others], expected, rtol=0, atol=1e-10)
    # Otherwise they do, and all ways to the logits or tokens are the same.
    logits = model(batch)
    assert (logits - plain(batch)).abs().max() > 0.01
    torch.testing.assert_close(logits, model(batch, return_attention=True)[0], rtol=0, atol=1e-10)
    tokens, _ = model.encode(model.tokens(batch))
    visible = model.encode_visible(batch, torch.arange(TOKENS - 1).expand(BATCH, -1))
    torch.testing.assert_close(visible, model.norm(tokens), rtol=0, atol=1e-10)


# refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(2, 3, 32, 32), (2, 1, 16, 16), (2, 3, 16, 12), (3, 16, 16), (2, 16, 16, 3)]
)
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected images \(B, 3, 16, 16\), got ") as caught:
        build()(torch.zeros(shape, dtype=torch.float64))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("head", ["token", "gap"])
def test_what_a_dropped_patch_shows_changes_nothing_and_the_others_keep_their_places(head):
    model, batch = build(head=head, registers=1, patch_dropout=0.5).train(), images()
    kept = torch.tensor([[3, 9, 12, 14]] * BATCH)
    model.patch_dropout.forward = lambda patches: kept
    patches = patchify(batch, 4)
    others = torch.full_like(patches, 7)
    others[:, kept[0]] = patches[:, kept[0]]
    logits = model(batch)
    torch.testing.assert_close(model(unpatchify(others, 4, (SIZE, SIZE))), logits)
    assert (model(batch.flip(3)) - logits).abs().max() > 0.01
    kept = torch.arange(TOKENS - 1).flip(0).expand(BATCH, -1)  # all, in another order
    plain = build(head=head, registers=1)
    torch.testing.assert_close(model(batch), plain(batch), rtol=0, atol=1e-10)


@pytest.mark.parametrize("rates", [[0], [0, 0.3], [0, 0.1, 0.2, 0.3]], ids=len)
def test_stochastic_depth_rises_from_nothing_in_the_first_block_to_its_rate_in_the_last(rates):
    config = ViTConfig(embed_dim=8, depth=len(rates), num_heads=1, drop_path=0.3)
    found = [block.drop_path.rate for block in VisionTransformer(config).blocks]
    assert found == pytest.approx(rates)


def test_layer_scale_multiplies_each_value_of_a_branch() -> None:
    """As if the rows of its last layer, and their biases, were multiplied."""
    scaled, plain = build(layer_scale=0.5), build()
    state = {key: value for key, value in scaled.state_dict().items() if "gamma" not in key}
    for key, gamma in scaled.state_dict().items():
        if "gamma" in key:
            last = key.replace("ls1.gamma", "attn.proj").replace("ls2.gamma", "mlp.fc2")
            state[f"{last}.weight"] = gamma.unsqueeze(1) * state[f"{last}.weight"]
            state[f"{last}.bias"] = gamma * state[f"{last}.bias"]
    plain.load_state_dict(state)
    images = torch.randn(BATCH, 3, SIZE, SIZE, dtype=torch.float64)
    torch.testing.assert_close(scaled(images), plain(images), rtol=1e-10, atol=1e-12)
