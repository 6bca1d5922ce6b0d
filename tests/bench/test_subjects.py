"""What is built for a benchmark, and the work that is timed."""

import time

import pytest
import torch
from line_up import CPU, contenders
from torch import nn

from vit_train.bench import ours, peers, turn
from vit_train.bench.contender import Peer
from vit_train.bench.ours import Limited
from vit_train.bench.turn import take_turn
from vit_train.engine import trainer
from vit_train.model.config import ViTConfig
from vit_train.model.flops import count_flops
from vit_train.model.vit import VisionTransformer


def test_torchvision_builds_the_same_number_of_parameters() -> None:
    for config in (ViTConfig(), ViTConfig(embed_dim=48, depth=2, num_heads=3, mlp_ratio=2)):
        ours = VisionTransformer(config, 32, 3, 10)
        theirs = peers.torchvision(config, 32, 10)
        count = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
        assert count[0] == count[1]


def test_a_peer_of_another_size_is_refused() -> None:
    model = nn.Linear(100, 10, bias=False)
    for parameters in (1000, 995, 1005):
        peers.require_same_size(model, parameters)
    for parameters in (980, 1020):
        with pytest.raises(ValueError, match=r"1,000 parameters, ours has .*cannot be compared"):
            peers.require_same_size(model, parameters)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"head": "gap", "positions": "sincos_2d"}, "model.positions=sincos_2d, model.head=gap"),
        ({"dropout": 0.1}, "model.dropout=0.1"),
        ({"pre_norm": False}, "model.pre_norm=False"),
    ],
)
def test_a_model_that_peers_would_build_otherwise_is_not_compared(
    settings: dict[str, object], named: str
) -> None:
    peers.require_plain(ViTConfig(depth=2, embed_dim=32, kernels="fused", init="mimetic"))
    with pytest.raises(ValueError, match=f"is not compared with {named}: a plain ViT is"):
        peers.require_plain(ViTConfig(**settings))


def test_written_out_attention_is_switched_in_every_block() -> None:
    blocks = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.ReLU())
    blocks[0].fused_attn = blocks[1].fused_attn = True
    peers.write_attention_out(blocks)
    assert not blocks[0].fused_attn and not blocks[1].fused_attn
    assert not hasattr(blocks[2], "fused_attn")


def test_a_peer_trains_and_infers_in_its_precision() -> None:
    (peer,) = (each for each in contenders("bf16", of=("torchvision",)) if isinstance(each, Peer))
    subject = peers.build(peer)
    seen: list[tuple[torch.dtype, bool]] = []
    subject.model.register_forward_hook(
        lambda module, _, logits: seen.append((logits.dtype, module.training))
    )
    before = [weight.clone() for weight in subject.model.parameters()]
    measured = take_turn(subject, 0.01, time.monotonic() - 1)
    assert list(measured.timings) == ["train", "infer"]
    assert set(seen) == {(torch.bfloat16, True), (torch.bfloat16, False)}
    assert measured.parameters == peer.parameters and measured.peak_memory > 10**7
    assert 1 < measured.start_up < 60 and 0 < measured.first_step < 60
    changed = zip(before, subject.model.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in changed)


def test_our_parts_and_the_loop_are_timed_after_training_without_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    load, peak = ours.images_of, turn.peak_memory
    monkeypatch.setattr(ours, "images_of", lambda ours: (events.append("data"), load(ours))[1])
    monkeypatch.setattr(turn, "peak_memory", lambda _: (events.append("peak"), peak(CPU))[1])
    complete, plain = contenders(of=(), ours=["scratch"])
    threads = torch.get_num_threads()
    measured = take_turn(ours.build(complete), 0.01, time.monotonic())
    assert list(measured.timings) == ["train", "gradients", "input", "loop", "infer"]
    assert events == ["peak", "data"]
    assert list(ours.build(plain).work) == ["train", "infer"]
    assert torch.get_num_threads() == threads


def test_ours_that_does_not_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "compile_model", lambda *_: False)
    _, compiled = contenders(of=(), ours=["compiled"])
    with pytest.raises(ValueError, match="cannot be compiled"):
        take_turn(ours.build(compiled), 0.01, time.monotonic())


def test_the_work_of_a_step_is_counted_without_what_is_never_computed() -> None:
    """One block, T = 65 tokens: keys and values of all tokens, all else for one token alone."""
    dim, tokens, patch = 128, 65, 48
    full = 2 * tokens * dim * 2 * dim  # keys and values
    alone = (
        2 * dim * dim * 2 + 2 * dim * 4 * dim * 2 + 2 * tokens * dim * 2
    )  # q, proj, MLP, QKᵀ, AV
    forward = 2 * 64 * patch * dim + full + alone + 2 * dim * 10
    # Backward computes two products for each of the forward, but none for the images.
    expected = 3 * forward - 2 * 64 * patch * dim
    assert count_flops(ViTConfig(depth=1), (3, 32, 32), 10).training == expected


def test_a_short_loop_goes_on_through_the_epochs() -> None:
    class TrainLoader:
        batch_size = 1

        def draws(self, epoch: int) -> list[tuple[int, int]]:
            return [(epoch, batch) for batch in range(3)]

    short = Limited(TrainLoader, 1, 2, torch.device("cpu"))
    assert [list(short.draws(0)) for _ in range(3)] == [
        [(0, 0), (0, 1)], [(0, 2), (1, 0)], [(1, 1), (1, 2)],
    ]  # fmt: skip
