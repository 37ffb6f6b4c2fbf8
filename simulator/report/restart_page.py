"""The page of ways to come back: the pieces of each after each class of failures, and the share of the time lost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from deeppart.model.units import show_seconds, show_share

from ..advise.choose import Choice, describe
from ..advise.compare import PARTS, REPLAY, Comparison
from ..advise.text import what_if
from ..machine.record import WAYS
from .html import document, figure, folded, section, table
from .page import job_facts
from .restart_charts import OF_ONE, after_chart, not_all_zero, share_chart, words_of


def write_restarts(path: Path, chosen: Choice, found: Sequence[Comparison], command: str) -> None:
    """Write the page."""
    path.write_text(restart_page(chosen, found, command), encoding="utf-8")


def restart_page(chosen: Choice, found: Sequence[Comparison], command: str = "") -> str:
    """The page as a text; the same input, the same bytes."""
    job, mode = chosen.job, chosen.job.machine.restart.mode
    every = " / ".join(show_seconds(chosen.cadence.interval_s(cost.name)) for cost in chosen.costs)
    words = (
        f"<p>All ways have the levels and the cadence that are advised for <b>{escape(mode)}</b>, the machine's own: "
        f"{escape(describe(job))}, every {every}. Replay: work that is done again, on average.</p>"
    )
    ways = "".join(f"<li><b>{escape(way.name)}</b>: {escape(way.words)}</li>" for way in WAYS.values())
    lines = after_rows(found)
    mine = [number for number, line in enumerate(lines[1:]) if line[0] == mode]
    one = f"{words}<ul>{ways}</ul>{figure(after_chart(found, mode))}{folded('the numbers', table(lines, mine))}"
    mine = [2 * number + half for number, each in enumerate(found) if each.way == mode for half in (0, 1)]
    shares = "<p>Saved by half: what would be saved of the time if the piece took half as long.</p>"
    shares += figure(share_chart(found, mode)) + folded("the numbers", table(share_rows(found), mine))
    notes = "".join(f"<p>{escape(note)}.</p>" for note in what_if(job.machine, job.nodes))
    body = section("After one failure", one) + section("Share of the time", shares)
    title = f"Ways to come back: {job.state.name} on {job.ranks} ranks of {job.machine.name}"
    return document(title, job_facts(job) + notes + body, command)


def after_rows(found: Sequence[Comparison]) -> list[list[str]]:
    """What each way takes after each class of failures, as rows of a table with a head."""
    shown = not_all_zero(OF_ONE, (back.pieces for each in found for back in each.after.values()))
    lines = [["way", "failure", "one in", *map(words_of, shown), "back in", REPLAY]]
    for each in found:
        for kind, back in each.after.items():
            pieces = [show_seconds(back.pieces[piece]) if back.pieces.get(piece) else "" for piece in shown]
            totals = (show_seconds(back.total_s), show_seconds(back.replay_s))
            lines.append([each.way, kind, show_seconds(1 / back.failures_per_s), *pieces, *totals])
    return lines


def share_rows(found: Sequence[Comparison]) -> list[list[str]]:
    """The share of the time of each part, and below it what half of it would save, as rows of a table with a head."""
    shown = not_all_zero(PARTS, (each.shares for each in found))
    lines = [["way", "what", *map(words_of, shown), "lost"]]
    for each in found:
        shares = [show_share(each.shares[part]) if each.shares[part] else "" for part in shown]
        saved = [show_share(each.saved[part]) if each.shares[part] else "" for part in shown]
        lines.append([each.way, "of the time", *shares, show_share(each.waste.total)])
        lines.append([each.way, "saved by half", *saved, ""])
    return lines
