"""Key files: what is read as a key, and whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deeppart.errors import ConfigError
from deeppart.part import Signing, read_key_files

SECRET, OTHER = bytes(range(32)), b"another key, long enough to be one"
SIGNING = Signing([SECRET])


def key_file(directory: Path, secret: bytes = SECRET, name: str = "key", mode: int = 0o600) -> Path:
    path = directory / name
    path.write_bytes(secret)
    path.chmod(mode)
    return path


# --- key files --------------------------------------------------------------------------------------------------------


def test_key_files(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    assert read_key_files(path).fingerprints == SIGNING.fingerprints  # type: ignore[union-attr]
    assert read_key_files([str(path)]).fingerprints == SIGNING.fingerprints  # type: ignore[union-attr]
    assert read_key_files(None) is None
    assert read_key_files([]) is None
    key_file(tmp_path, mode=0o400)
    read_key_files(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o644, 0o666])
def test_a_key_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    path = key_file(tmp_path, mode=mode)
    with pytest.raises(ConfigError) as caught:
        read_key_files(path)
    assert str(path) in str(caught.value) and caught.value.todo


@pytest.mark.parametrize("length", [0, 31, (64 << 10) + 1])
def test_keys_of_impossible_lengths(length: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="length"):
        read_key_files(key_file(tmp_path, bytes(length)))


def test_what_is_no_key_file(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(path)
    os.mkfifo(fifo, 0o600)
    for wrong in (link, fifo, tmp_path, tmp_path / "none", path / "below"):
        with pytest.raises(ConfigError) as caught:
            read_key_files(wrong)
        assert caught.value.todo
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match="not used"):
        read_key_files(key_file(open_to_all))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="not used"):
        read_key_files(path)
