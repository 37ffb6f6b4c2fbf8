"""Ownership of a persistent directory: one job at a time, by a lock file.

The directory is locked (``flock``) while the job runs. In addition, every commit checks before and after that the lock
file still names this session, because on some file systems locks do not reach other nodes. Safety does not depend on
this: no session can replace or remove what another one has committed (docs/decisions/0010-fencing.md).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deeppart import access
from deeppart._times import just_after, now
from deeppart.access import PERMISSIONS, storage_error
from deeppart.access.hanging import storage_operation
from deeppart.errors import CorruptFileError, DirectoryInUseError, FormatError, MissingError, StorageError
from deeppart.model import StepKey
from deeppart.part import Signing, parse_json
from deeppart.storage.lineage import LOCK_NAME, LOST_TODO, NOTE, SMALL_FILE_BYTES, take_lineage
from deeppart.storage.manifests import may_be_committed, read_manifest
from deeppart.storage.posix import PosixStore, make_directory
from deeppart.storage.steps import list_steps
from deeppart.storage.store import Store

#: Length of the lock file, and the most sessions whose commits it lists.
_RECORD_BYTES, _MOST_FOUND = 16 << 10, 200
#: How long to try, because `deeppart ls` holds the lock for microseconds to test it.
_LOCK_PATIENCE_S = 0.5
_LOCK_PAUSE_S = 0.02
_LOOKS = 5
#: Errors of file systems without locks, where only the check at commit remains.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


class CommitClock:
    """Times of commits, each later than all earlier ones even if the machine's clock is wrong.

    `keep` orders the steps of earlier runs by these times. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = ""

    def saw(self, created: str) -> None:
        """Record the time of an existing commit."""
        with self._lock:
            self._last = max(self._last, created)

    def now(self) -> str:
        """The current time, or the moment after the last known commit if that is later."""
        with self._lock:
            self._last = max(now(), just_after(self._last))
            return self._last


class DirectoryOwner:
    """Owns a persistent directory for one job (rank 0 only).

    Attributes:
        directory: as given.
        session: id of this run of the job, 32 hex digits.
        lineage: id of the directory, 32 hex digits.
        copy_of: lineage of the original if the directory is a copy, otherwise "".
        damage: what was wrong with the record of the lineage, which was then written again; "" if nothing.
        clock: the times of commits.
        steps, committed: the steps of earlier sessions in ascending order: all, and those that may be committed.
    """

    def __init__(
        self,
        directory: Path,
        who: str,
        permissions: str = PERMISSIONS[0],
        epoch: tuple[str, int] | None = None,
        signing: Signing | None = None,
        store: Store | None = None,
    ) -> None:
        """``epoch``: the run of `deeppart run` and the number of this start; earlier starts have ended, or hang.
        ``store``: the directory's store, if it is not made of files.
        """
        self._epoch, self._is_locked = epoch, False
        root = access.root_of(directory) or access.Root(directory, access.Rules(permissions))
        self.directory: Path = root.path
        self.clock = CommitClock()
        self._fd = -1
        self.session = uuid.uuid4().hex
        make_directory(root)
        directory = root.path
        self._path: Path = directory / LOCK_NAME
        try:
            self._fd = _open_lock(self._path)
        except OSError as error:
            raise storage_error("persistent_dir is not writable", error, self._path) from error
        _owners.add(self)
        try:
            self._lock()
            if permissions == PERMISSIONS[0]:
                self._keep_others_from_locking()
            lineage = take_lineage(directory, self._fd)
            self.lineage, self.copy_of, self.damage = lineage.record.name, lineage.copy_of, lineage.damage
            owner = {"session": self.session, "who": who, "since": now(), NOTE: lineage.record.document()}
            if epoch is not None:
                owner["epoch"] = f"{epoch[0]} {epoch[1]}"
            store = PosixStore(directory) if store is None else store
            self.steps = list_steps(store)
            # Start in spite of an unreadable step: it stays, and is not restored.
            self.committed = [key for key in self.steps if may_be_committed(store, key)]
            found = _newest_commits(self.committed)
            owner["found"] = {session: keys[0].sequence for session, keys in found.items()}
            for keys in found.values():
                self.clock.saw(_time_of_newest(store, keys, signing))
            # Always of one length: if two jobs write at the same time without locks, the record is that of the last
            # one.
            with storage_operation("write", self._path):
                os.ftruncate(self._fd, os.pwrite(self._fd, json.dumps(owner).encode().ljust(_RECORD_BYTES), 0))
                os.fsync(self._fd)
        except OSError as error:
            self.close()
            raise storage_error("persistent_dir is not writable", error, directory) from error
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            _lock(self._fd)
            self._is_locked = True
        except BlockingIOError as error:
            if not self._is_next_epoch():
                raise self._in_use() from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    def _is_next_epoch(self) -> bool:
        """True if an earlier start of this job has the lock, because its process hangs or its node is unreachable."""
        run, _, number = _recorded(self._fd).epoch.partition(" ")
        return self._epoch is not None and number.isdecimal() and run == self._epoch[0] and int(number) < self._epoch[1]

    def _in_use(self) -> DirectoryInUseError:
        expected = "one job at a time on a persistent_dir"
        found = "; ".join([f"owned by {_recorded(self._fd).who}", *_holders(self._path)])
        if any(other is not self and other._holds(self._fd) for other in list(_owners)):
            what = "this process checkpoints into this directory already"
            todo = "use its Checkpointer (deeppart.checkpoint() has one too), or close that, as `with` does"
        else:
            what = "another running job checkpoints into this directory"
            todo = (
                "end that job (or let `deeppart prune` end), or give this one another persistent_dir. Only to read: "
                "deeppart.load, or dcp.load with deeppart.interop.dcp.StorageReader(DIR): these need not be alone"
            )
        return DirectoryInUseError(what, expected=expected, found=found, where=str(self.directory), todo=todo)

    def _holds(self, lock_fd: int) -> bool:
        """True if this owner has the lock file of that descriptor."""
        with contextlib.suppress(OSError):
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), os.fstat(lock_fd))
        return False

    def _keep_others_from_locking(self) -> None:
        """Remove others' permission to read the lock file, and so to lock it; a group that may write keeps it."""
        mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
        group = stat.S_IRGRP | stat.S_IWGRP if mode & stat.S_IWGRP else 0
        with contextlib.suppress(OSError):  # the file system has no permissions
            os.fchmod(self._fd, stat.S_IRUSR | stat.S_IWUSR | group)

    def check(self) -> None:
        """Raise DirectoryInUseError if another job has taken over the directory."""
        if not self._is_locked and self._epoch is not None:
            with contextlib.suppress(OSError):  # the earlier start still has the lock
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._is_locked = True
        owner = self._read()
        if owner.session != self.session:
            raise DirectoryInUseError(
                "another job has taken this directory over; nothing is committed to it from here",
                expected=f"session {self.session}",
                found=f"{owner.who}, since {owner.since}",
                where=str(self.directory),
                todo="end one of the two jobs; the other goes on from the last commit",
            )
        if self._is_exchanged():
            raise DirectoryInUseError(
                "another directory lies where this job's persistent_dir was; nothing is committed to it from here",
                expected="the lock file that this job has locked",
                found="another file with the same text, as a copy of the directory has",
                where=str(self.directory),
                todo="bring the directory back under its name, or end this job and start it again: it goes on from "
                "what is there then",
            )

    def _is_exchanged(self) -> bool:
        """True if another file now has the name of the open lock file."""
        with contextlib.suppress(OSError):  # reading the lock file reports the error
            return access.lstat(self._path).st_ino != os.fstat(self._fd).st_ino
        return False

    def check_commit(self, key: StepKey) -> None:
        """After a commit: raise if another job took over the directory without having seen this commit."""
        try:
            self.check()
        except DirectoryInUseError:
            if self._read().found.get(key.session, -1) < key.sequence:
                raise
        except StorageError:
            pass  # unknown; the next commit checks again

    def _read(self) -> Owner:
        """Read the lock file; an owner without session if it stays invalid for longer than a write takes."""
        owner = Owner(None)
        try:
            for _ in range(_LOOKS):
                owner = Owner.parse(PosixStore(self.directory).get(LOCK_NAME, SMALL_FILE_BYTES))
                if owner.session:
                    break
                time.sleep(_LOCK_PAUSE_S)
        except MissingError as error:
            error.summary, error.todo = "persistent_dir has lost its lock file", LOST_TODO
            raise
        except CorruptFileError as error:
            raise StorageError(
                "the lock file is not one of this library", found=error.summary, where=error.where
            ) from error
        return owner

    def close(self) -> None:
        """Release the lock."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the lock is released even if close fails
                os.close(descriptor)


def _open_lock(path: Path) -> int:
    """Open the lock file for reading and writing, and create it if necessary."""
    for _ in range(_LOOKS):
        with contextlib.suppress(FileNotFoundError):
            return access.open_file(path, os.O_RDWR)
        with contextlib.suppress(FileExistsError):  # another job has just created it
            return access.create(path)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _lock(descriptor: int) -> None:
    """Lock the lock file; BlockingIOError if another process keeps it locked."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_LOCK_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Owner:
    """The last owner of a directory, by its lock file, in printable text. Fields: docs/commands.md, ls.

    Attributes:
        epoch: the run of `deeppart run` and the number of its start; "" for other jobs.
        found: session -> sequence of its last commit when the owner took the directory (:func:`_newest_commits`).
    """

    running: bool | None
    who: str = "an unknown process"
    since: str = "unknown"
    session: str = ""
    epoch: str = field(default="", metadata={"json": False})
    found: Mapping[str, int] = field(default_factory=dict, metadata={"json": False})

    @classmethod
    def parse(cls, data: bytes, running: bool | None = None) -> Owner:
        """Parse the lock file; invalid fields count as unknown."""
        try:
            document = parse_json(data)
        except (ValueError, RecursionError):
            document = None
        document = document if isinstance(document, dict) else {}
        texts = {name: document.get(name) for name in ("who", "since", "session", "epoch")}
        known = {name: text for name, text in texts.items() if isinstance(text, str) and text}
        shown = {name: (text if text.isprintable() else ascii(text)[1:-1])[:200] for name, text in known.items()}
        found = document.get("found")
        commits = found.items() if isinstance(found, dict) else ()
        return cls(running, **shown, found={key: number for key, number in commits if type(number) is int})

    @property
    def run(self) -> str:
        """The name for `deeppart halt`; "" if unknown."""
        return self.epoch.partition(" ")[0] or self.session

    @property
    def line(self) -> str | None:
        """A line of text; None if no job is running."""
        if self.running is False:
            return None
        verb = "in use by" if self.running else "perhaps in use (the file system has no locks): last taken by"
        return f"{verb} {self.who}, since {self.since[:19].replace('T', ' ')}"


def read_owner(root: Path) -> Owner | None:
    """Read the owner of a checkpoint directory; None if it never had one.

    To test the lock, it is taken shared for the microseconds between two system calls.
    """
    try:
        descriptor = access.open_file(root / LOCK_NAME)
    except FileNotFoundError:
        return None
    except OSError:
        return Owner(None)
    try:
        running = _is_locked(descriptor)
        return _recorded(descriptor, running)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def hold_directory(root: Path, *, without_lock: bool = False) -> Iterator[None]:
    """Keep jobs out of a directory while it is changed, without changing the content of the lock file."""
    try:
        descriptor = _open_lock(root / LOCK_NAME)
    except OSError as error:
        raise storage_error("the checkpoint directory cannot be locked", error, root) from error
    try:
        _lock_for_change(descriptor, root, without_lock)
        yield
    finally:
        os.close(descriptor)


def _lock_for_change(descriptor: int, root: Path, without_lock: bool) -> None:
    try:
        _lock(descriptor)
    except BlockingIOError as error:
        owner = _recorded(descriptor, running=True)
        raise DirectoryInUseError(
            "a running job checkpoints into this directory: nothing is changed in it now",
            found=f"in use by {owner.who}, since {owner.since}",
            where=str(root),
            todo="wait for that job to end, or end it",
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise storage_error("the checkpoint directory cannot be locked", error, root) from error
        if not without_lock:
            raise StorageError(
                "this file system has no locks, so nothing tells whether a job is running there",
                errno=error.errno,
                found=os.strerror(error.errno or 0),
                where=str(root),
                todo="make sure that no job checkpoints into the directory, then use --no-lock",
            ) from error


def _is_locked(descriptor: int) -> bool | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _recorded(descriptor: int, running: bool | None = None) -> Owner:
    """Read the owner from an open lock file."""
    try:
        return Owner.parse(os.pread(descriptor, SMALL_FILE_BYTES, 0), running)
    except OSError:
        return Owner(running)


#: The owners of this process. Forked processes, such as data loader workers, must not keep the lock.
_owners: weakref.WeakSet[DirectoryOwner] = weakref.WeakSet()


def _let_go() -> None:
    for owner in list(_owners):
        owner.close()


os.register_at_fork(after_in_child=_let_go)


def _holders(path: Path) -> list[str]:
    """A line with the processes of this host that have a file open, as far as this user can see them."""
    found = []
    with contextlib.suppress(OSError):
        wanted = os.stat(path)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                same = any(os.path.samestat(os.stat(each), wanted) for each in (process / "fd").iterdir())
                if same and int(process.name) != os.getpid():
                    found.append(f"{process.name} ({(process / 'comm').read_text().strip()})")
    return [f"on this host the lock file is open in process {', '.join(found)}"] if found else []


def _newest_commits(committed: Sequence[StepKey]) -> dict[str, list[StepKey]]:
    """Session -> its commits, last one first. A session commits in order of sequence.

    From this record, a session that was taken over learns which of its commits its successor has seen.
    """
    found: dict[str, list[StepKey]] = {}
    for key in reversed(committed):
        if key.session in found or len(found) < _MOST_FOUND:
            found.setdefault(key.session, []).append(key)
    return {session: sorted(keys, key=lambda key: -key.sequence) for session, keys in found.items()}


def _time_of_newest(store: Store, keys: Sequence[StepKey], signing: Signing | None) -> str:
    """The time of the first of these commits that can be read; "" if none can."""
    for key in keys:
        for _ in range(2):  # a storage error may be transient
            try:
                return read_manifest(store, key, signing).created
            except FormatError:
                break
            except StorageError:
                continue
    return ""
