"""Random interleavings of sessions that do not know of each other: none ever touches what another has written since.

Real directories and the library's own classes; what a session does takes effect later than it was decided on, as with
a process that slept in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deeppart.errors import DirectoryInUseError, StorageError
from deeppart.levels.files import DurableFile
from deeppart.levels.node import NODE_FOLDERS, NodeLevel
from deeppart.levels.persistent import DirectoryOwner, PersistentLevel
from deeppart.levels.steps import list_steps, parse_step_directory_name
from deeppart.levels.timestamps import timestamp
from deeppart.model import Attempt, Manifest, PartRecord, StepKey
from deeppart.part import encode_manifest, part_file_name
from deeppart.retention import Retention

LEVELS = ("local", "partner", "parity", "persistent")
Files = dict[Path, tuple[int, bytes]]


class Late(PersistentLevel):
    """Removes when it is told to, and not when it is asked to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.decided: list[set[StepKey]] = []

    def remove(self, keys: set[StepKey]) -> None:
        self.decided.append(keys)

    def act(self) -> None:
        for keys in self.decided:
            super().remove(keys)
        self.decided = []


class Session:
    """One job of one rank, whose every step is taken by itself."""

    def __init__(self, root: Path, dice: random.Random, world: World) -> None:
        self._root, self._dice, self._world = root, dice, world
        self.owner = DirectoryOwner(root / "p", "me")
        self.name = self.owner.session
        self.persistent = Late(root / "p")
        self.nodes = {name: NodeLevel(root / "l", self.owner.lineage, name, self.name) for name in NODE_FOLDERS}
        self.earlier = {name: level.steps() for name, level in self.nodes.items()}
        self.earlier["persistent"] = set(list_steps(root / "p"))
        for level in self.nodes.values():
            level.drop_foreign_spares()
        keep = {name: dice.choice((0, 1, 1, 2)) for name in LEVELS}
        every = {name: dice.choice((0, 1)) if name != "local" else 1 for name in LEVELS}
        self.retention = Retention(self.nodes, self.persistent, keep, every, self.earlier, self.owner)
        self._sequence = 0
        self._writing: list[tuple[str, Attempt, DurableFile]] = []
        self._written: list[tuple[str, Attempt]] = []
        self._checked: list[Attempt] = []

    def steps(self) -> Iterator[Callable[[], None]]:
        """What it may do next."""
        yield self.begin
        yield self.persistent.act
        if self._writing:
            yield self.write
            yield self.name_file
        if self._written:
            yield self.complete
        if self._checked:
            yield self.commit
            yield self.fail

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
        except StorageError:
            file.abort()
            return
        (self._checked if level == "persistent" else self._written).append(
            attempt if level == "persistent" else (level, attempt)  # type: ignore[arg-type]
        )

    def complete(self) -> None:
        level, attempt = self._written.pop(0)
        self._retire(level, attempt)

    def commit(self) -> None:
        attempt = self._checked.pop(0)
        path = self.persistent.part_path(attempt, 0)
        nbytes = path.stat().st_size if path.exists() else 1
        record = PartRecord(0, part_file_name(0, 1), max(nbytes, 1000), 0, "0" * 32, "1" * 32)
        created = timestamp(1.7e9 + self._dice.randrange(1000))  # clocks that mean nothing
        manifest = encode_manifest(Manifest(attempt, created, "test", (record,), {}))
        if self._dice.random() < 0.7:  # or it slept after it
            try:
                self.owner.check()
            except DirectoryInUseError:
                self.retention.abandon("persistent", attempt.key, [path])
                return
        self._world.others_act(self)
        try:
            self.persistent.commit(attempt.key, manifest)
        except StorageError:
            return
        self._world.others_act(self)
        try:
            self.owner.check_commit(attempt.key)
        except DirectoryInUseError:
            self.persistent.withdraw(attempt.key)
            return
        self._retire("persistent", attempt)

    def fail(self) -> None:
        attempt = self._checked.pop(0)
        self.retention.abandon("persistent", attempt.key, [self.persistent.part_path(attempt, 0)])

    def _retire(self, level: str, attempt: Attempt) -> None:
        try:
            self.retention.committed(level, attempt.key, set)
        except DirectoryInUseError:
            pass


class World:
    """The sessions, and what each must leave alone."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self._dice = root, random.Random(seed)
        self._sessions: list[Session] = []
        self._depth = 0

    def play(self, moves: int) -> None:
        self.start()
        for _ in range(moves):
            if len(self._sessions) < 4 and self._dice.random() < 0.06:
                self.start()
            self._move(self._dice.choice(self._sessions))

    def start(self) -> None:
        before = self._files()
        self._sessions.append(Session(self._root, self._dice, self))
        self._check(self._sessions[-1], before)

    def others_act(self, sleeper: Session) -> None:
        """While one sleeps in the middle of something."""
        if self._depth < 2:
            for _ in range(self._dice.randrange(3)):
                self._move(self._dice.choice([each for each in self._sessions if each is not sleeper] or [sleeper]))

    def _move(self, session: Session) -> None:
        self._depth += 1
        moves = list(session.steps())
        before = self._files() if self._depth == 1 else None
        self._dice.choice(moves)()
        self._depth -= 1
        if before is not None and self._depth == 0:
            self._check_all(before)
        else:
            self._check_all({})

    def _files(self) -> Files:
        return {
            path: (path.stat().st_ino, path.read_bytes())
            for path in self._root.rglob("*")
            if path.is_file() and parse_step_directory_name(path.parent.name) is not None and ".tmp-" not in path.name
        }

    def _check(self, session: Session, before: Files) -> None:
        self._check_all(before)

    def _check_all(self, before: Files) -> None:
        """A file of a session that nobody else knew when it started is gone, or another, only by that session."""
        now = self._files() if before else {}
        for path, content in before.items():
            key = parse_step_directory_name(path.parent.name)
            assert key is not None
            knew = any(key in each.earlier[level] for each in self._sessions for level in LEVELS)
            if not knew and path in now:
                assert now[path] == content or self._by(key), path
            if not knew and path not in now:
                assert self._by(key), f"{path} is gone"

    def _by(self, key: StepKey) -> bool:
        """Whether the session that wrote it may have moved: only its own moves may touch it."""
        return any(each.name == key.session and each is self.mover for each in self._sessions)

    mover: Session | None = None
