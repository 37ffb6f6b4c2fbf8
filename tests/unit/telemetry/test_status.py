"""The status of a rank: what is written is read again and nothing else is; where files lie, and who may remove them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import CorruptFileError, NewerFormatError, StorageError
from deeppart.storage import DirectoryOwner
from deeppart.telemetry import StatusFile, read_statuses, sessions_with_status
from deeppart.telemetry.status import decode_status, encode_status, remove_earlier, status_folder
from tests.unit.telemetry.samples import SESSION, status
from tests.users import STRANGER, needs_root


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scrubbed": None, "restored": None, "checkpoints": (), "errors": (), "metrics": {}, "every": {}},
        {"ended": "2026-11-27T00:31:23.000000Z", "failed": True, "period_s": 60.0, "repairing": True},
        {"job": 'ß"\n\ud800\x1b[2J', "node": ""},
    ],
)
def test_what_is_written_is_read(changes: dict[str, Any]) -> None:
    one = status(1, **changes)
    assert decode_status(encode_status(one), "file") == one


def test_what_a_later_version_adds_is_passed_over_and_what_it_changes_is_refused() -> None:
    document = json.loads(encode_status(status()))
    document["new"] = document["scrubbed"]["newer"] = [1]
    assert decode_status(json.dumps(document).encode(), "file") == status()
    document["version"] = 2
    with pytest.raises(NewerFormatError):
        decode_status(json.dumps(document).encode(), "file")


def put(document: Any, path: str, value: Any) -> None:
    *above, last = path.split("/")
    for key in above:
        document = document[int(key) if isinstance(document, list) else key]
    if value is KeyError:
        del document[last]
    else:
        document[int(last) if isinstance(document, list) else last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "deeppart-runs"),
        ("version", True),
        ("rank", 4),
        ("rank", True),
        ("rank", KeyError),
        ("world_size", 1 << 40),
        ("session", "../../etc"),
        ("written", "yesterday"),
        ("period_s", 1 << 70),
        ("reduced", "text"),
        ("every", {"local": None}),
        ("metrics/level_last_time_seconds/local", 1e15),
        ("metrics/checkpoints_total", 3),
        ("scrubbed/cycles", None),
        ("checkpoints/0/report", []),
        ("checkpoints/0/report/levels", {"local": {"state": "done"}}),
        ("checkpoints/0/report/stages_s/capture", "1"),
        ("errors/0", 1),
    ],
)
def test_what_no_job_writes_is_refused(path: str, value: Any) -> None:
    document = json.loads(encode_status(replace(status(), checkpoints=(*status().checkpoints,))))
    if path.startswith("checkpoints/0/report/stages_s"):
        document["checkpoints"][0]["report"]["stages_s"] = {"capture": 1.0}
    put(document, path, value)
    with pytest.raises(CorruptFileError) as refused:
        decode_status(json.dumps(document).encode(), "some file")
    assert refused.value.where == "some file" and refused.value.found


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"1e999", b"[" * 100_000, b'{"format": "deeppart-status"}', b"9" * 5000],
)
def test_what_is_no_status_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_status(data, "file")


OTHER = "f" * 32


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A persistent directory that a job has taken, and given back."""
    DirectoryOwner(tmp_path, "a job").close()
    return tmp_path


def write(root: Path, *ranks: int, session: str = SESSION) -> None:
    for rank in ranks:
        StatusFile(root, session, rank).write(status(rank, session=session))


def test_each_rank_has_a_file_of_its_own_that_it_writes_again_and_again(root: Path) -> None:
    files = [StatusFile(root, SESSION, rank) for rank in (2, 0)]
    for written in ("2026-11-27T00:31:23.000000Z", "2026-11-27T00:31:24.000000Z"):
        for file, rank in zip(files, (2, 0), strict=True):
            file.write(status(rank, written=written))
    assert sorted(os.listdir(status_folder(root, SESSION))) == ["rank-000000.json", "rank-000002.json"]
    found = read_statuses(root, SESSION)
    assert [each.rank for each in found.found] == [0, 2] and found.problems == ()
    assert {each.written for each in found.found} == {"2026-11-27T00:31:24.000000Z"}
    assert sessions_with_status(root) == (SESSION,) and read_statuses(root, OTHER).found == ()


def test_a_file_system_that_goes_away_is_told_and_nothing_is_made_in_its_place(root: Path) -> None:
    file = StatusFile(root / "ckpt", SESSION, 0)
    DirectoryOwner(root / "ckpt", "a job").close()
    file.write(status())
    (root / "ckpt").rename(root / "away")
    (root / "ckpt").mkdir()
    with pytest.raises(StorageError):
        file.write(status())
    assert os.listdir(root / "ckpt") == []


def test_the_owner_removes_those_of_earlier_sessions_and_what_is_not_theirs_stays(root: Path) -> None:
    write(root, 0, 2)
    write(root, 0, session=OTHER)
    folder = status_folder(root, SESSION)
    (folder / ".rank-000000.json.tmp-12-abcd").write_bytes(b"")
    (status_folder(root, OTHER) / "notes").write_text("of the user")
    (root / "status-of-mine").mkdir()
    owner = DirectoryOwner(root, "the next job")
    write(root, 0, session=owner.session)
    remove_earlier(root, owner)
    owner.close()
    assert not folder.exists() and os.listdir(status_folder(root, OTHER)) == ["notes"]
    assert (root / "status-of-mine").is_dir()
    assert len(read_statuses(root, owner.session).found) == 1


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if how == "link":
        (path.parent.parent / "elsewhere").write_bytes(data)
        path.symlink_to(path.parent.parent / "elsewhere")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "directory":
        path.mkdir()
    elif how == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif how == "not JSON":
        path.write_bytes(b"\x1b[2J" + data)
    elif how == "of another rank":
        path.write_bytes(encode_status(status(1)))
    elif how == "of another session":
        path.write_bytes(encode_status(status(2, session=OTHER)))
    elif how == "newer":
        path.write_bytes(data.replace(b'"version": 1', b'"version": 9'))


@pytest.mark.parametrize(
    "how", ["link", "fifo", "directory", "huge", "not JSON", "of another rank", "of another session", "newer"]
)
def test_a_file_that_is_none_is_a_line_and_the_others_are_read(root: Path, how: str) -> None:
    write(root, 0, 2)
    spoil(status_folder(root, SESSION) / "rank-000002.json", how)
    found = read_statuses(root, SESSION)
    assert [each.rank for each in found.found] == [0]
    assert len(found.problems) == 1 and "rank-000002.json" in found.problems[0] and len(found.problems[0]) < 500


def test_a_link_in_place_of_the_folder_is_not_followed(root: Path) -> None:
    write(root, 0)
    folder = status_folder(root, SESSION)
    folder.rename(root / "elsewhere")
    folder.symlink_to(root / "elsewhere")
    found = read_statuses(deeppart.access.Root(root).path, SESSION)  # as commands do
    assert found.found == () and len(found.problems) == 1


@needs_root
def test_a_file_of_another_user_is_not_believed(root: Path) -> None:
    write(root, 0, 2)
    os.chown(status_folder(root, SESSION) / "rank-000002.json", STRANGER, STRANGER)
    found = read_statuses(root, SESSION)
    assert [each.rank for each in found.found] == [0] and f"uid {STRANGER}" in found.problems[0]
    os.chown(root / ".deeppart.lock", STRANGER, STRANGER)  # his own job, which root looks at
    assert [each.rank for each in read_statuses(root, SESSION).found] == [0, 2]
