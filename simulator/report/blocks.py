"""The result of a command for all outputs: sections of text, tables and charts; a JSON document; rows.

A terminal prints the sections without charts, a page shows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .charts import Chart

T = TypeVar("T")
#: Name of a column -> function that returns a record's cell.
Columns = Mapping[str, Callable[[Any], str]]


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Collection[int] = ()  # highlighted rows
    breaks: Collection[int] = ()  # rows with a line above
    mark: str = "bold green"  # style of highlighted rows in a terminal

    @property
    def words(self) -> list[bool]:
        """For each column, whether most cells are words; columns of numbers are aligned to the right."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.head)
        return [
            2 * sum(cell.lstrip("+-")[:1].isdigit() for cell in column) < sum(map(bool, column)) for column in columns
        ]


def table_of(
    title: str, records: Iterable[T], columns: Columns, by: Callable[[T], Any] | None = None, **how: Any
) -> Table:
    """A table with a row for each record; with ``by``, a line between rows for which it returns different values."""
    found = list(records)
    keys = [None if by is None else by(each) for each in found]
    breaks = {place for place in range(1, len(keys)) if keys[place] != keys[place - 1]}
    rows = [[show(each) for show in columns.values()] for each in found]
    return Table(title, list(columns), rows, breaks=breaks, **how)


@dataclass(frozen=True)
class Items:
    """A list of sentences; nothing is shown if there are none."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """The text of a file."""

    title: str
    text: str


#: A paragraph, or one of the others.
Block = str | Items | Table | Chart | Code


@dataclass(frozen=True)
class Section:
    """A section of the page and of the printed output. Its first block is the most important one."""

    title: str
    blocks: Sequence[Block]


def chart_of(sections: Iterable[Section]) -> Chart:
    """All charts of some sections as one chart."""
    charts = [block for section in sections for block in section.blocks if isinstance(block, Chart)]
    panels = tuple(panel for chart in charts for panel in chart.panels)
    return Chart(panels, next((chart.heading for chart in charts if chart.heading), ""))


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    title: str  # of the page
    document: Mapping[str, Any]  # for --json
    sections: Sequence[Section]
    rows: Sequence[Mapping[str, Any]] = ()  # numbers of the most detailed table, for --csv
    facts: Sequence[tuple[str, str]] = ()  # (name, text) pairs that describe the job
    notes: Sequence[str] = ()  # caveats
    #: returns the sections of the page for the printed ones; may take seconds
    page: Callable[[Sequence[Section]], Sequence[Section]] = list
    good: bool = True  # false if a target was missed
