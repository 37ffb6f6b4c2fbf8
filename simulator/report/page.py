"""A result as a page for a browser: it needs no network and no scripts, and the same input gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from .blocks import Block, Code, Items, Result, Section, Table
from .chart import Chart, Mark, variable, variables_css

#: A table with many columns as a list of its rows.
_LISTED = """.stacked thead{display:none}.stacked table,.stacked tbody,.stacked tr{display:block}
.stacked td{display:flex;justify-content:space-between;gap:14px;padding:1px 0;border:none;white-space:normal}
.stacked td:empty{display:none}.stacked td::before{content:attr(data-name);color:var(--soft);text-align:left;
font-weight:400}.stacked tr{border-bottom:1px solid var(--line);padding:6px 0}.stacked td:first-child{font-weight:600}
"""
STYLE = (
    variables_css()
    + """
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
main{max-width:1180px;margin:0 auto;padding:32px 24px}
h1{font-size:25px;line-height:1.25;font-weight:650;margin:0 0 14px}
h2{font-size:18px;line-height:1.3;font-weight:600;margin:0 0 10px}h3{font-size:15px;font-weight:600;margin:18px 0 4px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:20px 22px;margin:18px 0}
p{margin:8px 0}ul{padding-left:20px;margin:8px 0}li{margin:2px 0}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 18px;margin:0}dt{color:var(--soft)}dd{margin:0}
.wide{overflow-x:auto;max-width:100%;margin:8px 0}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:3px 14px 3px 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500;vertical-align:bottom}th:first-child,td:first-child,.text{text-align:left}
tr.marked td{font-weight:650}
.stacked th,.stacked .long{white-space:normal}.stacked th,.stacked td{padding-right:10px}
pre{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow-x:auto;
font-size:13px;line-height:1.45}
summary{cursor:pointer;color:var(--soft);margin-top:8px}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:18px 28px;margin:10px 0}
figure{margin:0;max-width:480px;min-width:0;overflow-x:auto}figcaption{font-weight:600;font-size:14px;margin:0 0 4px}
figure svg{display:block;width:100%;min-width:326px;height:auto;stroke-linejoin:round;stroke-linecap:butt;
font-family:"DejaVu Sans",Verdana,sans-serif}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--soft);margin:6px 0 10px;font-size:14px}
.swatch{margin-right:6px;vertical-align:-1px}
footer{color:var(--soft);margin-top:24px;font-size:13px}footer pre{white-space:pre-wrap;overflow-wrap:anywhere}
@media(max-width:600px){main{padding:16px 12px}section{padding:14px 13px;margin:12px 0}h1{font-size:20px}
dl{display:block}dt{font-size:13px;margin-top:6px}}
@media(max-width:400px){main{padding:10px 6px}section{padding:12px 10px}
.panels{grid-template-columns:minmax(0,1fr)}}
@media print{@page{margin:14mm}body{background:none;font-size:10.5pt}main{max-width:none;padding:0}
section{border:none;border-radius:0;padding:0;margin:0 0 8mm;break-before:page}
h2,h3,figcaption{break-after:avoid}
section:first-of-type{break-before:auto}
figure,tr,pre,li,dl{break-inside:avoid}.panels{grid-template-columns:1fr 1fr}.legend{break-after:avoid}
.wide{overflow:visible}table{font-size:8.5pt}th,td,.long{white-space:normal}th,td{padding-right:6px}
.stacked tbody{columns:2;column-gap:10mm}
dl{margin-bottom:6mm}thead{display:table-header-group}
pre{white-space:pre-wrap;border:1px solid var(--line);background:none}summary{list-style:none;color:var(--ink)}
details::details-content{content-visibility:visible;block-size:auto;display:block}
svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
    + f"@media print,(max-width:600px){{{_LISTED}}}\n"
)


def render(result: Result, command: str) -> str:
    """The whole page."""
    about = f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{breakable(text)}</dd>' for name, text in result.facts)}</dl>"
    about += "".join(f"<p>{escape(note)}.</p>" for note in result.notes)
    body = "".join(map(section, result.page(result.sections)))
    return (
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>deeppart-sim: {escape(result.title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{breakable(result.title)}</h1>{about}{body}<footer><p>Made by</p><pre>{escape(command)}</pre>"
        "<p>deeppart-sim: projected with the library's own partitioner and restart planner.</p></footer>"
        "</main></body></html>\n"
    )


def section(shown: Section) -> str:
    """A part with a heading, which begins on a new page of paper. What is drawn is in a table that is folded."""
    parts, drawn = [f"<h2>{escape(shown.title)}</h2>"], False
    for block in shown.blocks:
        parts.append(_numbers(block) if drawn and isinstance(block, Table) else _html(block))
        drawn = isinstance(block, Chart)
    return f"<section>{''.join(parts)}</section>"


def _html(block: Block) -> str:
    if isinstance(block, Chart):
        return figure(block)
    if isinstance(block, Items):
        return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in block.lines)}</ul>" if block.lines else ""
    if isinstance(block, Table):
        return f"<h3>{escape(block.title)}</h3>{table(block)}"
    if isinstance(block, Code):
        return f"<h3>{escape(block.title)}</h3><pre>{escape(block.text)}</pre>"
    return f"<p>{escape(block)}</p>"


def table(shown: Table) -> str:
    """A table, in a box that scrolls if it is wider than the page."""
    kinds = shown.words
    lines = "".join(
        f"<tr{' class=marked' if number in shown.marked else ''}>{''.join(map(_cell, shown.head, row, kinds))}</tr>"
        for number, row in enumerate(shown.rows)
    )
    cells = "".join(
        f"<th scope=col{' class=text' if text else ''}>{escape(name)}</th>"
        for name, text in zip(shown.head, kinds, strict=True)
    )
    return (
        f'<div class="wide{" stacked" if shown.stacked else ""}" tabindex=0 role=region aria-label="table"><table>'
        f"<thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _numbers(shown: Table) -> str:
    """A table that is shown only when it is asked for; on paper always."""
    return f"<details><summary>the numbers</summary><p>{escape(shown.title)}</p>{table(shown)}</details>"


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
    return re.sub("([+@,])", r"\1<wbr>", escape(text))


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
