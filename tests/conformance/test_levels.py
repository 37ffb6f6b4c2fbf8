"""Every storage level passes the suite, on every kind of file system at hand."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deeppart.storage import LINEAGE_NAME, DurableFile, NodeLevel, PersistentLevel, PosixStore, RateLimit
from tests.conformance.levels import LEVEL_CHECKS, Level


def persistent(directory: Path, limit: RateLimit | None = None) -> PersistentLevel:
    (directory / LINEAGE_NAME).write_text("{}")
    return PersistentLevel(PosixStore(directory, direct=True, limit=limit))


LEVELS: dict[str, Callable[[Path], Level]] = {
    "local": lambda directory: NodeLevel(directory, "a" * 32, "local", "b" * 32),
    "partner": lambda directory: NodeLevel(directory, "a" * 32, "partner", "b" * 32),
    "persistent": persistent,
    "persistent limited": lambda directory: persistent(directory, RateLimit(20e9)),
}


@pytest.fixture(params=["tmpfs", "disk"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    if not Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.sweep(2, kinds=("name",))
@pytest.mark.parametrize("check", LEVEL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", LEVELS)
def test_level(name: str, check: Callable[[Level], None], directory: Path) -> None:
    check(LEVELS[name](directory))


@pytest.mark.parametrize("refuse", ["open", "write"])
def test_a_file_system_without_direct_writes(refuse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says EINVAL, when the file is opened or at the first write; the part is then written through the cache."""
    real_open, real_write = os.open, os.write

    def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if refuse == "open" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct here")
        return real_open(path, flags, *rest, **options)

    def written(descriptor: int, data: Any) -> int:
        import fcntl

        if refuse == "write" and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not aligned to my taste")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "write", written)
    data = os.urandom(9 << 20)
    buffers: tuple[bytes | memoryview, ...] = (data, on_a_page(data))
    for place, buffer in enumerate(buffers):
        file = DurableFile(tmp_path / f"part{place}", direct=True)
        file.write(buffer)
        file.commit()
        assert (tmp_path / f"part{place}").read_bytes() == data


def on_a_page(data: bytes) -> memoryview:
    """The same bytes where a direct write can take them as they lie."""
    pages = mmap.mmap(-1, len(data))
    pages[:] = data
    return memoryview(pages)


def test_writes_that_take_only_part_of_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    calls = []

    def written(descriptor: int, data: Any) -> int:
        calls.append(len(data))
        return real_write(descriptor, data[: max(1, len(data) // 3)] if len(calls) < 12 else data)

    monkeypatch.setattr(os, "write", written)
    data = os.urandom(9_000_001)
    ways: tuple[tuple[bool, bytes | memoryview], ...] = ((False, data), (True, data), (True, on_a_page(data)))
    for place, (direct, buffer) in enumerate(ways):
        calls.clear()
        file = DurableFile(tmp_path / f"part{place}", direct=direct)
        if buffer is data:
            file.write(data[:5_000_000])
            file.write(data[5_000_000:])
        else:
            file.write(buffer)
        file.commit()
        assert (tmp_path / f"part{place}").read_bytes() == data
        assert file.nbytes == len(data) and len(calls) >= 12


@pytest.mark.parametrize("rate", [1e6, 50e6])
def test_a_limit_is_kept_on_average(rate: float) -> None:
    clock = [100.0]
    limit = RateLimit(rate, clock=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    for _ in range(50):
        limit.take(200_000)
    assert 49 * 200_000 / rate - 0.2 <= clock[0] - 100.0 <= 50 * 200_000 / rate
    clock[0] += 1000.0
    before = clock[0]
    limit.take(200_000)
    assert clock[0] == before, "no wait after a pause"
    for _ in range(50):
        limit.take(200_000)
    assert clock[0] - before >= 49 * 200_000 / rate - 0.2, "and no debt from it either"
