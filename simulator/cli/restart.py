"""``deeppart-sim restart``: ways to come back after a failure, piece by piece."""

from __future__ import annotations

from typing import Any

from ..advise.choose import advise, describe
from ..advise.comebacks import PARTS, PIECES_OF_ONE, Comparison, compare
from ..machine.record import DAY_S, WAYS
from ..report.blocks import Result
from ..report.sections import comeback_sections
from .options import CHECKPOINTS, OUTPUT, PICTURE, SOURCE, Asked, command
from .output import job_result


@command("Compare ways to come back after a failure.", *SOURCE, *OUTPUT, PICTURE, "ranks", *CHECKPOINTS)
def restart(asked: Asked) -> Result:
    """What each way to come back takes after each class of failures, and the share of the time that each piece costs
    with the levels and the cadence that are advised.
    """
    job = asked.job()
    chosen = advise(job, wanted=asked.wanted()).chosen
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
    lost = {"lost": each.waste.total, "shares": each.shares}
    return {"way": each.way, "what": WAYS[each.way].words, "after": after} | lost


def _rows(each: Comparison) -> list[dict[str, Any]]:
    """A way as rows: of each class of failures in seconds, and one of shares of the time."""
    rows: list[dict[str, Any]] = []
    for kind, back in each.after.items():
        rate = {"failures_per_day": back.failures_per_s * DAY_S}
        parts = {part: back.pieces.get(part, 0.0) for part in PIECES_OF_ONE}
        parts |= {"replay": back.replay_s, "writing": 0.0}
        rows.append({"way": each.way, "row": kind, "unit": "s"} | rate | parts | {"back": back.total_s})
    row: dict[str, Any] = {"way": each.way, "row": "of the time", "unit": "share", "failures_per_day": ""}
    row |= {part: each.shares[part] for part in PARTS} | {"back": sum(each.shares[part] for part in PIECES_OF_ONE)}
    return [*rows, row]
