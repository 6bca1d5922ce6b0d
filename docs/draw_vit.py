"""Draw docs/vit.svg: one photo on its way through a ViT-Tiny, with the shape after each step.

    python docs/draw_vit.py

The pixels are those of docs/photo.png, the probabilities those of builtin:cifar10_token.
"""

from pathlib import Path

import numpy as np
from PIL import Image

import vit_train

HERE = Path(__file__).parent
INK, SOFT, LINE, FILL, RED = "#222", "#666", "#888", "#e8eef7", "#b5442e"


def text(x: float, y: float, words: str, size: int = 13, color: str = INK, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" {more}>{words}</text>'


def center(x: float, y: float, words: str, size: int = 13, color: str = INK) -> str:
    return text(x, y, words, size, color, 'text-anchor="middle"')


def rect(x: float, y: float, w: float, h: float, fill: str, stroke: str = "none") -> str:
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}" stroke="{stroke}"/>'


def arrow(x: float, y: float, to: float, label: str) -> str:
    """Draw an arrow to the right, with the tensor's shape above it."""
    line = f'<path d="M{x} {y}H{to}" stroke="{LINE}" stroke-width="2" marker-end="url(#tip)"/>'
    return line + center((x + to) / 2, y - 9, label, 12, RED)


def pixels(image: np.ndarray) -> str:
    """Draw an image (32,32,3) at four units a pixel, for `use`."""
    cells = (
        f'<path fill="#{bytes(image[row, column]).hex()}" d="M{4 * column} {4 * row}h4v4h-4z"/>'
        for row in range(32)
        for column in range(32)
    )
    return f'<g id="photo" shape-rendering="crispEdges">{"".join(cells)}</g>'


def grid(x: float, y: float) -> str:
    """Draw the cuts between the patches of an image."""
    cuts = "".join(f"M{x + 16 * n} {y}v128M{x} {y + 16 * n}h128" for n in range(1, 8))
    return f'<path d="{cuts}" stroke="white" stroke-width="3"/>'


def tokens(x: float, y: float, has_class: bool, h: float = 128) -> str:
    """Draw tokens as columns, with the class token, if there is one, as the first."""
    bars = [rect(x + 9 * place, y, 7, h, "#9db8dd") for place in range(1, 5)]
    bars += [text(x + 47, y + h / 2, "…"), rect(x + 63, y, 7, h, "#9db8dd")]
    return ("" if not has_class else rect(x, y, 7, h, RED)) + "".join(bars)


def step(x: float, y: float, number: int, words: str) -> str:
    return center(x, y, f"<tspan font-weight='bold'>{number}</tspan>  {words}")


def block(x: float, y: float) -> str:
    """Draw one encoder block: two residual branches."""
    parts = [rect(x, y, 330, 150, "#fafafa", LINE), text(x + 254, y + 142, "× 6 blocks", 13, INK)]
    for left, name in ((x + 42, "attention"), (x + 192, "MLP")):
        parts += [
            f'<path d="M{left - 25} {y + 108}V{y + 42}H{left - 12}M{left + 34} {y + 54}v14'
            f'M{left + 80} {y + 80}H{left + 93}V{y + 99}" fill="none" stroke="{LINE}"'
            ' stroke-width="1.5"/>',
            rect(left - 12, y + 30, 92, 24, FILL, LINE),
            center(left + 34, y + 47, "LayerNorm", 12),
            rect(left - 12, y + 68, 92, 24, FILL, LINE),
            center(left + 34, y + 85, name, 12),
            f'<circle cx="{left + 93}" cy="{y + 108}" r="9" fill="white" stroke="{LINE}"/>',
            center(left + 93, y + 112.5, "+", 14),
        ]
    parts.append(
        f'<path d="M{x} {y + 108}H{x + 126}M{x + 144} {y + 108}H{x + 276}M{x + 294} {y + 108}'
        f'H{x + 330}" stroke="{LINE}" stroke-width="2"/>'
    )
    return "".join(parts)


def drawn() -> str:
    """Return the figure."""
    photo = HERE / "photo.png"
    image = np.asarray(Image.open(photo).convert("RGB").resize((32, 32), Image.Resampling.BOX))
    top = vit_train.load("builtin:cifar10_token").predict(photo).top[:4]
    parts = [
        '<use href="#photo" x="20" y="50"/>',
        step(84, 205, 1, "read, resize"),
        arrow(155, 114, 250, "(B, 3, 32, 32)"),
        step(202, 145, 2, "normalize"),
        '<use href="#photo" x="266" y="50"/>',
        grid(266, 50),
        step(330, 205, 3, "cut 64 patches"),
        arrow(410, 114, 490, "(B, 64, 48)"),
        tokens(490, 50, False),
        step(532, 205, 4, "map to width 128"),
        arrow(570, 114, 655, "(B, 64, 128)"),
        tokens(668, 50, True),
        step(705, 205, 5, "class token + positions"),
        arrow(748, 114, 840, "(B, 65, 128)"),
        text(848, 119, "to the blocks", 13, SOFT),
        text(20, 355, "from 5", 13, SOFT),
        arrow(66, 350, 150, "(B, 65, 128)"),
        block(158, 242),
        step(235, 412, 6, "attention"),
        step(385, 412, 7, "MLP"),
        arrow(488, 350, 590, "(B, 65, 128)"),
        rect(602, 286, 9, 128, RED),
        center(606, 432, "class token"),
        arrow(618, 350, 690, "(B, 128)"),
        rect(698, 312, 90, 32, FILL, LINE),
        center(743, 333, "LayerNorm"),
        rect(698, 352, 90, 32, FILL, LINE),
        center(743, 373, "linear head"),
        step(743, 412, 8, "classify"),
        arrow(792, 350, 850, "(B, 10)"),
    ]
    for place, (label, probability) in enumerate(top):
        y = 305 + 24 * place
        parts += [
            rect(860, y, max(1, 60 * probability), 15, RED if place == 0 else "#9db8dd"),
            text(926, y + 12, f"{label} {100 * probability:.1f} %", 12),
        ]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 30 1060 412"'
        ' font-family="Helvetica, Arial, sans-serif"><defs><marker id="tip" viewBox="0 0 8 8"'
        ' refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker>{pixels(image)}</defs>'
        + rect(0, 0, 1060, 450, "white")
        + "".join(parts)
        + "</svg>\n"
    )


if __name__ == "__main__":
    (HERE / "vit.svg").write_text(drawn(), encoding="utf-8")
