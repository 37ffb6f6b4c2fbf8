"""The figures in docs/simulator.md are what its commands print now: the simulator gives the same bytes every time."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.simulator.commands import sim

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulator.md"
COMMAND = re.compile(r"^    deeppart-sim (?P<command>\S[^#]*?)\s*(#.*)?$")
#: Commands that print the tables below them, and the cells that are compared.
CHECKED = {
    "campaign --state llama3-8b": re.compile(r"\d"),
    "campaign --state llama3-70b": re.compile(r"\d"),
    "restart --state": re.compile(r"\d"),
    "scale --goodput": re.compile(r"\d"),
    "published": re.compile(r"^[+-]\d+%$"),
}


@dataclass(frozen=True, slots=True)
class Example:
    """A command of the document, and the lines below it, up to the next one or the next section."""

    command: str
    lines: tuple[str, ...]


def examples(text: str) -> Iterator[Example]:
    """All of a document that have a table or a list below them."""
    lines = text.splitlines()
    places = [place for place, line in enumerate(lines) if COMMAND.match(line)]
    for place in places:
        after = lines[place + 1 :]
        ends = (at for at, line in enumerate(after) if re.match(r"##|    (deeppart-sim|python) ", line))
        match = COMMAND.match(lines[place])
        assert match
        yield Example(match["command"], tuple(after[: next(ends, len(after))]))


def plain(cell: str) -> str:
    """A cell without markup, and with one way to write blanks."""
    return " ".join(cell.replace("`", "").replace("**", "").split()).replace(" %", "%")


def cells(line: str, border: str) -> list[str]:
    return [plain(cell) for cell in line.strip().strip(border).split(border)]


def stale(example: Example, printed: str, compared: re.Pattern[str]) -> list[str]:
    """Rows whose figures are in no row that is printed, and entries of lists that are printed otherwise."""
    rows = [set(cells(line, "│")) for line in printed.splitlines() if "│" in line]
    if example.command == "published":  # the document has what is written and read in one row
        rows = [set().union(*rows)]
    entries = [plain(line) for line in printed.splitlines() if line.startswith("- ")]
    found = []
    for line, next_line in zip(example.lines, (*example.lines[1:], ""), strict=True):
        if line.startswith("|") and not next_line.startswith("|-"):  # not the head
            figures = {cell for cell in cells(line, "|") if compared.search(cell)}
            if figures and not any(figures <= row for row in rows):
                found.append(line)
        elif line.startswith("- "):
            of_same = [entry for entry in entries if entry.split()[:3] == plain(line).split()[:3]]
            if of_same and plain(line) not in of_same:
                found.append(line)
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("start", CHECKED)
def test_what_is_documented_is_what_is_printed(
    start: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    of_it = [each for each in examples(DOCUMENT.read_text()) if each.command.startswith(start)]
    with_tables = [each for each in of_it if any(line.startswith("|") for line in each.lines)]
    assert with_tables, f"docs/simulator.md has no example {start} with a table below it"
    for example in with_tables:
        code, printed, err = sim(capsys, *shlex.split(example.command))
        assert code == 0, err
        assert not stale(example, printed, CHECKED[start]), printed


def test_figures_that_are_not_printed_are_found() -> None:
    example = Example("goodput", ("| | a | b |", "|-|-:|-:|", "| `x` | 1 s | 3 % |", "- no energy: 5 kW are not given"))
    printed = "│ x │ 1 s │ 3 % │\n- no energy: 5 kW are not given\n"
    every = CHECKED["scale --goodput"]
    assert not stale(example, printed, every)
    assert stale(example, printed.replace("3 %", "4 %"), every) == ["| `x` | 1 s | 3 % |"]
    assert stale(example, printed.replace("1 s │ 3 %", "1 s │\n│ 3 %"), every)  # in two rows
    assert stale(example, printed.replace("5 kW", "6 kW"), every) == [example.lines[3]]
