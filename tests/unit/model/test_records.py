"""The nouns: what belongs together, and in which order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deeppart.model import Attempt, Manifest, PartRecord, Share, Span, StepKey, SuspectLeaf, Suspicion, run_records

ATTEMPT = Attempt("a" * 32, "b" * 32, 3, 100, 2)


def part(rank: int, **more: object) -> PartRecord:
    return PartRecord(rank, f"part-{rank}", 100 + rank, 50, "d" * 32, "e" * 32, **more)  # type: ignore[arg-type]


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ATTEMPT.step = 101  # type: ignore[misc]
    assert ATTEMPT == dataclasses.replace(ATTEMPT) and len({ATTEMPT, dataclasses.replace(ATTEMPT)}) == 1


def test_a_share_is_as_long_as_its_spans() -> None:
    assert Share(0, (Span(0, 0, 40), Span(3, 8, 16))).nbytes == 56 and Share(1, ()).nbytes == 0


def test_step_directories_are_in_the_order_of_steps() -> None:
    first, *rest = (
        StepKey(20, "c" * 32, 0),
        StepKey(100, "a" * 32, 9),
        StepKey(100, "b" * 32, 1),
        StepKey(100, "b" * 32, 2),
    )
    assert sorted([*rest[::-1], first]) == [first, *rest]


def test_a_part_may_have_two_digests_and_an_empty_one_is_none() -> None:
    assert part(0).index_digests == {"e" * 32}
    assert part(0, node_index_digest="f" * 32).index_digests == {"e" * 32, "f" * 32}


def test_a_manifest_counts_parts_and_what_they_refer_to() -> None:
    manifest = Manifest(ATTEMPT, "", "", (part(0), part(1, referenced_bytes=30)), {})
    assert manifest.nbytes == 201 and manifest.referenced_bytes == 30
    assert manifest == dataclasses.replace(manifest, signed=True), "whether it is signed is not what it says"


def test_a_checkpoint_is_suspect_between_the_last_comparison_and_the_one_that_found_it() -> None:
    leaf = SuspectLeaf("w", "rank 1 differs from rank 0", 2, 98)
    found = Suspicion("a" * 32, "b" * 32, 5, 110, (100,), (leaf,))
    at = {sequence: bool(found.leaves_of(dataclasses.replace(ATTEMPT, sequence=sequence))) for sequence in range(1, 7)}
    assert at == {1: False, 2: False, 3: True, 4: True, 5: False, 6: False}
    for other in (dataclasses.replace(ATTEMPT, lineage="c" * 32), dataclasses.replace(ATTEMPT, session="c" * 32)):
        assert not found.leaves_of(other)
    assert str(leaf) == "w (last compared in full at step 98, then found: rank 1 differs from rank 0)"


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
    assert run_records(_document(more="ignored")) == [RUN]


@pytest.mark.parametrize(
    "changes",
    [
        {"session": "AB" * 16}, {"session": ["a"]}, {"began": None}, {"began": "2026-11-20"}, {"ended": 5},
        {"nodes": 0}, {"nodes": True}, {"nodes": 1 << 25}, {"restored": "cloud"}, {"seen": "x" * 10_000},
    ],
)  # fmt: skip
def test_what_the_library_does_not_write(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))) as caught:
        run_records(_document(**changes))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("document", [[], {}, _document() | {"version": 2}, _document() | {"runs": [RUN] * 501}])
def test_other_documents(document: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        run_records(document)
