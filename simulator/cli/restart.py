"""``deeppart-sim restart``: ways to come back after a failure, piece by piece."""

from __future__ import annotations

from typing import Any

from ..advise.choose import advise, describe
from ..advise.comebacks import PARTS, PIECES_OF_ONE, Comparison, compare
from ..machine.record import DAY_S, WAYS
from ..report.blocks import Result
from ..report.sections import comeback_sections
from .options import CHECKPOINTS, OUTPUT, PICTURE, SOURCE, Asked, command
from .output import job_result, status_console


@command("Compare ways to come back after a failure.", *SOURCE, *OUTPUT, PICTURE, "ranks", *CHECKPOINTS)
def restart(asked: Asked) -> Result:
    """What each way to come back takes after each class of failures, the share of the time that each piece costs with
    the levels and the cadence that are advised, and what a piece that takes half as long would save.
    """
    job = asked.job()
    with status_console().status("") as status:
        chosen = advise(job, 0.0, lambda text: status.update(f"judging: {text}"), asked.wanted()).chosen
        found = compare(chosen)
    cadence = {"period_s": chosen.cadence.period_s, "every": chosen.cadence.every}
    document = {"levels": describe(chosen.job), "cadence": cadence, "ways": [_document(each) for each in found]}
    rows = [row for each in found for row in _rows(each)]
    return job_result("restart", chosen.job, document, comeback_sections(chosen, found), rows=rows)


def _document(each: Comparison) -> dict[str, Any]:
    after = {
        kind: {
            "failures_per_day": back.failures_per_s * DAY_S,
            "pieces_s": back.pieces,
            "total_s": back.total_s,
            "replay_s": back.replay_s,
        }
        for kind, back in each.after.items()
    }
    lost = {"lost": each.waste.total, "shares": each.shares, "saved_by_half": each.saved}
    return {"way": each.way, "what": WAYS[each.way].words, "after": after} | lost


def _rows(each: Comparison) -> list[dict[str, Any]]:
    """A way as rows: of each class of failures in seconds, and two of shares of the time."""
    rows: list[dict[str, Any]] = []
    for kind, back in each.after.items():
        rate = {"failures_per_day": back.failures_per_s * DAY_S}
        parts = {part: back.pieces.get(part, 0.0) for part in PIECES_OF_ONE}
        parts |= {"replay": back.replay_s, "writing": 0.0}
        rows.append({"way": each.way, "row": kind, "unit": "s"} | rate | parts | {"back": back.total_s})
    for name, values in (("of the time", each.shares), ("saved by half", each.saved)):
        row: dict[str, Any] = {"way": each.way, "row": name, "unit": "share", "failures_per_day": ""}
        row |= {part: values[part] for part in PARTS} | {"back": sum(values[part] for part in PIECES_OF_ONE)}
        rows.append(row)
    return rows
