"""What a command has found, once for all its readers: sections of text, tables and charts; JSON; rows.

A terminal prints the sections without their charts, a page shows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .charts import Chart

T = TypeVar("T")
#: A column's name -> its cell of a record.
Columns = Mapping[str, Callable[[Any], str]]


@dataclass(frozen=True)
class Table:
    """Texts in rows and columns."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Collection[int] = ()  # rows that stand out
    breaks: Collection[int] = ()  # rows that a line is drawn above
    mark: str = "bold green"  # style of rows that stand out, in a terminal

    @property
    def words(self) -> list[bool]:
        """Of each column, whether most of it is words; numbers are aligned on the right."""
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.head)
        return [
            2 * sum(cell.lstrip("+-")[:1].isdigit() for cell in column) < sum(map(bool, column)) for column in columns
        ]


def table_of(
    title: str, records: Iterable[T], columns: Columns, by: Callable[[T], Any] | None = None, **how: Any
) -> Table:
    """A row for each record; with ``by``, a line where what it returns changes."""
    found = list(records)
    keys = [None if by is None else by(each) for each in found]
    breaks = {place for place in range(1, len(keys)) if keys[place] != keys[place - 1]}
    rows = [[show(each) for show in columns.values()] for each in found]
    return Table(title, list(columns), rows, breaks=breaks, **how)


@dataclass(frozen=True)
class Items:
    """A list of sentences; nothing where there are none."""

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
    """A part of a page, and of what is printed. What its first block says is what matters most."""

    title: str
    blocks: Sequence[Block]


def chart_of(sections: Iterable[Section]) -> Chart:
    """All charts of some sections as one picture."""
    charts = [block for section in sections for block in section.blocks if isinstance(block, Chart)]
    panels = tuple(panel for chart in charts for panel in chart.panels)
    return Chart(panels, next((chart.heading for chart in charts if chart.heading), ""))


@dataclass(frozen=True)
class Result:
    """What a command has found."""

    title: str  # of the page
    document: Mapping[str, Any]  # for programs
    sections: Sequence[Section]
    rows: Sequence[Mapping[str, Any]] = ()  # of the most detailed table, as numbers
    facts: Sequence[tuple[str, str]] = ()  # names and words: what it is about
    notes: Sequence[str] = ()  # what has to be known before anything is believed
    #: the sections of a page, from those that are printed: with what may take seconds to compute
    page: Callable[[Sequence[Section]], Sequence[Section]] = list
    good: bool = True  # false if something was to be reached, and was not
