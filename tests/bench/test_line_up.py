"""Who takes part in a benchmark."""

import pytest
from line_up import contenders

from vit_train.bench.contender import Ours
from vit_train.model.config import CnnConfig


def test_every_peer_is_measured_in_every_variant_that_it_has() -> None:
    found = contenders(
        "shipped", "allocator", "written_out+allocator", "compiled", "shipped+fp32",
        of=("timm", "torchvision"),
    )  # fmt: skip
    assert [each.name for each in found] == [
        "vit_train (fused, fp32)",
        "timm (fp32)",
        "torchvision (fp32)",
        "timm (fp32, our allocator)",
        "torchvision (fp32, our allocator)",
        "timm (fp32, our allocator, written-out attention)",
        "timm (fp32, compiled)",
        "torchvision (fp32, compiled)",
    ]


def test_ours_is_measured_as_set_then_as_asked_then_in_the_precisions_of_the_peers() -> None:
    found = contenders("bf16", ours=["scratch", "compiled+scratch", "fused"])
    assert [each.name for each in found] == [
        "vit_train (fused, fp32)",
        "vit_train (scratch, fp32)",
        "vit_train (scratch, fp32, compiled)",
        "vit_train (fused, bf16)",
        "timm (bf16)",
    ]
    assert [each.complete for each in found if isinstance(each, Ours)] == [True] + [False] * 3
    assert [each.config.compile for each in found if isinstance(each, Ours)][2]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"variants": ["cudagraphs"]}, "bench.variants=cudagraphs needs device=cuda"),
        ({"variants": ["fp16"]}, "precision=fp16 needs a GPU"),
        ({"variants": ["eager"]}, "bench.variants=eager must be one of: shipped, allocator, "),
        ({"variants": ["bf16+fp32"]}, "bench.variants=bf16\\+fp32: choose either bf16 or fp32"),
        ({"ours": ["allocator"]}, "bench.ours=allocator must be one of: scratch, fused, "),
        ({"ours": ["fused"], "model": CnnConfig(), "of": ()}, "needs a Vision Transformer"),
        ({"variants": ["shipped"], "model": CnnConfig()}, "compares ViTs with other libraries"),
        ({"max_minutes": 0}, "bench.max_minutes=0 must be positive, or null"),
    ],
)
def test_variants_that_cannot_be_are_refused(arguments: dict[str, object], words: str) -> None:
    variants = arguments.pop("variants", [])
    with pytest.raises(ValueError, match=words):
        contenders(*variants, **arguments)
