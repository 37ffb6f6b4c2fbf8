"""What is counted, and the table at the end."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.faults.campaign.judge import HANG, LOST, WRONG, Problem
from tests.faults.campaign.records import LEVELS


@dataclass(slots=True, eq=False)
class Row:
    """All faults of one kind.

    Attributes:
        count: how many.
        how: in which ways.
        levels: level -> after how many of them the restore took parts from it.
        nothing: after how many there was nothing to restore.
        back: checkpoints fallen back -> after how many faults.
        wrong, lost, hangs: faults after which there were wrong bytes, too much was lost, or a job hung.
    """

    count: int = 0
    how: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    nothing: int = 0
    back: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    lost: int = 0
    hangs: int = 0


class Tally:
    """Everything that is counted; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rows: dict[str, Row] = {}
        self.scenarios = self.lives = self.missed = 0
        self.wrong_bytes = 0
        self.problems: Counter[str] = Counter()

    @property
    def faults(self) -> int:
        """How many faults there were."""
        with self._lock:
            return sum(row.count for row in self.rows.values())

    def fault(self, kind: str, how: str) -> Row:
        """One more fault: its row, for when it is known what the restore after it finds."""
        with self._lock:
            row = self.rows.setdefault(kind, Row())
            row.count += 1
            row.how[how] += 1
            return row

    def resolve(self, faults: list[Row], levels: set[str], restored: bool, back: int) -> None:
        """The restore after these faults."""
        with self._lock:
            for row in faults:
                row.levels.update(levels)
                row.nothing += not restored
                row.back[back] += 1

    def settle(self, faults: list[Row], problems: list[Problem]) -> None:
        """The end of a scenario, with the faults that are not resolved."""
        with self._lock:
            self.scenarios += 1
            kinds = {problem.kind for problem in problems}
            for row in faults:
                row.wrong += WRONG in kinds
                row.lost += LOST in kinds
                row.hangs += HANG in kinds
            self.problems.update(problem.kind for problem in problems)
            self.wrong_bytes += sum(problem.nbytes for problem in problems)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "scenarios": self.scenarios,
            "faults": self.faults,
            "planned_without_effect": self.missed,
            "wrong_bytes": self.wrong_bytes,
            "hangs": self.problems[HANG],
            "problems": dict(self.problems),
            "kinds": {
                kind: {name: getattr(row, name) for name in Row.__slots__} for kind, row in sorted(self.rows.items())
            },
        }


def show(tally: Tally, seconds: float, console: Console) -> None:
    """Print the table."""
    table = Table(title="Faults, and what the restore after them found")
    found = ("nothing left", "back 0", "1", "2+", "wrong bytes", "too much lost", "hangs")
    for name in ("fault", "how", "count", *LEVELS, *found):
        table.add_column(name, justify="left" if name in ("fault", "how") else "right")
    for kind, row in sorted(tally.rows.items()):
        more = sum(count for steps, count in row.back.items() if steps > 1)
        how = ", ".join(f"{name} {count}" for name, count in sorted(row.how.items()))
        numbers = [row.count, *(row.levels[level] for level in LEVELS), row.nothing, row.back[0], row.back[1], more]
        table.add_row(kind, how, *map(str, [*numbers, row.wrong, row.lost, row.hangs]))
    console.print(table)
    rate = tally.faults / seconds * 60 if seconds else 0.0
    console.print(
        f"{tally.scenarios} scenarios, {tally.faults} faults in {seconds:.0f} s ({rate:.0f} per minute); "
        f"wrong bytes: {tally.wrong_bytes}; hangs: {tally.problems[HANG]}; "
        f"other problems: {sum(tally.problems.values()) - tally.problems[HANG] - tally.problems[WRONG]}"
    )
