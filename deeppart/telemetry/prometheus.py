"""Statuses as metrics in the text format of Prometheus, which node-exporter's textfile collector reads.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format: base units in the names, ``_total`` for
what only grows, label values with backslash, quote and line feed escaped. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from deeppart.storage.timestamps import seconds_of
from deeppart.telemetry.record import LevelTotals, RankStatus

#: How a file of these metrics begins.
METRICS_BEGIN = re.compile(rb"# HELP deeppart_info ")

Sample = tuple[dict[str, str], float | None]


@dataclass(frozen=True, slots=True)
class _Metric:
    """One name: its samples for a status, with labels of their own; None for what is not known."""

    name: str
    about: str
    samples: Callable[[RankStatus], Iterable[Sample]]

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def _one(name: str, about: str, value: Callable[[RankStatus], float | None]) -> _Metric:
    return _Metric(f"deeppart_{name}", about, lambda status: [({}, value(status))])


def _by_level(name: str, about: str, value: Callable[[LevelTotals], float | None]) -> _Metric:
    def samples(status: RankStatus) -> Iterator[Sample]:
        yield from (({"level": level}, value(totals)) for level, totals in status.levels.items())

    return _Metric(f"deeppart_level_{name}", about, samples)


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else seconds_of(moment)


def _info(status: RankStatus) -> Iterator[Sample]:
    yield {"library": status.library, "session": status.session, "job_name": status.job}, 1


def _stages(status: RankStatus) -> Iterator[Sample]:
    yield from (({"stage": stage}, seconds) for stage, seconds in status.totals.stages_s.items())


def _scrubbed(name: str, about: str, field: str) -> _Metric:
    return _one(name, about, lambda status: None if status.scrubbed is None else getattr(status.scrubbed, field))


_METRICS: Sequence[_Metric] = (
    _Metric("deeppart_info", "Names of the session; always 1.", _info),
    _one("ranks", "Ranks of the job.", lambda status: status.world_size),
    _one("session_start_time_seconds", "When the session began.", lambda status: _seconds(status.began)),
    _one("status_time_seconds", "When these figures were taken.", lambda status: _seconds(status.written)),
    _one("session_running", "0 once the session has ended.", lambda status: status.ended is None),
    _one("session_failed", "1 if an exception ended the session.", lambda status: status.failed),
    _one("checkpoints_total", "Checkpoints that are over.", lambda status: status.totals.checkpoints),
    _one("checkpoints_skipped_total", "Checkpoints dropped (on_busy).", lambda status: status.totals.skipped),
    _one("checkpoints_in_flight", "Checkpoints under way.", lambda status: len(status.in_flight)),
    _one("checkpoint_blocked_seconds_total", "Time in checkpoint().", lambda status: status.totals.blocked_s),
    _one("checkpoint_blocked_seconds_max", "The longest of them.", lambda status: status.totals.most_blocked_s),
    _one("checkpoint_waited_seconds_total", "Of it, waiting for room.", lambda status: status.totals.waited_s),
    _one("optimizer_held_seconds_total", "Time that steps were held.", lambda status: status.totals.held_s),
    _Metric("deeppart_checkpoint_stage_seconds_total", "Time of this rank in a stage.", _stages),
    _one("checkpoint_raw_bytes_total", "Shares before encoding.", lambda status: status.totals.raw_bytes),
    _one("checkpoint_encoded_bytes_total", "Shares after encoding.", lambda status: status.totals.encoded_bytes),
    _one("persistent_retries_total", "Persistent parts written again.", lambda status: status.totals.retries),
    _one("retire_failures_total", "Refused removals of old steps.", lambda status: status.totals.retire_errors),
    _by_level("complete_total", "Checkpoints complete at a level.", lambda level: level.done),
    _by_level("failed_total", "Checkpoints that failed at a level.", lambda level: level.failed),
    _by_level("written_bytes_total", "Bytes written by this rank.", lambda level: level.written_bytes),
    _by_level("unchanged_bytes_total", "Bytes not written again.", lambda level: level.unchanged_bytes),
    _by_level("busy_seconds_total", "Time of this rank's work at a level.", lambda level: level.busy_s),
    _by_level("last_step", "Step of the last complete checkpoint.", lambda level: level.last_step),
    _by_level("last_time_seconds", "When that was complete.", lambda level: _seconds(level.last_at)),
    _by_level("last_duration_seconds", "After how long it was.", lambda level: level.last_seconds),
    _one("checkpoint_period_seconds", "Period of every=auto.", lambda status: status.period_s),
    _one("next_checkpoint_time_seconds", "When the next one is due.", lambda status: _seconds(status.next_due)),
    _one("reduced_protection", "1 if less than asked for.", lambda status: bool(status.reduced)),
    _one("repairing", "1 while redundancy is rebuilt.", lambda status: status.repairing),
    _scrubbed("scrub_cycles_total", "How often everything was read again.", "cycles"),
    _scrubbed("scrub_read_bytes_total", "Bytes read again.", "nbytes"),
    _scrubbed("scrub_damaged_files_total", "Files found damaged.", "damaged"),
    _scrubbed("scrub_repairs_total", "Times that redundancy was rebuilt.", "repaired"),
)


def prometheus_text(statuses: Sequence[RankStatus]) -> str:
    """The metrics of some ranks; every sample has the labels ``rank`` and ``node``. Empty for none."""
    lines = []
    for metric in _METRICS:
        samples = list(_samples(metric, statuses))
        if samples:
            lines += [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {metric.kind}", *samples]
    return "".join(f"{line}\n" for line in lines)


def _samples(metric: _Metric, statuses: Sequence[RankStatus]) -> Iterator[str]:
    for status in statuses:
        for labels, value in metric.samples(status):
            if value is not None:
                named = {"rank": str(status.rank), "node": status.node, **labels}
                text = ",".join(f'{name}="{_escaped(each)}"' for name, each in named.items())
                yield f"{metric.name}{{{text}}} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    """A label's value. What is not printed is spelled out: a name from a file is not to steer the terminal.

    So are halves of surrogate pairs, which UTF-8 has no bytes for.
    """
    whole = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
    return whole.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
