"""Whoever restores a suspect step is told, of as many leaves as can be read."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from deeppart.errors import SuspectStepWarning
from deeppart.recovery import suspect_lines, warn_suspect
from deeppart.storage import PosixStore, write_suspicion
from tests.unit.suspicions import RECORD, attempt


def test_leaves_are_named_for_the_steps_in_between_and_for_no_others(tmp_path: Path) -> None:
    assert suspect_lines(PosixStore(tmp_path), attempt(5)) == []
    write_suspicion(PosixStore(tmp_path), RECORD)
    found = {sequence: len(suspect_lines(PosixStore(tmp_path), attempt(sequence))) for sequence in (4, 5, 7, 9)}
    assert found == {4: 0, 5: 1, 7: 2, 9: 0}
    assert suspect_lines(PosixStore(tmp_path), attempt(5))[0].startswith("step 150 is suspect: a/b ")


def test_a_record_that_cannot_be_read_makes_steps_doubtful(tmp_path: Path) -> None:
    write_suspicion(PosixStore(tmp_path), RECORD)
    (path,) = (each for each in tmp_path.rglob("*") if each.is_file())
    path.write_bytes(b"nothing")
    (line,) = suspect_lines(PosixStore(tmp_path), attempt(4))
    assert line.startswith("step 140 may be suspect: ")


def test_nothing_is_said_of_nothing() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_suspect(3, [])
    assert not caught


def test_long_lists_are_cut() -> None:
    with pytest.warns(SuspectStepWarning, match=r"step 3: ") as caught:
        warn_suspect(3, [f"leaf {number}" for number in range(10)])
    text = str(caught[0].message)
    assert "leaf 7" in text and "leaf 8" not in text and text.endswith("and 2 more")
