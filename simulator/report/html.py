"""Parts of a page as HTML: sections, tables, charts, and the page around them. It needs no network and no scripts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

from .chart import Chart, Mark
from .palette import variable
from .style import STYLE


def document(title: str, body: str, command: str = "") -> str:
    """The whole page."""
    made = f"<p>Made by</p><pre>{escape(command)}</pre>" if command else ""
    return (
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>deeppart-sim: {escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{breakable(title)}</h1>{body}"
        f"<footer>{made}<p>deeppart-sim: projected with the library's own partitioner and restart planner.</p></footer>"
        "</main></body></html>\n"
    )


def section(title: str, body: str) -> str:
    """A part with a heading, which begins on a new page of paper."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def folded(title: str, body: str) -> str:
    """What is shown only when it is asked for; on paper always."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def facts(items: Iterable[tuple[str, str]]) -> str:
    """Names and what they are."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{breakable(text)}</dd>' for name, text in items)}</dl>"


def table(rows: Iterable[Sequence[str]], marked: Collection[int] = (), *, stacked: bool = False) -> str:
    """A table, in a box that scrolls if it is wider than the page."""
    head, *body = [list(row) for row in rows]
    kinds = [_is_text(column) for column in zip(*body, strict=True)] or [False] * len(head)
    lines = "".join(
        f"<tr{' class=marked' if number in marked else ''}>{''.join(map(_cell, head, row, kinds))}</tr>"
        for number, row in enumerate(body)
    )
    cells = "".join(
        f"<th scope=col{' class=text' if text else ''}>{escape(name)}</th>"
        for name, text in zip(head, kinds, strict=True)
    )
    return (
        f'<div class="wide{" stacked" if stacked else ""}" tabindex=0 role=region aria-label="table"><table>'
        f"<thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _is_text(column: Sequence[str]) -> bool:
    """Whether a column has words; numbers are aligned on the right."""
    return all(not cell[:1].strip("+-").isdigit() for cell in column if cell)


def _cell(name: str, cell: str, is_text: bool) -> str:
    long = len(cell) > _LONG
    words = " ".join(word for word, there in (("text", is_text), ("long", long)) if there)
    kind = f' class="{words}"' if words else ""
    return f'<td{kind} data-name="{escape(name)}">{escape(cell)}</td>' if cell else "<td></td>"


#: Letters of a cell that may be broken on paper.
_LONG = 22


def figure(chart: Chart) -> str:
    """A chart: its panels side by side where there is room, and one below the other where there is not."""
    panels = "".join(
        f"<figure><figcaption>{escape(panel.title)}</figcaption>{drawing}</figure>"
        for panel, drawing in zip(chart.panels, chart.svgs(), strict=True)
    )
    return legend(chart.key) + f"<div class=panels>{panels}</div>"


def legend(marks: Sequence[Mark]) -> str:
    """What the marks of a chart stand for."""
    if not marks:
        return ""
    items = "".join(f"<span>{_swatch(mark)}{escape(mark.label)}</span>" for mark in marks)
    return f"<p class=legend>{items}</p>"


def breakable(text: str) -> str:
    """A text that may be broken where long names, such as those of states, have a sign."""
    return "".join(f"{part}<wbr>" if part in "+@," else escape(part) for part in _parts(text))


def _parts(text: str) -> Iterable[str]:
    part = ""
    for letter in text:
        if letter in "+@,":
            yield part
            yield letter
            part = ""
        else:
            part += letter
    yield part


def _swatch(mark: Mark) -> str:
    colour = variable(mark.colour)
    line = f'<line x1="0" x2="24" y1="6" y2="6" stroke="{colour}" stroke-width="2"'
    drawings = {
        "block": f'<rect x="6" width="12" height="12" rx="2" fill="{colour}"/>',
        "line": f"{line}/>",
        "dotted": f'{line} stroke-dasharray="2 3"/>',
        "dashed": f'{line} stroke-dasharray="6 3"/>',
        "point": f'<circle cx="12" cy="6" r="4.5" fill="{colour}"/>',
        "square": f'<rect x="8" y="2" width="8" height="8" fill="{colour}"/>',
        "triangle": f'<path d="M12 1L17 10H7Z" fill="{colour}"/>',
        "hollow": f'<circle cx="12" cy="6" r="4" fill="none" stroke="{colour}" stroke-width="1.6"/>',
        "ring": f'<circle cx="12" cy="6" r="5" fill="none" stroke="{colour}" stroke-width="2"/>',
    }
    begin, width = _SWATCHES.get(mark.shape, (0, 24))
    box = f'width="{width}" height="12" viewBox="{begin} 0 {width} 12"'
    return f'<svg class=swatch {box} aria-hidden="true">{drawings[mark.shape]}</svg>'


#: Shapes that are narrower than a line: where they begin, and how wide they are.
_SWATCHES = dict.fromkeys(("block", "point", "square", "triangle", "hollow", "ring"), (6, 12))
