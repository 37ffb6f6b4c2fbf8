"""The status of a rank: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from deeppart.errors import CorruptFileError, NewerFormatError
from deeppart.model import LevelReport
from deeppart.telemetry.record import bounded_lines, bounded_report, decode_status, encode_status
from tests.unit.telemetry.samples import report, status


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scrubbed": None, "restored": None, "checkpoints": (), "errors": (), "levels": {}, "every": {}},
        {"ended": "2026-11-27T00:31:23.000000Z", "failed": True, "period_s": 60.0, "repairing": True},
        {"job": 'ß"\n\ud800\x1b[2J', "node": ""},
    ],
)
def test_what_is_written_is_read(changes: dict[str, Any]) -> None:
    one = status(1, **changes)
    assert decode_status(encode_status(one), "file") == one


def test_what_a_later_version_adds_is_passed_over_and_what_it_changes_is_refused() -> None:
    document = json.loads(encode_status(status()))
    document["new"] = document["totals"]["newer"] = [1]
    assert decode_status(json.dumps(document).encode(), "file") == status()
    document["version"] = 2
    with pytest.raises(NewerFormatError):
        decode_status(json.dumps(document).encode(), "file")


def put(document: Any, path: str, value: Any) -> None:
    *above, last = path.split("/")
    for key in above:
        document = document[int(key) if isinstance(document, list) else key]
    if value is KeyError:
        del document[last]
    else:
        document[int(last) if isinstance(document, list) else last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "deeppart-runs"),
        ("version", True),
        ("rank", 4),
        ("rank", -1),
        ("rank", True),
        ("rank", 0.0),
        ("rank", KeyError),
        ("world_size", 1 << 40),
        ("nodes", 0),
        ("session", "../../etc"),
        ("written", "yesterday"),
        ("ended", 5),
        ("period_s", 1 << 70),
        ("node", None),
        ("reduced", "text"),
        ("every", [1]),
        ("every", {"local": None}),
        ("levels/local/last_at", "2026"),
        ("totals", None),
        ("totals/checkpoints", "3"),
        ("scrubbed/cycles", None),
        ("checkpoints/0/began", ""),
        ("checkpoints/0/report", []),
        ("checkpoints/0/report/levels", {"local": {"state": "done"}}),
        ("checkpoints/0/report/stages_s/capture", "1"),
        ("errors/0", 1),
    ],
)
def test_what_no_job_writes_is_refused(path: str, value: Any) -> None:
    document = json.loads(encode_status(replace(status(), checkpoints=(*status().checkpoints,))))
    if path.startswith("checkpoints/0/report/stages_s"):
        document["checkpoints"][0]["report"]["stages_s"] = {"capture": 1.0}
    put(document, path, value)
    with pytest.raises(CorruptFileError) as refused:
        decode_status(json.dumps(document).encode(), "some file")
    assert refused.value.where == "some file" and refused.value.found


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"1e999", b"[" * 100_000, b'{"format": "deeppart-status"}', b"9" * 5000],
)
def test_what_is_no_status_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_status(data, "file")


def test_texts_are_bounded() -> None:
    lines = tuple("x" * 10_000 for _ in range(1000))
    bounded = bounded_lines(lines)
    assert len(bounded) == 11 and sum(map(len, bounded)) < 6000 and bounded[-1] == "and 990 more"
    assert bounded_lines(("a", "b")) == ("a", "b")
    levels = {"local": LevelReport("failed", error="é" * 10_000)}
    long = replace(report(1), levels=levels, diverged=lines, compression={"local": lines}, retire_error="y" * 10_000)
    one = status(checkpoints=tuple(replace(status().checkpoints[0], report=bounded_report(long)) for _ in range(3)))
    assert len(encode_status(one)) < 1 << 20, "what is written can be read"
    assert decode_status(encode_status(one), "file") == one
