"""Who takes part: our model and each peer's, in the variants that the settings ask for."""

from dataclasses import replace
from typing import Any

import torch

from vit_train.bench.config import OUR_WORDS, PEER_WORDS, BenchConfig, chosen_words
from vit_train.bench.contender import OURS, Contender, Ours, Peer
from vit_train.bench.ours import classification
from vit_train.engine.compile import compiles
from vit_train.engine.device import pick_device
from vit_train.engine.precision import set_precision
from vit_train.model.config import ViTConfig, require_vit

COMPILE_MODES = {"compiled": "default", "cudagraphs": "reduce-overhead"}


def line_up(
    config: BenchConfig,
    batch_size: int,
    image_shape: tuple[int, int, int],
    num_classes: int,
    parameters: int,
) -> list[Contender]:
    """Return all contenders, ours first; `parameters` are those of our model.

    Ours are measured in every precision in which a peer is, too; that of the config is not auto.
    Raise ValueError for what this
    device cannot do, and if there are peers of a model that is no ViT.
    """
    device = pick_device(config.device)
    common = {
        "device": device.type,
        "batch_size": batch_size,
        "image_shape": image_shape,
        "num_classes": num_classes,
        "seed": config.seed,
        "seconds": config.bench.seconds,
    }
    peers = [
        peer_of(config, package, variant, device, parameters, common)
        for variant in config.bench.variants
        for package in config.bench.peers
        # Of the peers, only timm's attention can be switched to its own formulas.
        if package == "timm" or "written_out" not in variant.split("+")
    ]
    ours = [ours_of(config, variant, device, common) for variant in ("", *config.bench.ours)]
    covered = {contender.precision for contender in ours}
    missing = {peer.precision for peer in peers} - covered
    ours += [ours_of(config, precision, device, common) for precision in sorted(missing)]
    ours[0] = replace(ours[0], complete=True)
    # A variant that says what the settings say already is the same contender again.
    unique: dict[str, Contender] = {}
    for contender in (*ours, *peers):
        unique.setdefault(contender.name, contender)
    return list(unique.values())


def ours_of(
    config: BenchConfig, variant: str, device: torch.device, common: dict[str, Any]
) -> Ours:
    words = chosen_words("bench.ours", variant, OUR_WORDS)
    model = config.model
    if "kernels" in words:
        model = replace(require_vit(model, f"bench.ours={variant}"), kernels=words["kernels"])
    if isinstance(model, ViTConfig) and model.kernels == "auto":  # say what that is here
        model = replace(model, kernels="fused")
    precision = set_precision(words.get("precision", config.precision), device).name
    as_set = "compiled" if compiles(config.compile, device) else "eager"
    compiled = words.get("compile", as_set) == "compiled"
    config = replace(config, model=model, precision=precision, compile=compiled)
    return Ours(**common, package=OURS, precision=precision, config=config, complete=False)


def peer_of(
    config: BenchConfig,
    package: str,
    variant: str,
    device: torch.device,
    parameters: int,
    common: dict[str, Any],
) -> Peer:
    words = chosen_words("bench.variants", variant, PEER_WORDS)
    if words.get("compile") == "cudagraphs" and device.type != "cuda":
        raise ValueError(f"bench.variants={variant} needs device=cuda")
    if not isinstance(config.model, ViTConfig):
        raise ValueError(
            f"vit-bench compares ViTs with other libraries, not model.name={config.model.name}"
        )
    return Peer(
        **common,
        package=package,
        precision=set_precision(words.get("precision", config.precision), device).name,
        model=config.model,
        optim=config.optim,
        label_smoothing=classification(config).label_smoothing,
        parameters=parameters,
        allocator="allocator" in words,
        written_out="attention" in words,
        compile_mode=COMPILE_MODES.get(words.get("compile", "")),
    )
