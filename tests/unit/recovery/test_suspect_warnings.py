"""Whoever restores a suspect step is told, of as many leaves as can be read."""

from __future__ import annotations

from pathlib import Path

from deeppart.recovery import suspect_lines
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
