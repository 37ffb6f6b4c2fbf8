"""What lies in the place of another file, under a second name."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.errors import StorageError
from deeppart.storage import exclusive
from deeppart.storage.exclusive import Kept, is_kept_name


def test_it_outlasts_what_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"old")
    with Kept(path) as kept:
        kept.keep()
        kept.keep()
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "new").rename(path)
    assert kept.name is not None and kept.name.read_bytes() == b"old" and is_kept_name(kept.name.name)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("asked", [False, True])
def test_without_another_file_nothing_is_left(tmp_path: Path, asked: bool) -> None:
    path = tmp_path / "part"
    path.write_bytes(b"old")
    with Kept(path) as kept:
        if asked:
            kept.keep()
    assert kept.name is None and list(tmp_path.iterdir()) == [path]


def test_where_there_are_no_second_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive, "link", lambda path, name: False)
    with Kept(tmp_path / "part") as kept, pytest.raises(StorageError, match="cannot be kept under another name"):
        kept.keep()


def test_names() -> None:
    assert not is_kept_name("part-00000-of-00001.dpp") and not is_kept_name(".part-00000-of-00001.dpp.tmp-1-ab")
