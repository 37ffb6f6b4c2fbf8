"""The recorder: when it writes, what it tells, and that it never gets in the way."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deeppart.pending import DONE, Pending
from deeppart.storage import DirectoryOwner
from deeppart.telemetry import Outputs, RankStatus, Recorder, StatusFile, read_statuses, recorder
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

    def live(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"period_s": self.period_s, "repairing": self.repairing}

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
        job = self.job
        self.recorder = Recorder(BEGINNING, ("persistent",), outputs, job.live, job.holds, job.tell, lambda: None)
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
