"""The nouns: what belongs together, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.model import RunsFile

RUN: dict[str, Any] = {
    "session": "ab" * 16,
    "began": "2026-11-20T01:02:03.000000Z",
    "nodes": 2,
    "seen": None,
    "ended": "2026-11-20T02:02:03.000000Z",
    "restored": "partner",
}


def _document(**changes: Any) -> dict[str, Any]:
    return {"format": "deeppart-runs", "version": 1, "runs": [RUN | changes]}


def test_runs_as_they_are_written() -> None:
    assert RunsFile.records(_document(more="ignored")) == [RUN]


@pytest.mark.parametrize(
    "changes",
    [
        {"session": "AB" * 16}, {"session": ["a"]}, {"began": None}, {"began": "2026-11-20"}, {"ended": 5},
        {"nodes": 0}, {"nodes": True}, {"nodes": 1 << 25}, {"restored": "cloud"}, {"seen": "x" * 10_000},
    ],
)  # fmt: skip
def test_what_the_library_does_not_write(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))) as caught:
        RunsFile.records(_document(**changes))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("document", [[], {}, _document() | {"version": 2}, _document() | {"runs": [RUN] * 501}])
def test_other_documents(document: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        RunsFile.records(document)
