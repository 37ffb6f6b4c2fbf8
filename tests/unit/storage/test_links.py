"""Second names of files."""

from __future__ import annotations

import os
from pathlib import Path

from deeppart.storage.exclusive import link, remove_links


def test_a_file_gets_a_second_name_once(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"bytes")
    assert link(tmp_path / "part", tmp_path / "base")
    assert os.path.samefile(tmp_path / "part", tmp_path / "base")
    assert link(tmp_path / "part", tmp_path / "base"), "it has that name already"


def test_a_name_that_another_file_has_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"bytes")
    (tmp_path / "base").write_bytes(b"bytes")  # the same bytes are not the same file
    assert not link(tmp_path / "part", tmp_path / "base")
    assert not os.path.samefile(tmp_path / "part", tmp_path / "base")


def test_what_cannot_be_linked_is_no_error(tmp_path: Path) -> None:
    assert not link(tmp_path / "nowhere", tmp_path / "base") and not (tmp_path / "base").exists()
    (tmp_path / "part").write_bytes(b"bytes")
    assert not link(tmp_path / "part", tmp_path / "no directory" / "base")


def test_names_are_taken_away_and_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"bytes")
    names = [tmp_path / "first", tmp_path / "never there", tmp_path / "last"]
    for name in (names[0], names[2]):
        assert link(tmp_path / "part", name)
    remove_links(names)
    assert os.listdir(tmp_path) == ["part"] and (tmp_path / "part").read_bytes() == b"bytes"
