"""From what was measured in benchmarks/nodes.py to its tables: a document in, rows out; and their printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.nodes_contestants import CONTESTANTS, LEVELS, OURS, Contestant

#: Of one round: contestant -> metric -> value.
Round = Mapping[str, Mapping[str, float]]
COLUMNS = {
    "blocked_s": "blocked",
    "complete_s": "until complete",
    "none_lost_s": "restore, nothing lost",
    "one_lost_s": "one node lost",
    "two_lost_s": "two nodes lost",
}
#: (contestant, metric, what it is, target, whether less is better)
OTHERS: tuple[tuple[str, str, str, float | None, bool], ...] = (
    ("limits", "limit_copy_s", "limit: every rank copies its state in memory", None, True),
    ("limits", "limit_tmpfs_s", "limit: every rank writes its state to tmpfs", None, True),
    ("limits", "limit_exchange_s", "limit: every rank sends its state to the next, in memory", None, True),
    ("limits", "limit_encode_s", "limit: parity of it, the arithmetic alone", None, True),
    ("both", "blocked_s", "blocked, with partner and parity", None, True),
    ("both", "complete_s", "both complete", None, True),
    ("fewer", "fewer_quarter_s", "replicated, two nodes lost, restored on 3 ranks", None, True),
    ("fewer", "fewer_s", "the same, each rank the bytes of all four", None, True),
    ("parity-2", "encode_gb_per_core_s", "parity level, GB/s of state per core", 2.0, False),
    ("parity-2", "rebuild_gb_per_core_s", "rebuilding one of four, GB/s per core", 0.5, False),
)


def values_of(rounds: Sequence[Round], name: str, metric: str) -> list[float]:
    """What was measured, round by round, where it was."""
    return [turns[name][metric] for turns in rounds if metric in turns.get(name, {})]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """The median (least-most); empty for nothing."""
    if not values:
        return ""
    middle, least, most = (f"{each:.{digits}f}" for each in (median(values), min(values), max(values)))
    return f"{middle} ({least}-{most})"


def rows(rounds: Sequence[Round]) -> list[list[str]]:
    """A row for each contestant that was measured: level, who, setting, and :data:`COLUMNS`."""
    found = []
    for level in LEVELS:
        for one in _of(level):
            if any(one.name in turns for turns in rounds):
                cells = [spread(values_of(rounds, one.name, metric)) for metric in COLUMNS]
                found.append([level, one.who, one.setting, *cells])
    return found


def ratios(rounds: Sequence[Round]) -> list[list[str]]:
    """Ours over the peer with the least median, at each level, round by round: level, and :data:`COLUMNS`."""
    found = []
    for level in LEVELS:
        ours = [one for one in _of(level) if one.who == OURS]
        peers = [one for one in _of(level) if one.who != OURS]
        cells = [_ratio(rounds, ours[0], peers, metric) for metric in COLUMNS]
        if any(cells):
            found.append([level, *cells])
    return found


def _ratio(rounds: Sequence[Round], ours: Contestant, peers: Sequence[Contestant], metric: str) -> str:
    measured = {one: values for one in peers if (values := values_of(rounds, one.name, metric))}
    if not measured or not values_of(rounds, ours.name, metric):
        return ""
    best = min(measured, key=lambda one: median(measured[one]))
    pairs = [
        turns[ours.name][metric] / turns[best.name][metric]
        for turns in rounds
        if metric in turns.get(ours.name, {}) and turns.get(best.name, {}).get(metric)
    ]
    return f"{spread(pairs, 2)} {best.name}" if pairs else ""


def _of(level: str) -> list[Contestant]:
    return [one for one in CONTESTANTS if one.level == level]


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print everything."""
    rounds, machine = document["rounds"], document["machine"]
    _warn(machine, console)
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}; {document['mib']} MiB on each of 4 ranks, "
        f"each {_place(document)}; rounds: {len(rounds)}, everyone once in each, in an order drawn for it; "
        f"seconds of the slowest rank: median (least-most).\nLoad average at the start {machine['load_at_start']:.1f}; "
        f"processors in use then {100 * machine['busy']:.0f} %, meanwhile by others {100 * machine['others']:.0f} %, "
        f"taken by the host {100 * machine['stolen']:.1f} %."
        + (f"\nAll ranks with GLIBC_TUNABLES={machine['tunables']}." if machine["tunables"] else ""),
        highlight=False,
    )
    console.print(_table("", ("who", "setting", *COLUMNS.values()), rows(rounds)))
    if found := ratios(rounds):
        headings = tuple(COLUMNS.values())
        table = Table(title="deeppart / the fastest peer there, round by round", title_justify="left", box=None)
        for heading in ("", *headings):
            table.add_column(heading)
        for row in found:
            table.add_row(*row)
        console.print(table)
    if (others := _others(rounds)).row_count:
        console.print(others)
    for name, reason in document["left_out"].items():
        console.print(f"{name} left out: {reason}")
    for name, times in document["failed"].items():
        console.print(f"[red]{name} failed in {times} of {len(rounds) + 1} rounds; see above[/]")
    console.print("Every byte of every restore was compared.")
    _warn(machine, console)


def _place(document: Mapping[str, Any]) -> str:
    mbit = document["link_mbit"]
    return f"on a host of its own with a link of {mbit} Mbit/s" if mbit else "a node of its own on this host"


def _table(title: str, headings: Sequence[str], found: Sequence[Sequence[str]]) -> Table:
    """With a line of its own for each level."""
    table = Table(title=title, title_justify="left", box=None)
    for heading in headings:
        table.add_column(heading)
    before = ""
    for level, *cells in found:
        if level != before:
            table.add_row(f"[bold]{level}[/]")
        table.add_row(*cells)
        before = level
    return table


def _others(rounds: Sequence[Round]) -> Table:
    table = Table(box=None)
    for heading in ("", "median (least-most)", "target", "met"):
        table.add_column(heading)
    for name, metric, text, target, less in OTHERS:
        values = values_of(rounds, name, metric)
        if values:
            met = "" if target is None else ("yes" if (median(values) <= target) == less else "no")
            table.add_row(text, spread(values), "" if target is None else f"{'<=' if less else '>='} {target}", met)
    return table


def _warn(machine: Mapping[str, Any], console: Console) -> None:
    if machine["no_evidence"]:
        console.print(f"[yellow]{machine['no_evidence']}[/]")
