"""Directories that a job shares with other users, a file that nobody may touch, and file systems of tests' own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deeppart.save import write
from tests.faults.foreign import PRECIOUS
from tests.faults.mounts import run


@pytest.fixture(params=["disk", "memory"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory as /tmp, or as /dev/shm: everyone may make things in it, nobody may remove those of others."""
    where = Path("/dev/shm") if request.param == "memory" else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=where) as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@pytest.fixture
def precious(shared: Path) -> Iterator[Path]:
    """A file of whoever runs the job, longer than a part; nothing may change in it."""
    path = shared / "precious"
    path.write_bytes(PRECIOUS * 10_000)
    path.chmod(0o600)
    yield path
    assert path.read_bytes() == PRECIOUS * 10_000


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr(write, "RETRY_PAUSES_S", (0.0, 0.0))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """``mount(name, options, kind="tmpfs")`` -> a directory that is a file system of its own; skips where it cannot."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted: list[Path] = []

    def make(name: str, options: str, kind: str = "tmpfs") -> Path:
        directory, device = tmp_path / name, kind
        directory.mkdir()
        try:
            if kind == "vfat":
                device = str(tmp_path / "image")
                Path(device).touch()
                os.truncate(device, 64 << 20)
                run("mkfs.vfat", device)
            run("mount", "-t", kind, "-o", options, device, str(directory))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"there is no {kind} here: {error}")
        mounted.append(directory)
        return directory

    yield make
    for directory in mounted:
        subprocess.run(("umount", "-l", str(directory)), capture_output=True, timeout=300, check=False)


@pytest.fixture
def mount_tmpfs(mount: Callable[..., Path]) -> Callable[..., Path]:
    """``mount_tmpfs(name, mebibytes)``"""
    return lambda name, mebibytes: mount(name, f"size={mebibytes}m,mode=755")
