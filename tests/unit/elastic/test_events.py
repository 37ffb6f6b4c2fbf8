"""Events for people, in a file, and for scripts."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

from deeppart.elastic.events import Events


def test_an_event_is_told_in_each_form(tmp_path: Path) -> None:
    said, printed = list[str](), list[str]()
    events = Events(said.append, tmp_path / "log", printed.append)
    events.tell("start", ranks=3, nodes=("node1", "node2"))
    events.tell("ended", rank=0, node=None, exit_code=-9, asked=False)
    assert [line.partition(" s: ")[2] for line in said] == [
        "start ranks 3, nodes node1 node2",
        "ended rank 0, asked False: killed by SIGKILL",
    ]
    assert (tmp_path / "log").read_text() == "".join(f"{line}\n" for line in printed)
    first, second = map(json.loads, printed)
    assert first.keys() == {"time", "passed_s", "event", "ranks", "nodes"} and first["nodes"] == ["node1", "node2"]
    assert second.keys() == {"time", "passed_s", "event", "rank", "exit_code", "asked"}
    assert abs(datetime.fromisoformat(first["time"]).timestamp() - time.time()) < 10
    assert 0 <= first["passed_s"] <= second["passed_s"] <= events.passed_s


def test_what_is_said_alone_is_said() -> None:
    said = list[str]()
    events = Events(said.append)
    events.tell("note", text="not used: 'x'")
    events.tell("end", exit_code=2, error={"summary": "told elsewhere"})
    assert [line.partition(" s: ")[2] for line in said] == ["note not used: 'x'", "end exit code 2"]


def test_a_log_that_cannot_be_written_any_more_does_not_end_the_job(tmp_path: Path) -> None:
    said, log = list[str](), tmp_path / "log"
    events = Events(said.append, log)
    log.unlink()
    log.mkdir()
    events.tell("start", ranks=1)
    events.tell("start", ranks=2)
    assert [line.partition(" s: ")[2] for line in said] == [
        "start ranks 1",
        f"note {log} is not written any more: Is a directory",
        "start ranks 2",
    ]
