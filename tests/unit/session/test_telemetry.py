"""What a session's recorder is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.session.telemetry import cadence_for
from tests.waiting import wait_until

FILES = ("metrics_file", "events_file")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_holds_something_else_is_not_touched(tmp_path: Path, name: str) -> None:
    """``.bashrc``, ``authorized_keys``: whoever names it has made a mistake, or is somebody else."""
    precious = tmp_path / "precious"
    ours = {each: tmp_path / each for each in FILES}

    def session(**files: Path) -> None:
        settings: dict[str, Any] = {each: str(path) for each, path in files.items()}
        deeppart.Checkpointer(persistent_dir=str(tmp_path / "ckpt"), **settings).close()
        # It is closed without waiting long for them.
        wait_until(lambda: all(path.exists() and path.stat().st_size for path in files.values()), 60.0)

    session(**ours)
    other = next(path for each, path in ours.items() if each != name)
    for text in (b"alias ls=ls\n", b'{"event": 1}\n', b"\n", other.read_bytes()):
        precious.write_bytes(text)
        with pytest.raises(deeppart.ConfigError, match="names a file with other content") as caught:
            session(**{name: precious})
        assert name in str(caught.value) and caught.value.where == str(precious) and caught.value.todo
        assert precious.read_bytes() == text
    (tmp_path / "link").symlink_to(ours[name])
    with pytest.raises(deeppart.errors.StorageError, match=name):
        session(**{name: tmp_path / "link"})
    (tmp_path / "empty").touch()
    for path in (ours[name], tmp_path / "empty", tmp_path / "none"):
        session(**{name: path})


def test_a_variable_that_is_not_set_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(deeppart.ConfigError, match="environment variable that is not set"):
        deeppart.Checkpointer(persistent_dir=str(tmp_path), metrics_file="$NOT_SET_ANYWHERE/m.prom")


def test_a_damaged_history_is_told_and_stops_nobody(opened: Any, tmp_path: Path) -> None:
    session = opened(every="auto")
    (tmp_path / "ckpt" / "deeppart-runs.json").write_text("[")
    with pytest.warns(deeppart.DeeppartWarning, match="does not know earlier runs"):
        assert cadence_for(session) is not None
