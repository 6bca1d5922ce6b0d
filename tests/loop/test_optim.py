"""Steps of the optimizers: decay, schedules, averages, and learning rates by layer."""

import copy
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, MultiStepLR

from vit_train.config.model import ViTConfig
from vit_train.config.training import AdamWConfig, MuonConfig, OptimConfig, SgdConfig
from vit_train.loop.optimizers import (
    Optimizer,
    Optimizers,
    make_adamw,
    make_optimizers,
    rate_scales,
)
from vit_train.loop.schedule import learning_rate
from vit_train.loop.state import Start, WeightAverage
from vit_train.model.autoencoder import MaskedAutoencoder
from vit_train.model.vit import VisionTransformer


def test_decay_is_on_matrices_only() -> None:
    model = VisionTransformer(ViTConfig(embed_dim=8, depth=1, num_heads=2))
    (adamw,) = make_adamw(model, AdamWConfig(weight_decay=0.3))
    decayed, others = adamw.param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert {names[p] for p in decayed["params"]} == {
        "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight",
        "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight", "head.weight",
    }  # fmt: skip
    assert len(decayed["params"]) + len(others["params"]) == len(names)
    (adamw,) = make_adamw(model, AdamWConfig(weight_decay=0.3, decay_all=True))
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.3}


def test_a_rate_that_changes_with_every_epoch_is_that_of_pytorchs_scheduler() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(1, 1).parameters(), lr=0.3)
    scheduler = CosineAnnealingLR(optimizer, T_max=6, eta_min=0.1)
    config = AdamWConfig(lr=0.3, min_lr=0.1, warmup_epochs=0, lr_every="epoch")
    for epoch in range(6):
        for step in range(5 * epoch, 5 * epoch + 5):
            assert learning_rate(step, config, 5, 6) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    warm = AdamWConfig(lr=0.3, warmup_epochs=3, lr_every="epoch")
    rates = [learning_rate(step, warm, 5, 6, Start(9, 45, lr=0.0)) for step in range(44, 65, 5)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.3])


SCHEDULERS = {
    "cosine": partial(CosineAnnealingLR, T_max=40),
    "linear": partial(LinearLR, start_factor=1.0, end_factor=0.0, total_iters=40),
    "constant": partial(ConstantLR, factor=1.0),
    "step": partial(MultiStepLR, milestones=[20, 30]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_is_that_of_pytorch(name: str) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.3)
    scheduler = SCHEDULERS[name](optimizer)
    config = SgdConfig(lr=0.3, warmup_epochs=0, schedule=name)
    for step in range(40):
        assert learning_rate(step, config, 5, 8) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


def test_wsd_is_constant_and_decays_in_the_last_fifth() -> None:
    config = AdamWConfig(lr=1.0, min_lr=0.1, warmup_epochs=2, schedule="wsd")
    rates = [learning_rate(step, config, 5, 22) for step in range(111)]
    assert rates[9:91] == [1.0] * 82
    assert rates[95] == pytest.approx(0.1 + 0.9 * 0.5) and rates[110] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[90:]))


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_sgd_is_that_of_pytorch(momentum: float) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    (sgd,) = make_optimizers(ours, SgdConfig(lr=0.1, weight_decay=0.2, momentum=momentum))
    decayed = {"params": [theirs.weight], "weight_decay": 0.2}
    groups = [decayed, {"params": [theirs.bias]}]
    oracle = torch.optim.SGD(groups, lr=0.1, momentum=momentum, nesterov=momentum > 0)
    for _ in range(4):
        x = torch.randn(5, 3)
        for model, optimizer in ((ours, sgd), (theirs, oracle)):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize(
    "warmup, steps, epochs, expected", [(0.5, 5, 3, 2), (1.3, 5, 3, 6), (99, 7, 1, 3)]
)
def test_a_warm_up_takes_whole_steps(warmup: float, steps: int, epochs: int, expected: int) -> None:
    config = AdamWConfig(lr=1.0, min_lr=0, warmup_epochs=warmup)
    rates = [learning_rate(step, config, steps, epochs) for step in range(steps * epochs)]
    assert rates[:expected] == pytest.approx([(i + 1) / expected for i in range(expected)])
    assert rates[expected] == max(rates) == 1


def test_an_extended_schedule_climbs_from_where_the_other_ended() -> None:
    config, start = AdamWConfig(lr=1.0, min_lr=0.1, warmup_epochs=2), Start(7, 40, lr=0.3)
    assert learning_rate(39, config, 5, 10, start) == 0.3  # before its first step
    assert learning_rate(-1, AdamWConfig(warmup_epochs=0), 5, 10) == 0
    rates = [learning_rate(step, config, 5, 10, start) for step in range(40, 91)]
    assert rates[:10] == pytest.approx([0.3 + 0.07 * (i + 1) for i in range(10)])
    assert rates[10:] == [learning_rate(step, config, 5, 10) for step in range(10, 51)]


def test_the_average_has_the_models_own_batch_statistics() -> None:
    """They are averages already."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = WeightAverage(model, decay=0.9)
    for step in range(1, 4):
        model(torch.randn(8, 3) + 5)
        average.update(torch.tensor(average.rate(step)))
    buffers = dict(model.named_buffers())
    assert buffers["1.num_batches_tracked"] == 3 and buffers["1.running_mean"].abs().max() > 0.1
    for name, buffer in average.model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


class Sgd(torch.optim.SGD, Optimizer):
    pass


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_a_rate_that_is_a_tensor_stays_that_tensor(lr: float | torch.Tensor) -> None:
    model = nn.Linear(2, 2)
    optimizers = Optimizers([Sgd(model.parameters(), lr=lr, fused=True)], model.parameters(), {})
    optimizers.set_lr(torch.tensor(0.3, dtype=torch.float64))
    (group,) = optimizers.groups
    assert float(group["lr"]) == pytest.approx(0.3)
    assert not isinstance(lr, torch.Tensor) or group["lr"] is lr


def test_an_optimizer_that_does_not_decide_on_the_device_waits_for_the_decision() -> None:
    model = nn.Linear(2, 2)
    optimizers = Optimizers([Sgd(model.parameters(), lr=0.1, fused=False)], model.parameters(), {})
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(torch.tensor(False))
    assert torch.equal(model.weight, before)
    optimizers.step(torch.tensor(True))
    torch.testing.assert_close(model.weight.detach(), before - 0.1)


TINY = ViTConfig(embed_dim=8, depth=3, num_heads=2, head="token_mlp")


def scales(config: OptimConfig) -> dict[str, float]:
    model = VisionTransformer(TINY)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: scale for parameter, scale in rate_scales(model, config).items()}


def test_layers_are_those_of_beit_and_mae() -> None:
    found = scales(AdamWConfig(layer_decay=0.5, head_lr_scale=10))
    for name, scale in found.items():
        first = name.split(".")[0]
        layer = int(name.split(".")[1]) + 1 if first == "blocks" else 0
        if first in ("norm", "head", "pre_head"):
            layer = 4
        assert scale == 0.5 ** (4 - layer) * (10 if "head" in first else 1), name
    assert len(found) == len(list(VisionTransformer(TINY).parameters()))
    assert set(scales(AdamWConfig(layer_decay=1)).values()) == {1}
    with_decoder = MaskedAutoencoder(TINY, 2, 32, 3)
    rates = rate_scales(with_decoder, AdamWConfig(layer_decay=0.5))
    assert rates[with_decoder.encoder.blocks[0].norm1.weight] == 0.125
    assert rates[with_decoder.decoder.blocks[0].norm1.weight] == 1


@pytest.mark.parametrize("config", [AdamWConfig(weight_decay=0.1), MuonConfig(weight_decay=0.1)])
def test_a_scaled_weight_takes_the_step_of_another_learning_rate(config: OptimConfig) -> None:
    """Each weight as if its own rate had been that of all."""
    model = VisionTransformer(TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
        parameter.grad = torch.randn_like(parameter)
    config.layer_decay = 0.5

    def stepped(scaled: bool, lr: float) -> VisionTransformer:
        twin = copy.deepcopy(model)
        for own, other in zip(twin.parameters(), model.parameters(), strict=True):
            own.grad = other.grad
        chosen = rate_scales(twin, config) if scaled else {}
        optimizers = Optimizers(make_optimizers(twin, config), twin.parameters(), chosen)
        optimizers.set_lr(torch.tensor(lr))
        optimizers.step(torch.tensor(True))
        return twin

    together = dict(stepped(True, 0.1).named_parameters())
    for part, scale in (
        ("patch_embed", 2**-4),
        ("blocks.0", 2**-3),
        ("blocks.2", 0.5),
        ("head", 1),
    ):
        for name, value in stepped(False, 0.1 * scale).named_parameters():
            if name.startswith(part):
                torch.testing.assert_close(together[name], value, rtol=1e-5, atol=1e-6)
