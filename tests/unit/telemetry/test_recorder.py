"""The recorder: when it writes, what it tells, and that it never gets in the way."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deeppart.errors import CheckpointError
from deeppart.pending import DONE, FAILED, RUNNING, Pending
from deeppart.storage import DirectoryOwner
from deeppart.telemetry import Live, Outputs, RankStatus, Recorder, StatusFile, read_statuses, recorder
from tests.unit.telemetry.samples import BEGAN, SESSION

BEGINNING = RankStatus(SESSION, "4711", "deeppart 0", "node0", 7, 0, 1, 1, BEGAN, BEGAN, {"persistent": 1}, ("less",))


class Job:
    """What the recorder asks, as a job would answer."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.held: list[Pending] = []
        self.repairing = False
        self.period_s: float | None = None
        self.error: Exception | None = None

    def live(self) -> Live:
        if self.error is not None:
            raise self.error
        return Live(self.period_s, self.repairing, None)

    def holds(self, pending: Pending) -> bool:
        return pending in self.held

    def tell(self, text: str) -> None:
        self.texts.append(text)


class Place:
    """A directory with a recorder that writes into it."""

    def __init__(self, root: Path) -> None:
        self.root, self.job = root, Job()
        DirectoryOwner(root / "ckpt", "a job").close()
        self.files = {"status": root / "ckpt", "metrics": root / "m.prom", "events": root / "e.jsonl"}

    def start(self, *wanted: str) -> Recorder:
        outputs = Outputs(
            StatusFile(self.root / "ckpt", SESSION, 0) if "status" in wanted else None,
            self.files["metrics"] if "metrics" in wanted else None,
            self.files["events"] if "events" in wanted else None,
        )
        self.recorder = Recorder(BEGINNING, ("persistent",), outputs, self.job, lambda: None)
        return self.recorder

    def status(self) -> RankStatus | None:
        found = read_statuses(self.root / "ckpt", SESSION)
        assert not found.problems
        return found.found[0] if found.found else None

    def wait_for(self, condition: Callable[[RankStatus], bool]) -> RankStatus:
        """The first status of which that holds."""
        deadline = time.monotonic() + 60
        while (found := self.status()) is None or not condition(found):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        return found

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.files["events"].read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where recorders do not wait between writes."""
    monkeypatch.setattr(recorder, "_LOOK_S", 0.01)
    monkeypatch.setattr(recorder, "_LEAST_S", 0.0)
    made = Place(tmp_path)
    yield made
    if hasattr(made, "recorder"):
        made.recorder.close(failed=False)


def checkpoint(step: int) -> Pending:
    pending = Pending(step, frozenset({"persistent"}))
    pending.note(blocked_s=0.5, raw_bytes=100)
    return pending


def test_a_checkpoint_is_written_when_it_is_over_on_all_counts(place: Place) -> None:
    recording = place.start("status", "metrics", "events")
    began = place.wait_for(lambda status: True)
    assert (began.checkpoints, began.ended, began.reduced) == ((), None, ("less",))
    pending = checkpoint(5)
    place.job.held.append(pending)
    recording.begun(pending)
    pending.note_level("persistent", DONE, nbytes=90)
    time.sleep(0.1)
    status = place.status()
    assert status is not None and status.metric("checkpoints_total") == 0, "what it replaces is still being removed"
    pending.note(retire_error="read-only")
    place.job.held.clear()
    status = place.wait_for(lambda status: status.metric("checkpoints_total") == 1)
    assert status.metric("level_last_step", "persistent") == 5 and status.metric("retire_failures_total") == 1
    assert [(each.level, each.text) for each in status.errors] == [("", "read-only")]
    assert [each.report.step for each in status.checkpoints] == [5] and not status.in_flight
    recording.restored(4, 0.25)
    recording.close(failed=True)
    recording.close(failed=False)  # does nothing
    status = place.status()
    assert status is not None and status.failed and status.ended is not None and status.restored == 4
    assert place.events() == ["started", "level", "checkpoint", "restored", "ended"]
    assert "deeppart_session_failed" in place.files["metrics"].read_text()
    assert place.job.texts == []


def test_one_that_takes_long_is_written_before_it_is_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "LONG_S", 0.05)
    monkeypatch.setattr(recorder, "AGAIN_S", 0.05)
    recording = place.start("status")
    pending = checkpoint(5)
    pending.note_level("persistent", RUNNING)
    recording.begun(pending)
    first = place.wait_for(lambda status: len(status.in_flight) == 1)
    assert first.in_flight[0].report.levels["persistent"].state == RUNNING
    place.wait_for(lambda status: status.written > first.written)  # and again: whoever reads it sees that we live
    pending.note_level("persistent", FAILED, error=CheckpointError("no space"))
    status = place.wait_for(lambda status: not status.in_flight)
    assert status.metric("level_failed_total", "persistent") == 1 and "no space" in status.errors[0].text


def test_calls_that_are_not_due_are_no_checkpoints(place: Place) -> None:
    recording = place.start("status", "events")
    recording.begun(Pending(1, frozenset()))
    dropped = checkpoint(2)
    dropped.note_skipped()
    recording.begun(dropped)
    status = place.wait_for(lambda status: status.metric("checkpoints_skipped_total") == 1)
    assert status.metric("checkpoints_total") == 0
    assert place.events() == ["started", "checkpoint"]


def test_writes_are_a_second_apart_however_many_checkpoints_there_are(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_LEAST_S", 3600.0)
    written = []
    monkeypatch.setattr(StatusFile, "write", lambda self, status: written.append(status))
    recording = place.start("status")
    for step in range(50):
        pending = checkpoint(step)
        pending.note_level("persistent", DONE)
        recording.begun(pending)
    recording.close(failed=False)
    assert len(written) == 2, "at the start and at the end"
    assert written[1].metric("checkpoints_total") == 50


def test_nothing_to_write_no_thread(place: Place) -> None:
    before = set(threading.enumerate())
    recording = place.start()
    recording.begun(checkpoint(1))
    recording.restored(1, 0.0)
    recording.close(failed=False)
    assert set(threading.enumerate()) <= before


def test_what_is_refused_is_told_once_and_tried_again(place: Place) -> None:
    place.files["metrics"] = place.files["events"] = place.root / "nowhere" / "file"
    recording = place.start("status", "metrics", "events")
    for step in (1, 2, 3):
        pending = checkpoint(step)
        pending.note_level("persistent", DONE)
        recording.begun(pending)
        place.wait_for(lambda status, step=step: status.metric("checkpoints_total") == step)  # type: ignore[misc]
    assert sorted(text.split(":")[0] for text in place.job.texts) == ["events_file", "metrics_file"]
    assert all("nowhere" in text and "told once" in text for text in place.job.texts)
    (place.root / "nowhere").mkdir()
    recording.close(failed=False)
    assert sorted(os.listdir(place.root / "nowhere")) == ["file"], "the last event, or the last metrics"


def test_where_no_thread_can_be_started_there_is_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    recording = place.start("status")
    recording.begun(checkpoint(1))
    recording.close(failed=False)
    assert len(place.job.texts) == 1


def test_an_error_of_its_own_is_told_and_ends_it_alone(place: Place) -> None:
    recording = place.start("status")
    place.wait_for(lambda status: True)
    place.job.error = ZeroDivisionError("a bug")
    recording.begun(checkpoint(1))
    recording.close(failed=False)
    assert len(place.job.texts) == 1 and "a bug" in place.job.texts[0]


def test_storage_that_hangs_holds_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_PATIENCE_S", 0.05)
    go = threading.Event()
    monkeypatch.setattr(StatusFile, "write", lambda self, status: go.wait(60))
    recording = place.start("status")
    recording.begun(checkpoint(1))
    recording.restored(1, 0.0)
    thread = recording._thread
    recording.close(failed=False, patience_s=0.05)
    assert thread is not None and thread.is_alive() and thread.daemon
    go.set()
    thread.join(60)
