"""The commit round: how the ranks of a job agree that a level of a step is complete.

One gather of short reports and one broadcast of the result. Either every rank learns that the level is complete, or
every rank learns why it is not, and whether it may have been committed nevertheless.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

from deeppart.comm.base import Operation, rank_names
from deeppart.comm.channel import Comm
from deeppart.errors import CommError, DeeppartError, as_error
from deeppart.model import PartRecord

Commit = Callable[[list[PartRecord]], None]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The outcome of a commit round.

    Attributes:
        problem: the error, with ranks; None for success.
        may_stand: there is an error, but the manifest may exist and be found by the next job. Then no rank removes
            any file of the step: a step with a manifest must be complete.
    """

    problem: str | None
    may_stand: bool = False


class CommitMayStandError(DeeppartError):
    """A commit failed, but the manifest may exist. The cause says why."""


def commit_round(
    comm: Comm, what: str, report: PartRecord | str | None, commit: Commit | None
) -> Operation[RoundResult]:
    """All ranks report to rank 0; if all succeeded it commits; all ranks receive the result."""
    document = astuple(report) if isinstance(report, PartRecord) else report
    texts = yield from comm.gather(json.dumps([what, document]).encode())
    verdict: bytes | None = None
    if texts is not None:
        reports = [json.loads(text) for text in texts]
        others = [rank for rank, (about, _) in enumerate(reports) if about != what]
        result = None if others else astuple(_decide([report for _, report in reports], commit))
        verdict = json.dumps([what, rank_names(others), result]).encode()
    about, others, result = json.loads((yield from comm.broadcast(verdict)))
    if result is None or about != what:
        raise CommError(
            "ranks report on different checkpoints",
            expected=f"rank 0: {about}",
            found=f"{others}: another one",
            where=f"rank {comm.rank}: {what}",
        )
    return RoundResult(*result)


def _decide(reports: list[Any], commit: Commit | None) -> RoundResult:
    failed = {rank: report for rank, report in enumerate(reports) if isinstance(report, str)}
    if failed:
        return RoundResult(f"{rank_names(failed)} failed: " + str(next(iter(failed.values()))))
    if commit is not None:
        try:
            commit([PartRecord.from_json(report) for report in reports])
        except CommitMayStandError as error:
            return RoundResult(f"rank 0 could not commit, yet {error}: {error.__cause__}", may_stand=True)
        except Exception as error:  # of any type: the other ranks wait for the result
            return RoundResult(f"rank 0 could not commit: {as_error(error, 'the commit failed')}")
    return RoundResult(None)
