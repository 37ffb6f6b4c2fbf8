"""The profile in the persistent directory: written over, read, and no obstacle for anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.elastic.profile import PROFILE_NAME
from deeppart.elastic.profile_file import read_profile, write_profile
from deeppart.errors import CorruptFileError
from tests.unit.cli_support import call, call_json, save
from tests.unit.elastic.test_profile import profiled


def test_written_over_and_read(tmp_path: Path) -> None:
    assert read_profile(tmp_path) is None
    for profile in (profiled(1), profiled(1, 2)):
        write_profile(tmp_path, profile)
        assert read_profile(tmp_path) == profile
    assert [path.name for path in tmp_path.iterdir()] == [PROFILE_NAME]


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", "null", '{"format": "deeppart-profile", "version": 2}'])
def test_a_damaged_file_is_told_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / PROFILE_NAME).write_text(text)
    with pytest.raises(CorruptFileError, match="profile") as caught:
        read_profile(tmp_path)
    assert PROFILE_NAME in str(caught.value)


def test_checkpoints_beside_it_are_as_without(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    before = call_json("ls", tmp_path)
    write_profile(tmp_path, profiled(1))
    assert call_json("ls", tmp_path) == before
    call("verify", tmp_path, "--all")
    call("prune", tmp_path, "--before", "2", "--yes")
    assert read_profile(tmp_path) == profiled(1)
