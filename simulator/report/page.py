"""Renders a result as an HTML page without network access or scripts. The same input gives the same bytes."""

from __future__ import annotations

from base64 import b64encode
from html import escape

from .blocks import Block, Code, Items, Result, Section, Table
from .charts import Chart

_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:#fafbfc;color:#1d2127;font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
main{max-width:1180px;margin:0 auto;padding:24px 12px}
h1{font-size:25px;line-height:1.25}h2{font-size:18px;margin:0 0 10px}h3{font-size:15px;margin:18px 0 4px}
section{background:#fff;border:1px solid #d9dde3;border-radius:10px;padding:18px;margin:18px 0}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 18px}dt,th,summary{color:#5a626d}dd{margin:0}
.wide{overflow-x:auto}figure{margin:10px 0}img{max-width:100%}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:3px 14px 3px 0;text-align:right;border-bottom:1px solid #d9dde3;white-space:nowrap}
th{font-weight:500}th:first-child,td:first-child,.text{text-align:left}tr.marked td{font-weight:650}
pre{background:#fafbfc;border:1px solid #d9dde3;border-radius:8px;padding:12px;font-size:13px;white-space:pre-wrap}
@media print{section{border:none;padding:0;break-before:page}section:first-of-type{break-before:auto}
table{font-size:8pt}th,td{white-space:normal}figure,tr{break-inside:avoid}}
"""


def render(result: Result, command: str) -> str:
    """Return the page."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in result.facts)
    notes = "".join(f"<p>{escape(note)}.</p>" for note in result.notes)
    title = escape(result.title)
    return (
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>deeppart-sim: {title}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{title}</h1><dl>{facts}</dl>{notes}{''.join(map(_section, result.page(result.sections)))}"
        f"<footer><p>Made by</p><pre>{escape(command)}</pre>"
        "<p>deeppart-sim: projected with the library's own partitioner and restart planner.</p></footer>"
        "</main></body></html>\n"
    )


def _section(shown: Section) -> str:
    """A section with its heading; a table that follows a chart is folded."""
    parts, drawn = [f"<h2>{escape(shown.title)}</h2>"], False
    for block in shown.blocks:
        folded = drawn and isinstance(block, Table)
        parts.append(f"<details><summary>the numbers</summary>{_html(block)}</details>" if folded else _html(block))
        drawn = isinstance(block, Chart)
    return f"<section>{''.join(parts)}</section>"


def _html(block: Block) -> str:
    if isinstance(block, Chart):
        image = b64encode(block.svg().encode()).decode()
        alt = escape("; ".join(panel.title for panel in block.panels))
        return f'<figure><img src="data:image/svg+xml;base64,{image}" alt="{alt}"></figure>'
    if isinstance(block, Items):
        return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in block.lines)}</ul>" if block.lines else ""
    if isinstance(block, Table):
        return f"<h3>{escape(block.title)}</h3>{_table(block)}"
    if isinstance(block, Code):
        return f"<h3>{escape(block.title)}</h3><pre>{escape(block.text)}</pre>"
    return f"<p>{escape(block)}</p>"


def _table(shown: Table) -> str:
    """A table in a box that scrolls if the table is wider than the page."""
    kinds = [" class=text" if words else "" for words in shown.words]
    head = "".join(f"<th scope=col{kind}>{escape(name)}</th>" for name, kind in zip(shown.head, kinds, strict=True))
    lines = ""
    for number, row in enumerate(shown.rows):
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        lines += f"<tr{' class=marked' if number in shown.marked else ''}>{cells}</tr>"
    return (
        '<div class=wide tabindex=0 role=region aria-label="table"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )
