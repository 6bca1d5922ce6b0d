"""Steps of the optimizers, Muon's too: decay, schedules, averages, and learning rates by layer."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from small_trainers import FP32
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
)

from vit_train.config.fields import builder
from vit_train.config.model import ViTConfig
from vit_train.config.training import AdamWConfig, MuonConfig, OptimConfig, SgdConfig
from vit_train.loop.device import Precision
from vit_train.loop.optimizers import (
    Muon,
    Optimizer,
    Optimizers,
    make_adamw,
    make_muon,
    make_sgd,
    rate_scales,
)
from vit_train.loop.schedule import learning_rate
from vit_train.loop.state import Start
from vit_train.loop.workers import Workers
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


SCHEDULERS = {
    "cosine": partial(CosineAnnealingLR, T_max=40, eta_min=0.1),
    "linear": partial(LinearLR, start_factor=1.0, end_factor=1 / 3, total_iters=40),
    "constant": partial(ConstantLR, factor=1.0),
    "step": partial(MultiStepLR, milestones=[20, 30]),
}
EVERY_EPOCH = partial(CosineAnnealingLR, T_max=8, eta_min=0.1)


@pytest.mark.parametrize(
    "name, every, make",
    [
        *((name, "step", make) for name, make in SCHEDULERS.items()),
        ("cosine", "epoch", EVERY_EPOCH),
    ],
)
def test_a_schedule_is_that_of_pytorch(
    name: str, every: str, make: Callable[..., LRScheduler]
) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.3)
    scheduler = make(optimizer)
    minimum = 0 if name == "step" else 0.1
    config = SgdConfig(lr=0.3, min_lr=minimum, warmup_epochs=0, schedule=name, lr_every=every)
    for step in range(40):
        assert learning_rate(step, config, 5, 8) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        if every == "step" or step % 5 == 4:
            scheduler.step()


def test_a_rate_that_changes_with_every_epoch_warms_up_by_epochs() -> None:
    warm = AdamWConfig(lr=0.3, warmup_epochs=3, lr_every="epoch")
    rates = [learning_rate(step, warm, 5, 6, Start(9, 45, lr=0.0)) for step in range(45, 65, 5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3])


def test_wsd_is_constant_and_decays_in_the_last_fifth() -> None:
    config = AdamWConfig(lr=1.0, min_lr=0.1, warmup_epochs=2, schedule="wsd")
    rates = [learning_rate(step, config, 5, 22) for step in range(111)]
    assert rates[9:91] == [1.0] * 82
    assert rates[95] == pytest.approx(0.1 + 0.9 * 0.5) and rates[110] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[90:]))


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_sgd_is_that_of_pytorch(momentum: float) -> None:
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    (sgd,) = make_sgd(ours, SgdConfig(lr=0.1, weight_decay=0.2, momentum=momentum))
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
    rates = [learning_rate(step, config, 5, 10, start) for step in range(40, 91)]
    assert rates[:10] == pytest.approx([0.3 + 0.07 * (i + 1) for i in range(10)])
    assert rates[10:] == [learning_rate(step, config, 5, 10) for step in range(10, 51)]


class Sgd(torch.optim.SGD, Optimizer):
    pass


LR = torch.tensor(0.001)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_a_rate_that_is_a_tensor_stays_that_tensor(lr: float | torch.Tensor) -> None:
    model = nn.Linear(2, 2)
    optimizers = Optimizers([Sgd(model.parameters(), lr=lr, fused=True)], model.parameters(), {})
    optimizers.step(torch.tensor(0.3, dtype=torch.float64), torch.tensor(False))
    (group,) = optimizers.optimizers[0].param_groups
    assert float(group["lr"]) == pytest.approx(0.3)
    assert not isinstance(lr, torch.Tensor) or group["lr"] is lr


def test_an_unfused_optimizer_skips_a_step() -> None:
    model = nn.Linear(2, 2)
    optimizers = Optimizers([Sgd(model.parameters(), fused=False)], model.parameters(), {})
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(LR, torch.tensor(False))
    assert torch.equal(model.weight, before)
    optimizers.step(LR, torch.tensor(True))
    torch.testing.assert_close(model.weight.detach(), before - LR)


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
    with_decoder = MaskedAutoencoder(TINY, 2, (3, 32, 32))
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
        optimizers = Optimizers(builder(config)(twin, config), twin.parameters(), chosen)
        optimizers.step(torch.tensor(lr), torch.tensor(True))
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


NARROW = ViTConfig(embed_dim=16, depth=2, num_heads=2)
# Square, wide, tall, three square ones stacked, two, and a convolution: shape and number.
WEIGHTS = [((8, 8), 1), ((8, 24), 1), ((24, 8), 1), ((24, 8), 3), ((6, 8), 2), ((6, 2, 3, 3), 1)]


def matrices(weight: Tensor, parts: int) -> tuple[Tensor, ...]:
    return weight.flatten(1).unflatten(0, (parts, -1)).unbind()


@pytest.mark.parametrize("momentum, weight_decay", [(0.95, 0.1), (0.0, 0.0), (0.5, 1.0)])
def test_each_matrix_takes_the_steps_of_pytorchs_muon(
    momentum: float, weight_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyTorch's then computes in the precision of its weights instead of bf16.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    torch.manual_seed(0)
    together = [nn.Parameter(torch.randn(shape).double()) for shape, _ in WEIGHTS]
    counts = [count for _, count in WEIGHTS]
    separate = [
        [nn.Parameter(each.clone()) for each in matrices(weight.detach(), count)]
        for weight, count in zip(together, counts, strict=True)
    ]
    ours = Muon(dict(zip(together, counts, strict=True)), 0.03, momentum, weight_decay)
    theirs = torch.optim.Muon(
        [part for parts in separate for part in parts],
        0.03,
        weight_decay,
        momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    for _ in range(5):
        for weight, count, parts in zip(together, counts, separate, strict=True):
            weight.grad = torch.randn_like(weight)
            for part, gradient in zip(parts, matrices(weight.grad, count), strict=True):
                part.grad = gradient.clone()
        ours.step()
        theirs.step()
    for weight, count, parts in zip(together, counts, separate, strict=True):
        for ours_now, theirs_now in zip(matrices(weight, count), parts, strict=True):
            torch.testing.assert_close(ours_now, theirs_now, rtol=1e-9, atol=1e-12)


def optimized() -> tuple[VisionTransformer, Optimizers]:
    """A model with random gradients, and its optimizers."""
    torch.manual_seed(0)
    model = VisionTransformer(NARROW)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model, Optimizers(make_muon(model, MuonConfig()), model.parameters(), {})


def test_muon_has_the_matrices_of_blocks_and_adamw_the_rest() -> None:
    model = VisionTransformer(NARROW)
    matrix_wise, adamw = make_muon(model, MuonConfig(weight_decay=0.3, momentum=0.7))
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert isinstance(matrix_wise, Muon)
    parts = {names[weight]: count for weight, count in matrix_wise.parts.items()}
    assert parts == {
        f"blocks.{block}.{name}.weight": count
        for block in range(2)
        for name, count in (("attn.qkv", 3), ("attn.proj", 1), ("mlp.fc1", 1), ("mlp.fc2", 1))
    }
    decayed, others = adamw.param_groups
    assert {names[p] for p in decayed["params"]} == {"patch_embed.proj.weight", "head.weight"}
    groups = (*matrix_wise.param_groups, decayed, others)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.3, 0]
    Optimizers([matrix_wise, adamw], model.parameters(), {})  # each weight belongs to one of them


def test_a_skipped_step_of_muon_changes_nothing() -> None:
    model, optimizers = optimized()
    optimizers.step(LR, torch.tensor(True))
    before = copy.deepcopy((model.state_dict(), optimizers.moments()[0]))
    for parameter in model.parameters():
        parameter.grad = parameter.grad * float("nan")
    optimizers.step(LR, torch.tensor(False))
    after = model.state_dict(), optimizers.moments()[0]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_frozen_blocks_leave_adamw_alone() -> None:
    model = VisionTransformer(NARROW)
    model.blocks.requires_grad_(False)
    (adamw,) = make_muon(model, MuonConfig())
    trained = {p for group in adamw.param_groups for p in group["params"]}
    assert trained == {p for p in model.parameters() if p.requires_grad}


def test_muon_steps_alike_in_threads_and_rounded_in_bf16() -> None:
    def after_a_step(workers: Workers, precision: str = "fp32") -> Tensor:
        model, optimizers = optimized()
        optimizers.use(workers, Precision(precision, FP32.device))
        with workers:
            optimizers.step(LR, torch.tensor(True))
        return model.blocks[0].mlp.fc1.weight.detach()

    alone = after_a_step(Workers())
    torch.testing.assert_close(after_a_step(Workers(count=3)), alone, rtol=1e-6, atol=1e-7)
    rounded = (after_a_step(Workers(), "bf16") - alone).abs().max()
    assert 1e-6 < rounded < 1e-4


def test_missing_moments_are_refused() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    optimizers = Optimizers([Muon({weight: 1}, 0.1, 0.9, 0.0)], [weight], {})
    optimizers.restore([[{"momentum_buffer": torch.ones(4, 4)}]])
    with pytest.raises(ValueError, match="moments none, but Muon has momentum_buffer"):
        optimizers.restore([[{}]])
