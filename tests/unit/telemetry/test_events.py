"""Events: one line of JSON each."""

from __future__ import annotations

import json

from deeppart.telemetry.events import Origin
from tests.unit.telemetry.samples import BEGAN, BEGAN_S, SESSION, report, status

ORIGIN = Origin(SESSION, "4711", "node\n0", 3)


def test_each_event_is_one_line_that_says_where_it_comes_from() -> None:
    lines = [
        ORIGIN.started(status()),
        ORIGIN.checkpoint(report(5, local="done", persistent="failed"), BEGAN_S),
        ORIGIN.ended(status(failed=True)),
        ORIGIN.line("restored", step=4, seconds=0.5),
    ]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    started, checkpoint, ended, restored = map(json.loads, lines)
    assert [each["event"] for each in (started, checkpoint, ended, restored)] == [
        "started", "checkpoint", "ended", "restored",
    ]  # fmt: skip
    for each in (started, checkpoint, ended, restored):
        assert (each["session"], each["job"], each["node"], each["rank"]) == (SESSION, "4711", "node\n0", 3)
    assert (started["ranks"], started["nodes"]) == (4, 2)
    assert (checkpoint["step"], checkpoint["began"], checkpoint["blocked_s"]) == (5, BEGAN, 0.25)
    assert checkpoint["levels"].keys() == {"local", "persistent"}, "none that are off"
    assert checkpoint["levels"]["persistent"]["error"] == "no space"
    assert ended["failed"] and ended["checkpoints"] == 3
    assert (restored["step"], restored["seconds"]) == (4, 0.5)
