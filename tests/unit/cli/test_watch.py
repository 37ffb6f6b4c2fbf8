"""``deeppart watch``: what it prints of jobs that run, have ended or died, and of files that were tampered with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import deeppart
from deeppart.storage import DirectoryOwner
from deeppart.telemetry import ErrorStatus, StatusFile
from deeppart.telemetry.status import status_folder
from tests.unit.cli_support import call, call_json, invoke
from tests.unit.telemetry.samples import in_flight, status
from tests.unit.telemetry.test_metrics import parsed

ESCAPES = "\x1b[2J\x1b]0;evil\x07\r\x9b31m"


def write(root: Path, *ranks: int, **changes: Any) -> DirectoryOwner:
    """The status files of a job that has the directory."""
    owner = DirectoryOwner(root, "job 4711, process 7 on node0")
    for rank in ranks:
        StatusFile(root, owner.session, rank).write(status(rank, session=owner.session, **changes))
    return owner


def test_a_running_job(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        checkpointer.checkpoint({"x": 1}, step=5).wait(timeout=200)
        document = call_json("watch", tmp_path)
        assert document["state"] == "running" and document["owner"]["who"].startswith(f"process {os.getpid()} on")
    document = call_json("watch", tmp_path)
    assert document["state"] == "ended" and document["reasons"] == [] and document["ranks"][0]["ended"] is not None
    (level,) = document["levels"]
    assert (level["name"], level["step"], level["done"], level["every"]) == ("persistent", 5, 1, 1)
    assert document["blocked"]["checkpoints"] == 1 and document["ranks"][0]["process"] == os.getpid()
    text = call("watch", tmp_path, "--once")
    assert "ended: process" in text and "1 rank on 1 node" in text and text.count("persistent") == 1
    found = parsed(call("watch", tmp_path, "--prometheus"))
    assert list(found["deeppart_level_last_step"].values()) == [5]


def test_all_that_a_job_may_say_is_shown(tmp_path: Path) -> None:
    going = in_flight(4, 9, persistent="running", local="done", stages=("persistent",))
    late = in_flight(4, 9, persistent="running", local="done", stages=())
    owner = write(tmp_path, 0, checkpoints=(going,), repairing=True, period_s=60.0, next_due="2026-11-27T00:00:00.0Z")
    StatusFile(tmp_path, owner.session, 2).write(status(2, session=owner.session, checkpoints=(late,)))
    text = call("watch", tmp_path, "--once", code=1)
    for words in (
        "running: job 4711",
        "4 ranks on 2 nodes",
        "in flight  step 9",
        "persistent running (waiting for rank 2)",
        "cadence    every 60 s, next due since",
        "repairing",
        "1 damaged file found by rank 0",
        "reduced    parity: 1 node instead of 2",
        "step 2, level persistent: step 2 is not complete; found: no space",
        "mean 250 ms",
    ):
        assert words in text, words
    document = call_json("watch", tmp_path, code=1)
    assert document["checkpoints"][0]["levels"][1]["late"] == [2]
    owner.close()
    assert "did not end as it should" in call("watch", tmp_path, "--once", code=1)


def test_escape_sequences_never_reach_the_terminal(tmp_path: Path) -> None:
    error = ErrorStatus("2026-11-27T00:21:23.000000Z", 2, ESCAPES, ESCAPES)
    going = in_flight(4, 9, persistent=ESCAPES)
    names = {"node": ESCAPES, "job": ESCAPES, "reduced": (ESCAPES,), "errors": (error,), "checkpoints": (going,)}
    owner = write(tmp_path, 0, **names)
    path = status_folder(tmp_path, owner.session) / "rank-000001.json"
    path.write_text('{"format": "' + ESCAPES.replace("\x1b", "\\u001b").replace("\x07", "").replace("\r", "") + '"}')
    for arguments in (["--once"], ["--json"]):
        result = invoke("watch", tmp_path, *arguments)
        assert result.exit_code == 1 and not set(result.output) & set("\x1b\x07\r\x9b")
    owner.close()


def test_a_hostile_file_is_a_note_and_the_rest_is_shown(tmp_path: Path) -> None:
    owner = write(tmp_path, 0)
    folder = status_folder(tmp_path, owner.session)
    os.mkfifo(folder / "rank-000001.json")
    (folder / "rank-000002.json").symlink_to("/etc/passwd")
    (folder / "rank-000003.json").write_bytes(b"[" * 500_000)
    for number in range(4, 14):
        (folder / f"rank-{number:06d}.json").write_bytes(b"null")
    text = call("watch", tmp_path, "--once")
    assert text.count("note: status-") == 5 and "and 8 such lines" in text
    assert len(call_json("watch", tmp_path)["problems"]) == 13
    owner.close()
