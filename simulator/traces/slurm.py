r"""What Slurm's accounting says of jobs: the output of ``sacct --parsable2``.

    TZ=UTC sacct --allusers --duplicates --allocations --parsable2 --starttime 2026-01-01 --endtime now \
        --format=JobID,State,Submit,Start,End,NodeList

``--duplicates`` also gives the runs that a requeued job had before, one line each. Other columns may be there, in any
order. Lines of steps are left out, which only the column JobID or JobIDRaw tells, and those of jobs that have not
begun, or that were cancelled before they had a node: these have a start, too.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from .job_log import JobLog, LoggedRun
from .nodelist import node_names
from .record import PREEMPTION, TIME_LIMIT, Trace
from .refusal import refusal, shown, unreadable

NAME = "slurm"
_NEEDED = ("State", "Start", "End", "NodeList")
#: Columns that tell a job from its steps; one of them has to be there, or steps would count as jobs.
_IDS = ("JobID", "JobIDRaw")
#: What is left out, in the order of its notes.
_STEPS, _NOT_BEGUN, _WITHOUT_NODES = (
    "lines of steps left out",
    "jobs that have not begun",
    "jobs without a node left out",
)
#: State of a job (man sacct, JOB STATE CODES) -> what ended it. OUT_OF_MEMORY and FAILED leave the node's storage.
_ENDED = {
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
    "FAILED": "process",
    "OUT_OF_MEMORY": "process",
    "PREEMPTED": PREEMPTION,
    "TIMEOUT": TIME_LIMIT,
    "DEADLINE": TIME_LIMIT,
}
#: Ends that are no failure, and jobs that have not ended.
_OTHERS = (
    "COMPLETED", "CANCELLED", "RUNNING", "PENDING", "REQUEUED", "RESIZING", "REVOKED", "SUSPENDED",
    "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT",
    "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
)  # fmt: skip
_NO_TIME = ("Unknown", "None", "")
_TIME_WORDS = "a time such as 2026-11-27T15:44:35, as sacct writes it unless SLURM_TIME_FORMAT is set"


def is_slurm(first_line: str) -> bool:
    """True if a file that begins so is such an output."""
    return "|" in first_line and "State" in first_line.rstrip("\r\n").split("|")


def read_slurm(path: Path) -> Trace:
    """The jobs in a file."""
    log = JobLog()
    lines = Counter[str]()
    try:
        with path.open(encoding="utf-8-sig") as file:
            names = file.readline().rstrip("\n").split("|")
            missing = [name for name in _NEEDED if name not in names]
            if not set(_IDS) & set(names):
                missing.append(_IDS[0])
            if missing:
                expected = f"the columns {', '.join((_IDS[0], *_NEEDED))}, with | between"
                raise refusal(path, 1, f"no column {missing[0]}", expected)
            reader = _Lines(path, names)
            for number, line in enumerate(file, start=2):
                if run := reader.run_of(line, number, lines):
                    log.add(run)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    if not len(log):
        raise refusal(path, 1, "no job that has begun", "at least one")
    notes = [f"{lines[word]:,} {word}" for word in (_STEPS, _NOT_BEGUN, _WITHOUT_NODES) if lines[word]]
    return log.trace(NAME, 1.0, notes)


class _Lines:
    """Reads line after line; remembers what is often the same."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self._path, self._names = path, names
        self._state, self._start, self._end, self._nodes = (names.index(name) for name in _NEEDED)
        self._submit = names.index("Submit") if "Submit" in names else None
        self._job = next(names.index(name) for name in _IDS if name in names)
        self._zoned: bool | None = None  # whether times have a zone; None before the first one

    def run_of(self, line: str, number: int, lines: Counter[str]) -> LoggedRun | None:
        cells = line.rstrip("\n").split("|")
        if len(cells) != len(self._names):
            if not line.strip():
                return None
            expected = f"{len(self._names)} cells: leave out columns such as JobName, in which there may be a |"
            raise refusal(self._path, number, f"{len(cells)} cells", expected)
        if "." in cells[self._job]:
            lines[_STEPS] += 1
            return None
        state = cells[self._state].split(" ", 1)[0]
        if state not in _ENDED and state not in _OTHERS:
            raise refusal(self._path, number, shown(state), "one of " + ", ".join((*_ENDED, *_OTHERS)), "State")
        began = self._time(cells[self._start], number, "Start")
        if began is None:
            lines[_NOT_BEGUN] += 1
            return None
        try:
            nodes = node_names(cells[self._nodes])
        except ValueError as error:
            raise refusal(self._path, number, shown(cells[self._nodes]), str(error), "NodeList") from error
        if not nodes:
            lines[_WITHOUT_NODES] += 1
            return None
        ended = self._time(cells[self._end], number, "End")
        if ended is not None and ended < began:
            raise refusal(self._path, number, f"{cells[self._end]} before {cells[self._start]}", "a later time", "End")
        submitted = None if self._submit is None else self._time(cells[self._submit], number, "Submit")
        waited = None if submitted is None else began - submitted
        return LoggedRun(began, ended, nodes, None if ended is None else _ENDED.get(state), 0, waited)

    def _time(self, text: str, number: int, column: str) -> float | None:
        if text in _NO_TIME:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise refusal(self._path, number, shown(text), _TIME_WORDS, column) from None
        zoned = moment.tzinfo is not None
        if self._zoned not in (None, zoned):
            raise refusal(self._path, number, shown(text), "a zone in all times, or in none", column)
        self._zoned = zoned
        # Without a zone all are taken alike: only differences count.
        return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)).total_seconds()


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - see above
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
