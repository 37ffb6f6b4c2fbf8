"""Random interleavings of sessions that do not know of each other: none ever touches what another has written since.

Real directories and the library's own classes; what a session does takes effect later than it was decided on, as with
a process that slept in between.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deeppart._times import timestamp
from deeppart.errors import DirectoryInUseError, StorageError
from deeppart.model import Attempt, Manifest, PartRecord, StepKey
from deeppart.part import encode_manifest, parse_step_name, part_file_name, step_name
from deeppart.save import CallNotes, Keeping, Retention
from deeppart.storage import (
    NODE_FOLDERS,
    DirectoryOwner,
    DurableFile,
    NeededParts,
    NodeLevel,
    PersistentLevel,
    PosixStore,
    StoredStep,
    list_steps,
)

LEVELS = ("local", "partner", "parity", "persistent")


class Late(PersistentLevel):
    """Removes when it is told to, and not when it is asked to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(PosixStore(directory, direct=True))
        self.decided: list[tuple[StepKey, NeededParts | None]] = []

    def remove(self, key: StepKey, needed: NeededParts | None = None) -> bool:
        self.decided.append((key, needed))
        return True

    def act(self) -> None:
        for key, needed in self.decided:
            super().remove(key, needed)
        self.decided = []


class Session:
    """One job of one rank, whose every step is taken by itself."""

    def __init__(self, root: Path, dice: random.Random, keep: int | None = None) -> None:
        self._dice = dice
        self.owner = DirectoryOwner(root / "p", "me")
        self.name = self.owner.session
        self.persistent = Late(root / "p")
        self.nodes = {name: NodeLevel(root / "l", self.owner.lineage, name, self.name) for name in NODE_FOLDERS}
        self.earlier = {name: level.steps() for name, level in self.nodes.items()}
        self.earlier["persistent"] = set(list_steps(PosixStore(root / "p")))
        for level in self.nodes.values():
            level.recycled.drop_foreign()
        counts = {name: dice.choice((0, 1, 1, 2)) if keep is None else keep for name in LEVELS}
        every = {name: dice.choice((0, 1)) if name != "local" else 1 for name in LEVELS}
        self.retention = Retention(self.nodes, counts, every, self.earlier)
        earlier: Any = self.earlier["persistent"]
        self.keeping = Keeping(self.persistent, counts["persistent"], earlier, self.owner, CallNotes(), 1.0)
        self._sequence = 0
        self._writing: list[tuple[str, Attempt, DurableFile]] = []
        self._named: list[tuple[str, Attempt]] = []
        self._at_commit: tuple[Attempt, str] | None = None

    def moves(self) -> Iterator[Callable[[], None]]:
        """What it may do next; it may sleep for as long as it likes before each."""
        yield self.begin
        yield self.persistent.act
        if self._writing:
            yield self.write
            yield self.name_file
        if self._named:
            yield self.complete_on_a_node
            yield self.fail
        if self._at_commit is None:
            yield self.check_first
        else:
            yield {"checked": self.put_manifest, "committed": self.check_again, "stands": self.retire}[
                self._at_commit[1]
            ]

    def begin(self) -> None:
        step = self._dice.randrange(1, 6)  # the same numbers in all sessions
        attempt = Attempt(self.owner.lineage, self.name, self._sequence, step, 1)
        self._sequence += 1
        for level in ("persistent", *(name for name in NODE_FOLDERS if self._dice.random() < 0.7)):
            storage: Any = self.persistent if level == "persistent" else self.nodes[level]
            self._writing.append((level, attempt, storage.open_part(attempt, 0)))

    def write(self) -> None:
        _, _, file = self._dice.choice(self._writing)
        file.write(self._dice.randbytes(self._dice.choice((10, 5000))))

    def name_file(self) -> None:
        level, attempt, file = self._writing.pop(self._dice.randrange(len(self._writing)))
        try:
            file.commit()
        except StorageError:  # its directory has been removed by a session that found it unfinished
            file.abort()
            return
        self._named.append((level, attempt))

    def complete_on_a_node(self) -> None:
        level, attempt = self._named.pop(0)
        if level != "persistent":
            self.retention.committed(level, attempt.key, set)

    def fail(self) -> None:
        level, attempt = self._named.pop(0)
        storage: Any = self.persistent if level == "persistent" else self.nodes[level]
        with contextlib.suppress(StorageError):
            storage.store.delete(step_name(attempt.key), [part_file_name(0, 1)], durable=False)
        if level == "persistent":
            self.keeping.abandon(attempt.key)
        else:
            self.retention.abandon(level, attempt.key)

    def check_first(self) -> None:
        ready = [attempt for level, attempt in self._named if level == "persistent"]
        if ready:
            self._named.remove(("persistent", ready[0]))
            with contextlib.suppress(DirectoryInUseError):
                self.owner.check()
                self._at_commit = ready[0], "checked"

    def put_manifest(self) -> None:
        assert self._at_commit is not None
        attempt, self._at_commit = self._at_commit[0], None
        record = PartRecord(0, part_file_name(0, 1), 5000, 0, "0" * 32, "1" * 32)
        created = timestamp(1.7e9 + self._dice.randrange(1000))  # a clock that means nothing
        with contextlib.suppress(StorageError):
            self.persistent.commit(attempt.key, encode_manifest(Manifest(attempt, created, "test", (record,), {})))
            self._at_commit = attempt, "committed"

    def check_again(self) -> None:
        assert self._at_commit is not None
        attempt, self._at_commit = self._at_commit[0], None
        try:
            self.owner.check_commit(attempt.key)
            self._at_commit = attempt, "stands"
        except DirectoryInUseError:
            with contextlib.suppress(StorageError):
                self.persistent.withdraw(attempt.key)

    def retire(self) -> None:
        assert self._at_commit is not None
        attempt, self._at_commit = self._at_commit[0], None
        with contextlib.suppress(DirectoryInUseError):
            self.keeping.remove_old(attempt.key)


def files(root: Path) -> dict[Path, tuple[int, bytes]]:
    """Inode and bytes of all files of steps that have their name."""
    found = {}
    for folder, _, names in os.walk(root):
        directory = Path(folder)
        if parse_step_name(directory.name) is not None:
            for path in [directory / name for name in names if ".tmp-" not in name]:
                found[path] = path.stat().st_ino, path.read_bytes()
    return found


def level_of(root: Path, path: Path) -> str:
    below = path.relative_to(root).parts
    return "persistent" if below[0] == "p" else below[2] if below[2] in NODE_FOLDERS else "local"


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(40))
def test_no_session_touches_what_another_has_written_since(
    seed: int, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(StoredStep, "first_problem", lambda step: None)
    dice = random.Random(seed)
    sessions = [Session(memory, dice)]
    after = files(memory)
    for _ in range(150):
        if len(sessions) < 4 and dice.random() < 0.05:
            sessions.append(Session(memory, dice))
            after = files(memory)
        mover = dice.choice(sessions)
        move = dice.choice(list(mover.moves()))
        before = after
        move()
        after = files(memory)
        for path in before.keys() | after.keys():
            key = parse_step_name(path.parent.name)
            if before.get(path) != after.get(path) and key is not None and key.session != mover.name:
                assert path not in after, f"{mover.name} wrote {path} by {move.__name__}"
                assert key in mover.earlier[level_of(memory, path)], f"{mover.name} removed {path}"
    assert len(sessions) > 1 or seed


def test_steps_of_earlier_sessions_do_go(memory: Path) -> None:
    """The rule leaves something to do: what was there at the start goes, with and without a manifest."""
    dice = random.Random(1)
    for _ in range(3):
        session = Session(memory, dice, keep=1)
        for _ in range(2):
            session.begin()
            while session._writing:
                session.write()
                session.name_file()
            session.check_first()
            session.put_manifest()
            session.check_again()
            session.retire()
            session.persistent.act()
            while session._named:
                session.complete_on_a_node()
        session.begin()  # left unfinished
        session.owner.close()
        left = {key.session for key in list_steps(PosixStore(memory / "p"))}
        assert left == {session.name}
    for level in NODE_FOLDERS:
        assert {
            key.session for key in list_steps(PosixStore(memory / "l" / session.owner.lineage / NODE_FOLDERS[level]))
        } <= {session.name}
