"""What is measured, and where and how: the head of the tables."""

from dataclasses import asdict
from typing import Any

import torch

from vit_train.bench.config import BenchConfig
from vit_train.model.config import ViTConfig
from vit_train.report import provenance
from vit_train.report.terminal import counted

HOW = (
    "each contender alone in its process, {rounds}: medians (lowest–highest), ratios within a round"
)


def origin(config: BenchConfig, device: torch.device) -> dict[str, Any]:
    """Return all on which the figures depend, for bench.json."""
    return {
        "command": provenance.command_line(),
        "machine": provenance.machine(device),
        "versions": provenance.versions()
        | {peer: provenance.version_of(peer) for peer in config.bench.peers},
        "commit": provenance.commit(),
        "how": HOW.format(rounds=counted(config.bench.rounds, "round")),
        "config": asdict(config),
    }


def title_of(config: BenchConfig, size: int, parameters: int, precision: str) -> str:
    """Say what "ours" is: our model as the settings describe it."""
    model, name = config.model, config.model.name
    if isinstance(model, ViTConfig):
        name = f"ViT {model.embed_dim}/{model.depth}, patch {model.patch_size}"
    return f"{name}, {parameters:,} parameters, {size}×{size} images, {precision}"


def describe(about: dict[str, Any]) -> str:
    """Return the head of the tables: model, machine, programs and the way of measuring."""
    machine = about["machine"]
    threads = counted(machine["threads"], "thread")
    cpu = f"{machine['cpu'] or 'unknown CPU'}, {machine['cpu_capability']}"
    if machine["cpu_extensions"]:
        cpu += f" ({' '.join(machine['cpu_extensions'])})"
    programs = [f"{name} {number}" for name, number in about["versions"].items()]
    commit, changed, _ = (about["commit"] or "unknown").partition("+")
    commit = commit[:10] + (", changed since" if changed else "")
    lines = [
        f"{cpu}, {threads}, {machine['gpu'] or 'no GPU'}",
        f"{', '.join(programs)}, commit {commit}",
        about["how"],
    ]
    return "\n".join([f"# {about['title']}", "", *(f"- {line}" for line in lines)])
