"""The table of all metrics, and its forms: sums in a status file, text for Prometheus. Pure.

Names are as Prometheus has them (https://prometheus.io/docs/practices/naming/): base units, ``_total`` for what only
grows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, attrgetter
from typing import Any, ClassVar

from deeppart._times import seconds_of
from deeppart.pending import SKIPPED
from deeppart.telemetry.events import CheckpointEnded, Event, LevelEnded
from deeppart.telemetry.status import RankStatus

#: The beginning of a file of these metrics.
METRICS_BEGIN = re.compile(rb"# HELP deeppart_info ")

Value = float | Mapping[str, float] | None


def _last(before: float, value: float) -> float:
    return value


@dataclass(frozen=True, slots=True)
class _Counted:
    """A metric that is computed from events.

    Attributes:
        name, about: as Prometheus shows them.
        event: the kind of event.
        value: value of an event; None if it is unknown; a mapping for one value per ``label``.
        combined: combines the value so far with that of an event.
        label: name of the label.
    """

    name: str
    about: str
    event: type[Event]
    value: Callable[[Any], Value]
    combined: Callable[[float, float], float] = add
    label: str = ""

    def values(self, event: Event) -> Mapping[str, float]:
        """The values by label; "" for none."""
        found = self.value(event)
        if isinstance(found, Mapping):
            return found
        return {} if found is None else {event.level if isinstance(event, LevelEnded) else "": found}

    def shown(self, status: RankStatus) -> Mapping[str, float]:
        """The values by label that a status has."""
        found = status.metrics.get(self.name, {})
        return {label: value for label, value in found.items() if bool(label) == bool(self.label)}


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A metric that is read from the status of a rank."""

    name: str
    about: str
    value: Callable[[RankStatus], float | None]
    label: ClassVar = ""

    def shown(self, status: RankStatus) -> Mapping[str, float]:
        """The value, without a label; none if it is unknown."""
        value = self.value(status)
        return {} if value is None else {"": value}


def _of_checkpoint(name: str, about: str, field: str, combined: Callable[[float, float], float] = add) -> _Counted:
    """A number of :class:`deeppart.Report`."""
    return _Counted(name, about, CheckpointEnded, attrgetter(f"report.{field}"), combined)


def _of_level(name: str, about: str, field: str) -> _Counted:
    """A number of :class:`deeppart.types.LevelReport`, or of the event, summed by level."""
    return _Counted(f"level_{name}", about, LevelEnded, attrgetter(field), label="level")


def _of_last(name: str, about: str, value: Callable[[LevelEnded], Value]) -> _Counted:
    """A number of the last checkpoint that is complete at a level."""

    def if_done(event: LevelEnded) -> Value:
        return value(event) if event.done else None

    return _Counted(f"level_last_{name}", about, LevelEnded, if_done, _last, "level")


def _moment(field: str) -> Callable[[Any], float | None]:
    def value(record: Any) -> float | None:
        moment = getattr(record, field)
        return None if moment is None else seconds_of(moment)

    return value


def _scrubbed(name: str, about: str, field: str) -> _Gauge:
    return _Gauge(name, about, lambda status: None if status.scrubbed is None else getattr(status.scrubbed, field))


def _skipped(event: CheckpointEnded) -> bool:
    return any(level.state == SKIPPED for level in event.report.levels.values())


_TABLE: Sequence[_Counted | _Gauge] = (
    _Gauge("ranks", "Ranks of the job.", attrgetter("world_size")),
    _Gauge("session_start_time_seconds", "When the session began.", _moment("began")),
    _Gauge("status_time_seconds", "When these figures were taken.", _moment("written")),
    _Gauge("session_running", "0 once the session has ended.", lambda status: status.ended is None),
    _Gauge("session_failed", "1 if an exception ended the session.", attrgetter("failed")),
    _Counted("checkpoints_total", "Checkpoints that are over.", CheckpointEnded, lambda event: not _skipped(event)),
    _Counted("checkpoints_skipped_total", "Checkpoints dropped (on_busy).", CheckpointEnded, _skipped),
    _Gauge("checkpoints_in_flight", "Checkpoints under way.", lambda status: len(status.in_flight)),
    _of_checkpoint("checkpoint_blocked_seconds_total", "Time in checkpoint().", "blocked_s"),
    _of_checkpoint("checkpoint_blocked_seconds_max", "The longest of them.", "blocked_s", max),
    _of_checkpoint("checkpoint_waited_seconds_total", "Of it, waiting for room.", "waited_s"),
    _of_checkpoint("optimizer_held_seconds_total", "Time that steps were held.", "held_s"),
    _Counted(
        "checkpoint_stage_seconds_total", "Time of this rank in a stage.", CheckpointEnded,
        attrgetter("report.stages_s"), label="stage",
    ),
    _of_checkpoint("checkpoint_raw_bytes_total", "Shares before encoding.", "raw_bytes"),
    _Counted(
        "checkpoint_encoded_bytes_total", "Shares after encoding.", CheckpointEnded,
        lambda event: event.report.encoded_bytes or None,
    ),
    _of_checkpoint("persistent_retries_total", "Persistent parts written again.", "retries"),
    _Counted(
        "retire_failures_total", "Refused removals of old steps.", CheckpointEnded,
        lambda event: event.report.retire_error is not None,
    ),
    _of_level("complete_total", "Checkpoints complete at a level.", "done"),
    _of_level("failed_total", "Checkpoints that failed at a level.", "failed"),
    _of_level("written_bytes_total", "Bytes written by this rank.", "report.nbytes"),
    _of_level("unchanged_bytes_total", "Bytes not written again.", "report.referenced_bytes"),
    _of_level("busy_seconds_total", "Time of this rank's work at a level.", "busy_s"),
    _of_last("step", "Step of the last complete checkpoint.", attrgetter("step")),
    _of_last("time_seconds", "When that was complete.", _moment("at")),
    _of_last("duration_seconds", "After how long it was.", attrgetter("report.seconds")),
    _of_last("written_bytes", "Bytes of it written by this rank.", attrgetter("report.nbytes")),
    _of_last("busy_seconds", "Time of this rank's work on it.", attrgetter("busy_s")),
    _Gauge("checkpoint_period_seconds", "Period of every=auto.", attrgetter("period_s")),
    _Gauge("next_checkpoint_time_seconds", "When the next one is due.", _moment("next_due")),
    _Gauge("reduced_protection", "1 if less than asked for.", lambda status: bool(status.reduced)),
    _Gauge("repairing", "1 while redundancy is rebuilt.", attrgetter("repairing")),
    _scrubbed("scrub_cycles_total", "How often everything was read again.", "cycles"),
    _scrubbed("scrub_read_bytes_total", "Bytes read again.", "nbytes"),
    _scrubbed("scrub_damaged_files_total", "Files found damaged.", "damaged"),
    _scrubbed("scrub_repairs_total", "Times that redundancy was rebuilt.", "repaired"),
)  # fmt: skip
_COUNTED = tuple(each for each in _TABLE if isinstance(each, _Counted))


class Metrics:
    """Totals since the session began: name -> label, or "", -> value. Used by one thread."""

    def __init__(self, levels: Iterable[str]) -> None:
        known = {"": ("",), "level": tuple(levels), "stage": ()}
        self._values: dict[str, dict[str, float]] = {
            metric.name: {} if metric.combined is _last else dict.fromkeys(known[metric.label], 0)
            for metric in _COUNTED
        }

    def count(self, event: Event) -> None:
        """Count an event."""
        for metric in _COUNTED:
            if isinstance(event, metric.event):
                values = self._values[metric.name]
                for label, value in metric.values(event).items():
                    values[label] = metric.combined(values.get(label, 0), value)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """A copy."""
        return {name: dict(values) for name, values in self._values.items()}


# --- for Prometheus ---


def prometheus_text(statuses: Sequence[RankStatus]) -> str:
    """The metrics of some ranks in the text format of Prometheus, which node-exporter's textfile collector reads.

    https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format. Every sample has the labels ``rank``
    and ``node``. Empty for none.
    """
    if not statuses:
        return ""
    lines = ["# HELP deeppart_info Names of the session; always 1.", "# TYPE deeppart_info gauge"]
    for status in statuses:
        names = {"library": status.library, "session": status.session, "job_name": status.job}
        lines.append(_sample("info", status, names, 1))
    for metric in _TABLE:
        samples = [
            _sample(metric.name, status, {metric.label: label} if label else {}, value)
            for status in statuses
            for label, value in metric.shown(status).items()
        ]
        if samples:
            kind = "counter" if metric.name.endswith("_total") else "gauge"
            lines += [
                f"# HELP deeppart_{metric.name} {metric.about}",
                f"# TYPE deeppart_{metric.name} {kind}",
                *samples,
            ]
    return "".join(f"{line}\n" for line in lines)


def _sample(name: str, status: RankStatus, labels: Mapping[str, str], value: float) -> str:
    named = {"rank": str(status.rank), "node": status.node, **labels}
    text = ",".join(f'{label}="{_escaped(each)}"' for label, each in named.items())
    return f"deeppart_{name}{{{text}}} {int(value) if isinstance(value, int) else repr(value)}"


def _escaped(text: str) -> str:
    """A label's value. What is not printed is spelled out: a name from a file is not to steer the terminal.

    So are halves of surrogate pairs, which UTF-8 has no bytes for.
    """
    whole = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
    return whole.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
