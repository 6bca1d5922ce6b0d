"""Pages of HTML in one file that needs no network: text, tables, pictures."""

import base64
from collections.abc import Iterable, Sequence
from html import escape

from vit_train.text import printable

STYLE = """
:root { color-scheme: light; --ink: #1c1c1e; --soft: #6b6b70; --line: #e3e3e6; --blue: #3b6ea5; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem;
  border-top: 1px solid var(--line); padding-top: 1.2rem; }
p.lead { color: var(--soft); margin-top: 0; } .big { font-size: 2.6rem; font-weight: 650;
  color: var(--blue); line-height: 1.1; } .big small { font-size: 1rem; color: var(--soft);
  font-weight: 400; }
table { border-collapse: collapse; font-size: .93rem; margin: .8rem 0; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
td.whole, th.whole { overflow-wrap: normal; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
@media (max-width: 32rem) { body { padding: 1.5rem 1rem; }
  table { font-size: .85rem; } th, td { padding-right: .5rem; } }
img { max-width: 100%; height: auto; } figure { margin: 1rem 0; }
figcaption { color: var(--soft); font-size: .9rem; }
"""


def text(value: object) -> str:
    """Return anything as text that HTML cannot take for markup."""
    return escape(printable(str(value)))


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: bool = True) -> str:
    """Return a table whose first column is aligned as text, the others as `numbers` or as text.

    On a narrow screen, words break in the names beside numbers, and in texts, but not their names.
    """

    def line(tag: str, cells: Sequence[object]) -> str:
        first, others = ("", ' class="whole n"') if numbers else (" class=whole", "")
        marked = (
            f"<{tag}{others if place else first}>{text(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table>{line('th', header) if header else ''}{body}</table>"


def picture(png: bytes, caption: str) -> str:
    data = base64.b64encode(png).decode()
    alt = text(caption)
    return (
        f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
        f"<figcaption>{alt}</figcaption></figure>"
    )


def section(title: str, *parts: str) -> str:
    return f"<h2>{text(title)}</h2>{''.join(parts)}"


def paragraph(words: str) -> str:
    return f"<p>{words}</p>"


def page(title: str, parts: Iterable[str]) -> str:
    """Return a whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{text(title)}</h1>{''.join(parts)}</body></html>\n"
    )
