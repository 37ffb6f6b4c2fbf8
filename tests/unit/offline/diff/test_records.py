"""What a comparison finds."""

from __future__ import annotations

from deeppart.offline.diff.records import Difference, Held


def test_a_difference_is_a_value() -> None:
    held = Held("int 1", 0, 1, 0)
    assert Difference("a", None, "only_a", held, None) == Difference("a", None, "only_a", held, None, None)
    assert Difference("a", 1, "only_a", held, None) != Difference("a", None, "only_a", held, None)
