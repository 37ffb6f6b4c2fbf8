"""Every table, as texts: the terminal and pages show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from deeppart.model import LEVELS, Level, show_bytes, show_rate, show_seconds, show_share

from ..advise.choose import Advice, Choice, describe, least_restart, loss_of, shown
from ..advise.compare import PARTS, REPLAY, Comparison, Side
from ..budget.bill import LABELS, LEAVING, Bill, Row, cells
from ..campaign.costs import NOTHING
from ..campaign.outcomes import Estimate, Summary, show_number
from ..machine.record import PIECES
from ..measure.validate import MEDIAN_TARGET, WORST_TARGET, Validation
from ..measure.validate import Comparison as Measured
from ..timing.published import TARGET, Figure
from ..timing.scale import Point
from ..timing.stages import Job

T = TypeVar("T")
#: Of one failure; writing is not paid by failures.
OF_ONE = PARTS[: len(PIECES) + 1]
#: A column's name -> its cell of a record.
Columns = Mapping[str, Callable[[Any], str]]
#: A share of the time that is not written in a table.
_LEAST_PART = 5e-6
_WHAT_WORDS = {"restore": "until restored", "trained": "training, with a checkpoint"}


@dataclass(frozen=True)
class Table:
    """Texts in rows and columns."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Collection[int] = ()  # rows that stand out
    breaks: Collection[int] = ()  # rows that a line is drawn above
    stacked: bool = False  # on a phone, a list of its rows
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


def _known(show: Callable[[float], str], value: float | None) -> str:
    return show(value) if value else ""


def _entry(show: Callable[[float], str], field: str, key: str, record: Any) -> str:
    """Of a record's field, what it has for a key."""
    return _known(show, getattr(record, field).get(key))


def _advised(show: Callable[[Choice], str], side: Side) -> str:
    return "" if side.choice is None else show(side.choice)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def points_table(points: Sequence[Point], serial: bool = False) -> Table:
    """A scaling study, its stages overlapped or one after the other."""
    levels = [level for level in LEVELS if any(level in point.complete_s for point in points)]
    columns: dict[str, Callable[[Point], str]] = {
        "ranks": lambda each: f"{each.ranks:,}",
        "strategy": lambda each: each.strategy,
        "codec": lambda each: each.compression,
        "blocked": lambda each: show_seconds(each.blocked_s),
        "copy": lambda each: show_seconds(each.stages["capture"]),
        "encode": lambda each: _known(show_seconds, each.stages["encode"]),
    }
    if serial:
        for level in LEVELS:
            name = "flush" if level == Level.PERSISTENT else level
            columns[name] = partial(_entry, show_seconds, "stages", level)
        columns["all"] = lambda each: _known(show_seconds, each.serial_s)
    for level in () if serial else levels:
        columns[f"> {level}"] = partial(_entry, show_seconds, "complete_s", level)
    columns |= {
        "speed-up": lambda each: f"{each.serial_speedup if serial else each.blocked_speedup:.3g}x",
        "efficiency": lambda each: _known(
            "{:.0%}".format, each.serial_efficiency if serial else each.blocked_efficiency
        ),
        "most / mean": lambda each: f"{each.imbalance:.3f}",
        "largest": lambda each: show_bytes(each.largest_bytes),
    }
    title = "stages one after the other" if serial else "stages overlapped; > level: until it is complete there"
    return table_of(title, points, columns, lambda each: each.ranks)


def costs_table(job: Job, rows: Sequence[Row], days: float) -> Table:
    """What blocked time costs; columns only for what is known."""
    head = ["every", "a call blocks", "as", "goodput lost", f"node-hours in {days:g} days"]
    head += ["money"] if rows[0].cost.money is not None else []
    head += ["energy"] if rows[0].cost.kwh is not None else []
    lines = [
        [show_seconds(row.period_s), show_seconds(row.blocked_s), row.way, show_share(row.lost)]
        + cells(row.cost, job.machine.price.currency)
        for row in rows
    ]
    breaks = {place for place in range(1, len(rows)) if rows[place].period_s != rows[place - 1].period_s}
    marked = {place for place, row in enumerate(rows) if row.way}
    return Table(f"what blocked time costs on {job.nodes:,} nodes", head, lines, marked, breaks)


def figures_table(figures: Sequence[Figure]) -> Table:
    """Published figures beside simulated ones."""
    columns: Columns = {
        "source": lambda each: each.source,
        "case": lambda each: each.case,
        "published": lambda each: f"{each.published:.3g} {each.unit}",
        "simulated": lambda each: f"{each.simulated:.3g} {each.unit}",
        "difference": lambda each: f"{each.difference:+.0%}",
        "reproduced": lambda each: "(given)" if each.given else "yes" if each.reproduced else "no",
        "why": lambda each: each.why,
    }
    title = f"published and simulated; reproduced: within {TARGET:.0%}"
    return table_of(title, figures, columns, lambda each: each.source)


def validation_table(found: Validation) -> Table:
    """What was predicted, and what was measured."""
    columns: Columns = {
        "kind": lambda each: each.kind,
        "ranks": lambda each: str(each.ranks),
        "state": lambda each: show_bytes(each.nbytes),
        "tensors": lambda each: f"{each.tensors:,}",
        "flush limit": lambda each: _known(show_rate, each.flush_bandwidth),
        "what": _what,
        "predicted": lambda each: show_seconds(each.predicted_s),
        "measured": lambda each: show_seconds(each.measured_s),
        "least": lambda each: show_seconds(each.least_s),
        "most": lambda each: show_seconds(each.most_s),
        "spread": lambda each: f"{each.spread:.0%}",
        "varied": lambda each: f"{each.varied:.0%}",
        "error": lambda each: f"{each.error:+.0%}",
    }
    title = (
        f"predicted and measured: median error {found.median_error:.0%} (target {MEDIAN_TARGET:.0%}), "
        f"worst {found.worst_error:.0%} (target {WORST_TARGET:.0%}); {len(found.missed)} of {len(found.comparisons)} "
        f"above that, {len(found.of_the_model)} of them by more than measurements of the same differ"
    )
    missed = {place for place, each in enumerate(found.comparisons) if abs(each.error) > WORST_TARGET}
    return table_of(title, found.comparisons, columns, lambda each: each.ranks, marked=missed, mark="red")


def _what(each: Measured) -> str:
    return f"until {each.what}" if each.what in LEVELS else _WHAT_WORDS.get(each.what, each.what)


# --- advice -----------------------------------------------------------------------------------------------------------


def advice_table(advice: Advice) -> Table:
    """What is advised first, then others of the front, numbered as in the chart."""
    least, choices = least_restart(advice.front), shown(advice)
    numbers = {id(choice): number for number, choice in enumerate(choices, 1)}
    columns: dict[str, Callable[[Choice], str]] = {
        "number": lambda each: str(numbers[id(each)]),
        "levels": lambda each: describe(each.job),
        "lost": lambda each: _part(loss_of(each, least)),
        "writing": lambda each: _part(each.waste.cost),
        "doing again": lambda each: _part(each.waste.rework),
        "back slower": lambda each: _part(each.waste.restart - least),
        "wasted": lambda each: show_share(each.waste.total),
        "levels every": every_words,
        "on a node": lambda each: show_bytes(each.node_bytes),
        "to each drive a day": lambda each: show_bytes(each.node_daily_bytes),
        "to the file system a day": lambda each: show_bytes(each.drained_daily_bytes),
    }
    title = "advised, and choices that no other one is as good as; lost: what another choice could give back"
    return table_of(title, choices, columns, marked={0}, stacked=True)


def _part(share: float) -> str:
    return show_share(share if share >= _LEAST_PART else 0.0)


def every_words(choice: Choice) -> str:
    """How often each level is written."""
    return " / ".join(show_seconds(choice.cadence.interval_s(cost.name)) for cost in choice.costs)


def sensitivity_table(advice: Advice) -> Table:
    """What is lost where failures come at another rate."""
    columns: Columns = {
        "time between failures": lambda each: f"{each.factor:g} times",
        "wasted as advised": lambda each: show_share(each.kept),
        "wasted at best": lambda each: show_share(each.adapted),
        "a call then every": lambda each: show_seconds(each.period_s),
    }
    return table_of("if failures come at another rate", advice.sensitivity, columns, stacked=True)


def sides_table(sides: Sequence[Side]) -> Table:
    """Jobs beside each other, each with what is advised for it."""
    levels = [level for level in LEVELS if any(level in side.complete_s for side in sides)]
    columns: dict[str, Callable[[Side], str]] = {
        "job": lambda each: each.label,
        "levels": lambda each: describe(each.job),
        "blocked": lambda each: show_seconds(each.blocked_s),
    }
    for level in levels:
        columns[f"until {level}"] = partial(_entry, show_seconds, "complete_s", level)
    advised: dict[str, Callable[[Choice], str]] = {
        "call every": lambda each: show_seconds(each.cadence.period_s),
        "flush every": lambda each: show_seconds(each.cadence.interval_s(Level.PERSISTENT)),
        "not new training": lambda each: show_share(each.waste.total),
        "writing": lambda each: show_share(each.waste.cost),
        "doing again": lambda each: show_share(each.waste.rework),
        "coming back": lambda each: show_share(each.waste.restart),
        "to the file system a day": lambda each: show_bytes(each.drained_daily_bytes),
        "to each drive a day": lambda each: show_bytes(each.node_daily_bytes),
    }
    for name, show in advised.items():
        columns[name] = partial(_advised, show)
    return table_of("each with what is advised for it", sides, columns, stacked=True)


def after_table(found: Sequence[Comparison], mode: str) -> Table:
    """What each way takes after each class of failures."""
    pieces = not_all_zero(OF_ONE, (back.pieces for each in found for back in each.after.values()))
    rows = []
    for each in found:
        for kind, back in each.after.items():
            shown_pieces = [_known(show_seconds, back.pieces.get(piece)) for piece in pieces]
            totals = (show_seconds(back.total_s), show_seconds(back.replay_s))
            rows.append([each.way, kind, show_seconds(1 / back.failures_per_s), *shown_pieces, *totals])
    head = ["way", "failure", "one in", *map(words_of, pieces), "back in", REPLAY]
    marked = {place for place, row in enumerate(rows) if row[0] == mode}
    breaks = {place for place in range(1, len(rows)) if rows[place][0] != rows[place - 1][0]}
    return Table("after one failure; replay: work that is done again, on average", head, rows, marked, breaks)


def shares_table(found: Sequence[Comparison], mode: str) -> Table:
    """The share of the time of each part, and below it what half of it would save."""
    parts = not_all_zero(PARTS, (each.shares for each in found))
    rows = []
    for each in found:
        shares, saved = ([_known(show_share, of[part]) for part in parts] for of in (each.shares, each.saved))
        rows += [[each.way, "of the time", *shares, show_share(each.waste.total)], ["", "saved by half", *saved, ""]]
    title = "share of the time, and what would be saved of it if a piece took half as long"
    marked = {place for place in range(len(rows)) if found[place // 2].way == mode}
    head = ["way", "what", *map(words_of, parts), "lost"]
    return Table(title, head, rows, marked, range(2, len(rows), 2))


def not_all_zero(names: Iterable[str], values: Iterable[Mapping[str, float]]) -> list[str]:
    """Those of some names that are worth a column."""
    known = list(values)
    return [name for name in names if any(each.get(name) for each in known)]


def words_of(part: str) -> str:
    """A piece in words."""
    return part.replace("_", " ")


# --- campaigns and bills ----------------------------------------------------------------------------------------------

_LEVEL_WORDS: dict[str, str] = {Level.PARITY: "rebuilt from parity", NOTHING: "nothing: from the beginning"}


def summary_table(summary: Summary) -> Table:
    """Where the time of a campaign goes, what failed, and what was written."""
    shares = {label: summary.shares[name] for name, label in LABELS.items()}
    more = {LEAVING: summary.shares["leaving"], "in the queue": summary.shares["queued"]}
    shares |= {label: value for label, value in more.items() if value.most}
    events = {f"failures: {kind}": value for kind, value in summary.failures.items()}
    events |= {f"ended: {kind}": value for kind, value in summary.ends.items()}
    events |= {"of these with everything saved": summary.in_time} if summary.ends else {}
    events |= {f"came back from {_LEVEL_WORDS.get(level, level)}": value for level, value in summary.recoveries.items()}
    events |= {"stopped to take nodes in": summary.grown} if summary.grown.most else {}
    writes = {f"checkpoints: {level}": value for level, value in summary.checkpoints.items()}
    rows = [_estimate(label, value, show_share) for label, value in shares.items()]
    rows += [_estimate(label, value, show_number) for label, value in (events | writes).items()]
    rows += [_estimate(f"written: {level}", value, show_bytes) for level, value in summary.nbytes.items()]
    title = "one run"
    if summary.seeds > 1:
        title = f"mean of {summary.seeds} runs (95 % confidence interval, Student's t; least and most)"
    breaks = {len(shares), len(shares) + len(events)}
    return Table(title, ["", "mean", "95 %", "least", "most"], rows, breaks=breaks)


def _estimate(label: str, value: Estimate, show: Callable[[float], str]) -> list[str]:
    interval = "" if value.low == value.high else f"{show(value.low)} to {show(value.high)}"
    return [label, show(value.mean), interval, show(value.least), show(value.most)]


def bill_table(bill: Bill, title: str) -> Table:
    """The items of a bill, then what was not useful, and all; columns only for what is known."""
    total = bill.total
    head = ["", "node-hours", *(["money"] if total.money is not None else [])]
    head += ["energy"] if total.kwh is not None else []
    shown_items = [each for each in bill.items if each.node_hours]
    rows = [[each.what, *cells(each, bill.currency)] for each in (*shown_items, bill.lost, total)]
    return Table(title, head, rows, breaks={len(shown_items)})
