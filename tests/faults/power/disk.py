"""What may be left on storage when the power goes after any number of recorded events."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.power.recording import Entry, Event

_PAGE = 4096


@dataclass(slots=True)
class _File:
    certain: bytes = b""
    now: bytes = b""


@dataclass(slots=True)
class Disk:
    """Storage after some events.

    Args:
        directories: that were there, durably, at the beginning.
        ignored: sites whose syncs do not count.
    """

    directories: Collection[str]
    ignored: Collection[str] = ()
    _certain: dict[str, dict[str, int]] = field(default_factory=dict)
    _pending: list[tuple[Entry, ...]] = field(default_factory=list)
    _files: dict[int, _File] = field(default_factory=dict)
    told: int | None = None

    def __post_init__(self) -> None:
        self._certain = {".": {}, **{each: {} for each in self.directories}}
        for each in self.directories:
            parent, _, name = each.rpartition("/")
            self._certain[parent or "."][name] = 0

    def after(self, event: Event) -> None:
        """One more event has happened."""
        if event.kind == "entries":
            self._pending.append(event.entries)
        elif event.kind == "told":
            self.told = event.step if self.told is None else max(self.told, event.step)
        elif event.kind == "sync directory":
            if event.site not in self.ignored:
                self._settle(event.directory)
        else:
            file = self._files.setdefault(event.inode, _File())
            file.now = event.content
            if event.kind == "sync" and event.site not in self.ignored:
                file.certain = event.content

    def _settle(self, directory: str) -> None:
        mine = [change for change in self._pending if change[0].directory == directory]
        self._pending = [change for change in self._pending if change[0].directory != directory]
        for change in mine:
            _apply(self._certain, change)

    def outcomes(self, rng: random.Random, most: int) -> Iterator[dict[str, bytes | None]]:
        """Ways in which this may end: path -> bytes of a file, None of a directory.

        The extremes first: nothing but what is certain; every entry with no bytes that are not certain; every entry
        with zeros in their place; everything but one entry. Then drawn ones.
        """
        everything, nothing = [True] * len(self._pending), [False] * len(self._pending)
        ways = [(nothing, "certain"), (everything, "certain"), (everything, "zeros"), (everything, "torn")]
        lost = list(range(len(self._pending)))[-8:]
        ways += [([number != one for number in range(len(everything))], "now") for one in reversed(lost)]
        for _ in range(max(0, most - len(ways))):
            ways.append(([rng.random() < 0.5 for _ in self._pending], rng.choice(("now", "zeros", "torn", "mixed"))))
        for kept, bytes_like in ways[:most]:
            yield self._tree(
                [change for change, keeps in zip(self._pending, kept, strict=True) if keeps], bytes_like, rng
            )

    def tree_now(self) -> dict[str, bytes | None]:
        """What a process sees, as long as the power is on."""
        return self._tree(self._pending, "now", random.Random(0))

    def _tree(
        self, changes: Sequence[tuple[Entry, ...]], bytes_like: str, rng: random.Random
    ) -> dict[str, bytes | None]:
        entries = {directory: dict(names) for directory, names in self._certain.items()}
        for change in changes:
            _apply(entries, change)
        contents: dict[int, bytes] = {}  # one file may have several names
        tree: dict[str, bytes | None] = {}
        waiting = ["."]
        while waiting:
            directory = waiting.pop()
            for name, inode in sorted(entries.get(directory, {}).items()):
                path = name if directory == "." else f"{directory}/{name}"
                if inode == 0:
                    tree[path] = None
                    waiting.append(path)
                    continue
                file = self._files.get(inode, _File())
                if inode not in contents:
                    contents[inode] = _bytes(file, bytes_like, rng)
                tree[path] = contents[inode]
        return tree


def _apply(entries: dict[str, dict[str, int]], change: tuple[Entry, ...]) -> None:
    for each in change:
        names = entries.setdefault(each.directory, {})
        if each.inode is None:
            names.pop(each.name, None)
        else:
            names[each.name] = each.inode


def _bytes(file: _File, bytes_like: str, rng: random.Random) -> bytes:
    if bytes_like == "certain" or file.certain == file.now:
        return file.certain
    if bytes_like == "now":
        return file.now
    if bytes_like == "zeros":
        return bytes(len(file.now))
    if bytes_like == "mixed":
        bytes_like = rng.choice(("certain", "now", "zeros", "torn"))
        return _bytes(file, bytes_like, rng)
    old = file.certain.ljust(len(file.now), b"\0")
    pages = range(0, len(file.now), _PAGE)
    return b"".join((file.now if rng.random() < 0.5 else old)[at : min(at + _PAGE, len(file.now))] for at in pages)


def put_on(tree: dict[str, bytes | None], directory: Path) -> None:
    """Make an empty directory hold this."""
    for path, content in sorted(tree.items()):
        if content is None:
            (directory / path).mkdir(parents=True, exist_ok=True)
        else:
            (directory / path).write_bytes(content)


def read_back(directory: Path) -> dict[str, bytes | None]:
    """What a directory holds."""
    return {
        path.relative_to(directory).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
    }
