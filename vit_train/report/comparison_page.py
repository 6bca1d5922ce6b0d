"""report.html of several classifiers on the same images."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vit_train.engine.metrics import Classification
from vit_train.report.evaluation import Findings
from vit_train.report.html import page, paragraph, picture, section, table, text
from vit_train.report.paired import Paired
from vit_train.text import counted


@dataclass(frozen=True)
class Pair:
    """Two of the compared classifiers, by their names."""

    first: str
    second: str
    paired: Paired
    # The p-value, adjusted for the number of pairs that are compared.
    p_adjusted: float

    @property
    def in_words(self) -> str:
        paired = self.paired
        low, high = (100 * end for end in paired.interval)
        chance = in_figures(paired.p_value)
        if self.p_adjusted != paired.p_value:
            chance += f", {in_figures(self.p_adjusted)} when adjusted for all pairs"
        certain = self.p_adjusted < 0.05
        verdict = "They differ by more than chance." if certain else "That may be chance."
        return (
            f"Only {self.first} is right on {counted(paired.only_first, 'image')}, only "
            f"{self.second} on {paired.only_second:,}: a difference of "
            f"{100 * paired.difference:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}; "
            f"McNemar's exact test: {chance}). {verdict}"
        )

    def as_dict(self) -> dict[str, Any]:
        paired = self.paired
        return {
            "first": self.first,
            "second": self.second,
            **asdict(paired),
            "difference": paired.difference,
            "interval_95": list(paired.interval),
            "mcnemar_p": paired.p_value,
            "mcnemar_p_adjusted": self.p_adjusted,
        }


def in_figures(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values that hold for all of the tests together (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    result, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        result[place] = least
    return result


def favored(names: Sequence[str], found: Sequence[Findings]) -> list[str]:
    """Say which models have an advantage on these images."""
    return [
        f"{name}: {each.caveat}" for name, each in zip(names, found, strict=True) if each.caveat
    ]


def comparison_page(
    names: Sequence[str],
    found: Sequence[Findings],
    pairs: Sequence[Pair],
    settings: Sequence[Sequence[str]],
    pictures: Mapping[str, bytes],
    warnings: Sequence[str],
) -> str:
    """Return the page; `settings` are those that differ, with the value of each model."""
    facts = found[0].facts
    lead = f"{len(found)} models on the same {counted(found[0].result.count, 'image')}."
    parts = [
        f'<p class="lead">{lead}</p>',
        table(
            ("model", "right, %", "95 % interval", "loss", "images seen"),
            [row(name, each) for name, each in zip(names, found, strict=True)],
        ),
        section(
            "Is one better?",
            *(paragraph(text(words)) for words in (*[pair.in_words for pair in pairs], *warnings)),
            LIMITS,
        ),
    ]
    if settings:
        different = table(("", *names), settings, numbers=False)
        parts.append(section("How they were trained differently", different))
    shown = [
        picture(png, f"Images that only one gets right: {who}") for who, png in pictures.items()
    ]
    parts.append(section("Images on which they differ", *shown, MORE))
    return page(f"{facts['title']}, {facts['split']} images: a comparison", parts)


LIMITS = paragraph(
    "All predict the same images, so the test counts only those that just one gets right; with "
    "more than two models, p is adjusted for the number of pairs (Holm), and each interval is "
    "for one pair. It tells these trained models apart, not their recipes: another seed gives "
    "another model, and vit-results compares recipes over several seeds."
)
MORE = paragraph("All images on which the models disagree are in differences.csv.")


def row(name: str, found: Findings) -> tuple[str, ...]:
    result = found.result
    assert isinstance(result, Classification)
    low, high = result.interval
    return (
        name,
        f"{100 * result.acc:.2f}",
        f"{100 * low:.2f} to {100 * high:.2f}",
        f"{result.loss:.4f}",
        f"{found.facts['images_seen']:,}",
    )
