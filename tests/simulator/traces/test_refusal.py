"""Refusals name the line and the column."""

from __future__ import annotations

from pathlib import Path

from deeppart_simulator.traces.record import refusal, shown, unreadable


def test_where_and_what() -> None:
    error = refusal(Path("a.txt"), 7, "'x'", "a number", "State")
    assert "a.txt, line 7, column State" in str(error) and "a number" in str(error) and "'x'" in str(error)
    assert "column" not in str(refusal(Path("a.txt"), 7, "'x'", "a number"))


def test_a_file_that_cannot_be_read() -> None:
    assert "cannot read the trace" in str(unreadable(Path("a"), OSError("gone"))) and "gone" in str(
        unreadable(Path("a"), OSError("gone"))
    )


def test_long_cells_are_cut() -> None:
    assert (
        shown("ab") == "'ab'"
        and shown(None) == "None"
        and shown([[1]] * 3) == "a list of 3"
        and len(shown("x" * 1000)) < 80
    )
