"""Draw docs/minutes.png: accuracy on CIFAR-10 against minutes, from the runs in docs/results.

    python docs/draw_minutes.py

Curves are validation accuracy after each epoch, dots the test accuracy of the final weights.
"""

import csv
import json
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent

# Runs, label, color, and where the label stands beside the last point. The second seed of
# cifar10_vit_mae was paused.
RUNS = (
    ("cifar10_vit_mae/0", "autoencoder first,\n44 epochs", "#7a4fa3", (9, -4)),
    ("clock_90_cpu/*", "autoencoder first,\n29 epochs", "#7a4fa3", (-10, 9)),
    ("cifar10_vit_long/*", "40 epochs, bf16\nAMD Zen 4", "#b5442e", (-6, -56)),
    ("cifar10_vit/*", "20 epochs, fp32\nIntel Xeon", "#1f5fa8", (10, -34)),
    ("cifar10_conv_14/*", "14 epochs, conv stem\nAMD EPYC (AVX2)", "#5b8c3a", (10, -12)),
    ("clock_80_cpu/*", "9 epochs,\nPatchDropout", "#b5442e", (-42, 9)),
    ("clock_90_cpu_taught/*", "taught by the small\nCNN, 24 epochs", "#c2408a", (9, -2)),
    ("clock_94_cpu_cnn/*", "a CNN, 2.0 M,\n20 epochs, Zen 5", "#222", (-8, 9)),
    ("clock_91_cpu_cnn/*", "a CNN, 0.5 M,\n12 epochs", "#222", (-29, 8)),
    ("clock_75_cpu/*", "5 epochs, fp32\nEPYC (AVX2)", "#5b8c3a", (14, -34)),
)
# What others publish, on other hardware: minutes, accuracy, label.
PUBLISHED = (
    (30, 80.0, "CCT: 80 % in under 30 min\non 12 CPU cores", (-80, -140)),
    (30, 90.0, "CCT: 90 % in under 30 min\non an RTX 2080 Ti", (64, 34)),
    (134, 90.92, "ViT 384/7, 6.3 M: 90.92 %\non a V100", (-30, 9)),
)


def drawn() -> Figure:
    """Return the figure."""
    figure = Figure((9, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for runs, label, color, place in RUNS:
        for summary in sorted((HERE / "results").glob(f"{runs}.json")):
            run, start = json.loads(summary.read_text(encoding="utf-8")), 0.0
            before = run["config"]["init_from"] or (run.get("teacher") or {}).get("checkpoint")
            if before:  # an autoencoder or a teacher, whose time counts, too
                folder = Path(before).parts[1]  # outputs/NAME
                first = HERE / "results" / folder / summary.name  # of the same seed
                start = json.loads(first.read_text(encoding="utf-8"))["seconds"]
            rows = list(csv.DictReader(summary.with_suffix(".csv").open(encoding="utf-8")))
            minutes = [(start + float(row["seconds"])) / 60 for row in rows]
            if "val_acc" in rows[0]:
                accuracy = [100 * float(row["val_acc"]) for row in rows]
                axes.plot(minutes, accuracy, color=color, linewidth=1.3)
            end = (start + run["seconds"]) / 60, 100 * run["test"]["final"]["acc"]
            axes.plot(*end, "o", color=color, markersize=6)
        axes.annotate(label, end, place, textcoords="offset points", color=color, fontsize=8.5)
    for x, y, label, place in PUBLISHED:
        axes.plot(x, y, "o", markerfacecolor="none", color="#777", markersize=7)
        axes.annotate(
            label,
            (x, y),
            place,
            textcoords="offset points",
            color="#666",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": "#bbb"},
        )
    axes.set(xlim=(0, 155), ylim=(45, 102), xlabel="minutes", ylabel="accuracy on CIFAR-10, %")
    axes.set_title(
        "ViTs with 1.2 to 1.3 M parameters and CNNs on two CPU cores; hollow: published by others",
        loc="left",
        fontsize=10,
    )
    axes.grid(color="#eee")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    drawn().savefig(HERE / "minutes.png", dpi=110)
