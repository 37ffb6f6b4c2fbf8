"""Events of a job as JSON lines: one object per line, as https://jsonlines.org has it. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from deeppart.model.reports import Report
from deeppart.pending import OFF
from deeppart.storage.timestamps import now, timestamp
from deeppart.telemetry.record import RankStatus

#: How a file of events begins.
BEGINS = re.compile(rb'\{"event": "[a-z]+", "time": "[^"]*", "session": "[0-9a-f]{32}", ')


@dataclass(frozen=True, slots=True)
class Origin:
    """Where events come from; in every line.

    Attributes:
        session: 32 hex digits for this run of the job.
        job, node, rank: of the rank that writes.
    """

    session: str
    job: str
    node: str
    rank: int

    def line(self, event: str, **content: Any) -> bytes:
        """One event, at this moment."""
        document = {"event": event, "time": now(), **asdict(self), **content}
        return json.dumps(document, allow_nan=False).encode() + b"\n"

    def started(self, status: RankStatus) -> bytes:
        """The session has begun."""
        about = {"library": status.library, "process": status.process, "ranks": status.world_size}
        return self.line("started", **about, nodes=status.nodes, reduced=list(status.reduced))

    def checkpoint(self, report: Report, began_s: float) -> bytes:
        """A checkpoint is over."""
        levels = {name: level for name, level in report.levels.items() if level.state != OFF}
        return self.line("checkpoint", began=timestamp(began_s), **asdict(replace(report, levels=levels)))

    def ended(self, status: RankStatus) -> bytes:
        """The session has ended; by an exception or not."""
        return self.line("ended", failed=status.failed, checkpoints=status.totals.checkpoints)
