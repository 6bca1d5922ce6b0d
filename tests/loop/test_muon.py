"""Muon against PyTorch's own, matrix by matrix."""

import copy

import pytest
import torch
from torch import Tensor, nn

from vit_train.config.model import ViTConfig
from vit_train.config.training import MuonConfig
from vit_train.loop.optimizers import Muon, Optimizers, make_muon, newton_schulz
from vit_train.loop.precision import Precision
from vit_train.loop.workers import Workers
from vit_train.model.vit import VisionTransformer

TINY = ViTConfig(embed_dim=16, depth=2, num_heads=2)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_steps_are_nearly_orthogonal(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(5, 16, 40, dtype=torch.float64)
    orthogonal = newton_schulz(matrices, dtype)
    values = torch.linalg.svdvals(orthogonal)
    assert values.min() > 0.6 and values.max() < 1.3
    near = (orthogonal * matrices).sum() / (orthogonal.norm() * matrices.norm())
    assert near > 0.9
    assert newton_schulz(torch.zeros(1, 3, 4), dtype).abs().max() == 0


def optimized() -> tuple[VisionTransformer, Optimizers]:
    """A model with random gradients, and its optimizers."""
    torch.manual_seed(0)
    model = VisionTransformer(TINY)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model, Optimizers(make_muon(model, MuonConfig()), model.parameters(), {})


def test_it_has_the_blocks_matrices_and_adamw_the_rest() -> None:
    model = VisionTransformer(TINY)
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


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    model, optimizers = optimized()
    optimizers.step(torch.tensor(True))
    before = copy.deepcopy((model.state_dict(), optimizers.moments()[0]))
    gradients = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = parameter.grad * float("nan")
    optimizers.step(torch.tensor(False))
    after = model.state_dict(), optimizers.moments()[0]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizers.step(torch.tensor(True))
    assert not torch.equal(before[0]["blocks.0.mlp.fc1.weight"], model.blocks[0].mlp.fc1.weight)


def test_frozen_blocks_leave_adamw_alone() -> None:
    model = VisionTransformer(TINY)
    model.blocks.requires_grad_(False)
    (adamw,) = make_muon(model, MuonConfig())
    trained = {p for group in adamw.param_groups for p in group["params"]}
    assert trained == {p for p in model.parameters() if p.requires_grad}


def test_a_step_in_several_threads_is_the_same_step_and_one_in_bf16_a_rounded_one() -> None:
    def after_a_step(workers: Workers, precision: str = "fp32") -> Tensor:
        model, optimizers = optimized()
        optimizers.use(workers, Precision(precision, torch.device("cpu")))
        with workers:
            optimizers.step(torch.tensor(True))
        return model.blocks[0].mlp.fc1.weight.detach()

    alone = after_a_step(Workers())
    torch.testing.assert_close(after_a_step(Workers(count=3)), alone, rtol=1e-6, atol=1e-7)
    rounded = (after_a_step(Workers(), "bf16") - alone).abs().max()
    assert 1e-6 < rounded < 1e-4


def test_moments_that_are_not_there_are_refused() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    optimizers = Optimizers([Muon({weight: 1}, 0.1, 0.9, 0.0)], [weight], {})
    optimizers.restore([[{"momentum_buffer": torch.ones(4, 4)}]])
    with pytest.raises(ValueError, match="belong to a different optimizer"):
        optimizers.restore([[{}]])
