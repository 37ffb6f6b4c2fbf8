"""The persistent level: part files and manifests on the parallel file system.

The manifest is the commit: a step directory without one is not a checkpoint. Rank 0 alone commits and retires.

One job at a time: the directory is locked (``flock``) for as long as the job lives, and every commit first checks that
the lock file still names this session, for file systems on which locks do not reach other nodes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
import uuid
from pathlib import Path

from deeppart.errors import CorruptFileError, DirectoryInUseError, FormatError, StorageError
from deeppart.levels.files import DurableFile, make_directory, read_file, storage_error, write_file
from deeppart.levels.rate import RateLimit
from deeppart.levels.steps import MANIFEST_NAME, list_steps, remove_steps, step_directory
from deeppart.levels.timestamps import now
from deeppart.model import Attempt, Manifest
from deeppart.part import decode_manifest, is_hex32, part_file_name
from deeppart.part.format import short
from deeppart.part.json_text import parse_json

LINEAGE_NAME = "deeppart.json"
LOCK_NAME = ".deeppart.lock"
MANIFEST_LIMIT_BYTES = 1 << 30
_SMALL_FILE_BYTES = 64 << 10
#: `deeppart ls` holds the lock for microseconds to see whether a job does.
_LOCK_PATIENCE_S = 0.5
_LOCK_PAUSE_S = 0.02
#: Why a step directory without a manifest is no checkpoint.
UNFINISHED = "no manifest: the checkpoint was not completed"
#: The file system has no locks at all: the check at commit must do.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


class PersistentLevel:
    """Step directories with manifests under ``persistent_dir``.

    Args:
        directory: the same directory on every rank.
        limit: bandwidth limit of this rank's writes, or None.
    """

    name = "persistent"

    def __init__(self, directory: Path, limit: RateLimit | None = None) -> None:
        self.root = directory
        self._limit = limit

    def part_path(self, attempt: Attempt, rank: int) -> Path:
        return step_directory(self.root, attempt.step) / part_file_name(rank, attempt.world_size)

    def open_part(self, attempt: Attempt, rank: int) -> DurableFile:
        self._check_mounted()
        return DurableFile(self.part_path(attempt, rank), direct=True, limit=self._limit)

    def _check_mounted(self) -> None:
        """Where the file system is not mounted (any more), nothing must be written into the empty mount point.

        Raises:
            StorageError: the lineage record is not there.
        """
        try:
            os.stat(self.root / LINEAGE_NAME)
        except OSError as error:
            todo = "check that the file system is mounted; if someone removed the file alone, end the job and start it"
            raise storage_error(
                "persistent_dir has lost its lineage record", error, self.root / LINEAGE_NAME, todo=todo
            ) from error

    def commit(self, step: int, manifest: bytes) -> None:
        """Make a step a checkpoint: its manifest appears, complete and durable, or not at all.

        Args:
            manifest: as :func:`deeppart.part.encode_manifest` gives it.

        Raises:
            StorageError: the manifest cannot be written.
        """
        write_file(step_directory(self.root, step) / MANIFEST_NAME, manifest)

    def removable(self, keep_count: int, abandoned: set[int], newest: int) -> set[int]:
        """All steps but the ``keep_count`` most recent commits (0 keeps all), and those that were never committed.

        Args:
            abandoned: steps left behind unfinished; those that have a manifest after all are kept.
            newest: the step committed last. It stays, whatever the clocks that dated the commits say.

        Raises:
            StorageError: the directory cannot be read.
        """
        committed = committed_steps(self.root)
        dropped = abandoned - set(committed)
        if 0 < keep_count < len(committed):
            manifests, _ = read_manifests(self.root)
            found = [(step == newest, manifest.created, step) for step, manifest in manifests.items()]
            dropped |= {step for _, _, step in sorted(found)[:-keep_count]}
        return dropped

    def remove(self, steps: set[int]) -> None:
        """Remove steps.

        Raises:
            StorageError: a removal was refused; the others are still tried.
        """
        remove_steps(self.root, steps)


def read_manifest(root: Path, step: int) -> Manifest:
    """The manifest of a committed step.

    Raises:
        FileNotFoundError: the step is not committed.
        FormatError, StorageError: the manifest is damaged or cannot be read.
    """
    path = step_directory(root, step) / MANIFEST_NAME
    manifest = decode_manifest(read_file(path, MANIFEST_LIMIT_BYTES), where=str(path))
    if manifest.attempt.step != step:
        raise CorruptFileError(
            "a manifest lies in the directory of another step",
            expected=f"step {step}",
            found=f"step {manifest.attempt.step}",
            where=str(path),
        )
    return manifest


def read_manifests(root: Path) -> tuple[dict[int, Manifest], dict[int, str]]:
    """Every committed step's manifest, and the reason for each step directory that is not a sound checkpoint.

    Raises:
        StorageError: the root cannot be listed.
    """
    manifests: dict[int, Manifest] = {}
    problems: dict[int, str] = {}
    for step in list_steps(root):
        try:
            manifests[step] = read_manifest(root, step)
        except FileNotFoundError:
            problems[step] = UNFINISHED
        except (FormatError, StorageError) as error:
            problems[step] = f"{error.summary}: {error.found}" if error.found else error.summary
    return manifests, problems


def committed_steps(root: Path) -> list[int]:
    """Steps with a manifest, ascending, without reading them.

    Raises:
        StorageError: the root cannot be listed.
    """
    try:
        return [step for step, directory in list_steps(root).items() if (directory / MANIFEST_NAME).exists()]
    except OSError as error:
        raise storage_error("cannot look for manifests", error, root) from error


class DirectoryOwner:
    """Holds a persistent directory for one job (rank 0 only).

    Args:
        directory: created if missing.
        who: what to tell a second job: job name, host, process.

    Raises:
        DirectoryInUseError: a running job has it.
        StorageError: the directory cannot be created or written.
    """

    def __init__(self, directory: Path, who: str) -> None:
        self.directory = directory
        self.session = uuid.uuid4().hex
        make_directory(directory)
        self._path = directory / LOCK_NAME
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error("persistent_dir is not writable", error, directory) from error
        try:
            self._lock()
            owner = {"session": self.session, "who": who, "since": now()}
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps(owner).encode(), 0)
            os.fsync(self._fd)
            self.lineage = _lineage(directory)
        except OSError as error:
            self.close()
            raise storage_error("persistent_dir is not writable", error, directory) from error
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_PAUSE_S)
                    continue
                raise DirectoryInUseError(
                    "another running job checkpoints into this directory",
                    expected="one job at a time on a persistent_dir",
                    found=f"owned by {self._recorded().get('who', 'an unknown process')}",
                    where=str(self.directory),
                    todo="end that job (or `deeppart prune`), or give this one another persistent_dir",
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return

    def _recorded(self) -> dict[str, str]:
        try:
            return lock_record(os.pread(self._fd, _SMALL_FILE_BYTES, 0))
        except OSError:
            return {}

    def check(self) -> None:
        """Raise if another job has taken the directory over since.

        Raises:
            DirectoryInUseError: naming it.
            StorageError: the lock file is gone or cannot be read.
        """
        try:
            owner = lock_record(read_file(self._path, _SMALL_FILE_BYTES))
        except FileNotFoundError as error:
            raise storage_error("persistent_dir has lost its lock file", error, self._path) from error
        except CorruptFileError as error:
            raise StorageError(
                "the lock file is not one of this library", found=error.summary, where=error.where
            ) from error
        if owner.get("session") != self.session:
            raise DirectoryInUseError(
                "another job has taken this directory over; nothing is committed to it from here",
                expected=f"session {self.session}",
                found=f"{owner.get('who', 'an unknown process')}, since {owner.get('since', 'unknown')}",
                where=str(self.directory),
                todo="end one of the two jobs; the other goes on from the last commit",
            )

    def close(self) -> None:
        """Let the next job in."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the lock is gone with the descriptor, whatever close returns
                os.close(descriptor)


def lock_record(data: bytes) -> dict[str, str]:
    """What a lock file says, as texts that a terminal can show; {} if nothing that can be read."""
    try:
        document = parse_json(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    texts = {name: text for name, text in document.items() if isinstance(text, str)}
    return {name: (text if text.isprintable() else ascii(text)[1:-1])[:200] for name, text in texts.items()}


def _lineage(directory: Path) -> str:
    """The directory's lineage, made on first use."""
    found = read_lineage(directory)
    if found is not None:
        return found
    lineage = uuid.uuid4().hex
    record = {"format": "deeppart", "version": 1, "lineage": lineage, "created": now()}
    write_file(directory / LINEAGE_NAME, json.dumps(record, indent=1).encode() + b"\n")
    return lineage


def read_lineage(directory: Path) -> str | None:
    """The lineage recorded in a directory, or None where there is no record.

    Raises:
        CorruptFileError: the record cannot be read.
        StorageError: the operating system refused.
    """
    path = directory / LINEAGE_NAME
    try:
        lineage = parse_json(read_file(path, _SMALL_FILE_BYTES))["lineage"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            "the directory's lineage record cannot be read",
            found=str(error),
            where=str(path),
            todo="remove the file to begin a new lineage: local copies of earlier checkpoints are then not found",
        ) from error
    if not is_hex32(lineage):
        raise CorruptFileError("the directory's lineage record is not sound", found=short(lineage), where=str(path))
    return str(lineage)
