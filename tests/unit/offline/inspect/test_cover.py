"""Spans cover each leaf once; where they do not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeppart.offline.inspect.cover import Fault, find_faults
from deeppart.part import SPAN_DTYPE
from tests.unit.cli_support import Spans, forge
from tests.unit.one_damage import one_damage


def overlap(spans: Spans) -> None:
    spans[1].append((1, 0, 80))


def gap(spans: Spans) -> None:
    spans[0].remove((1, 0, 800))


def beyond(spans: Spans) -> None:
    spans[2].append((1, 800, 8))


@pytest.mark.parametrize(("change", "start", "stop"), [(overlap, 0, 80), (gap, 0, 800), (beyond, 800, 808)])
def test_cover(change: Any, start: int, stop: int, tmp_path: Path) -> None:
    """Parts whose digests all hold, but which an unsound writer cut wrongly."""
    forge(tmp_path, 1, spans=change)
    damage = one_damage(tmp_path)
    assert damage["kind"] == "cover"
    assert [(leaf["path"], leaf["start"], leaf["stop"]) for leaf in damage["leaves"]] == [("b", start, stop)]


def test_find_faults_against_counting() -> None:
    """Random spans: gaps and extras are exactly the bytes held by none, or by one too many."""
    random = np.random.default_rng(1)
    for _ in range(300):
        sizes = random.integers(0, 12, size=4).astype(np.uint64)
        numbers = random.integers(1, 6, size=(random.integers(0, 8), 3)).tolist()
        table = np.array([(leaf, 0, start, length, 0) for leaf, start, length in numbers], dtype=SPAN_DTYPE)
        counts = np.zeros((6, 12), dtype=int)
        for leaf, start, length in numbers:
            counts[leaf, start : start + length] += 1
        found = {"gap": np.zeros_like(counts), "extra": np.zeros_like(counts)}
        for fault in find_faults(sizes, [table[: len(table) // 2], table[len(table) // 2 :]]):
            found[fault.kind][fault.leaf, fault.start : fault.stop] += 1
        inside = np.arange(12) < np.append(sizes, [0, 0]).astype(int)[:, None]
        assert np.array_equal(found["gap"], inside & (counts == 0))
        assert np.array_equal(found["extra"] > 0, counts > inside)


def test_find_faults_examples() -> None:
    sizes = np.array([10, 0], dtype=np.uint64)
    spans = np.array([(0, 0, 0, 4, 0), (0, 0, 6, 4, 4)], dtype=SPAN_DTYPE)
    assert find_faults(sizes, [spans]) == [Fault(0, 4, 6, "gap")]
    assert find_faults(sizes, [spans[:1], spans]) == [Fault(0, 0, 4, "extra"), Fault(0, 4, 6, "gap")]
    assert find_faults(np.zeros(0, dtype=np.uint64), []) == []
