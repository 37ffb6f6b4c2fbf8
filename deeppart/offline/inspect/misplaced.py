"""Files of the persistent directory that lie in places of others: somebody has exchanged names, or copied by hand.

Such a file may be the only one of its part. A repair first gives it its own name: what has that name, and is not what
belongs there, gets the other one in exchange. What cannot be put right so is kept under another name before something
takes its place (:mod:`deeppart.storage.exclusive`), unless there is another sound file of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import DeeppartError, FormatError, StorageError
from deeppart.model import Attempt
from deeppart.offline.inspect.reach import Reach, header_of, kept_in
from deeppart.offline.inspect.repair_paths import file_of
from deeppart.part import (
    SECTION_ALIGNMENT,
    FileSource,
    PartReader,
    Section,
    base_file_name,
    parse_base_file_name,
    parse_node_file_name,
    parse_part_file_name,
    read_any_table,
)
from deeppart.storage.exclusive import exchange_names, kept_path, rename_new


@dataclass(frozen=True, slots=True)
class _Found:
    """A part that stands in a file, by its header.

    Attributes:
        attempt, rank: whose.
        index_digest: of its index; "" where that cannot be read.
        section: in a node file: where.
    """

    attempt: Attempt
    rank: int
    index_digest: str
    section: Section | None = None


class Misplaced:
    """Finds what lies in wrong places."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def straighten(self, damaged: Sequence[Path]) -> list[tuple[Path, Path]]:
        """Give files their own names."""
        files = dict.fromkeys(file_of(path) for path in damaged)
        for step in self._reach.steps.values():
            files.update(dict.fromkeys(kept_in(step.directory)))
        moved = []
        for file in files:
            while (own := self._better_place(file)) is not None and _rename(file, own):
                moved.append((own, file))
        for directory in {path.parent for pair in moved for path in pair}:
            with contextlib.suppress(OSError):
                access.sync_directory(directory)
        return moved

    def must_stay(self, path: Path) -> bool:
        """True if what lies in a place belongs elsewhere, in part at least, and there is no other sound file of it."""
        try:
            if not access.exists(path):
                return False
            found = [each for each in _inside(path) if not self._belongs(path, each)]
            return any(not self._is_elsewhere(path, each) for each in found)
        except OSError as error:
            raise storage_error("cannot look at what lies in the place of a file", error, path) from error

    def _better_place(self, file: Path) -> Path | None:
        """The place that a file belongs into, if what lies there now does not, or is damaged while this is sound."""
        own = self._own_place(file)
        if own is None or own == file:
            return None
        if self._own_place(own) != own or (self._is_whole(file) and not self._is_whole(own)):
            return own
        return None

    def _own_place(self, file: Path) -> Path | None:
        """Where a file belongs by its contents; None if no manifest names it, or they cannot be told."""
        try:
            found = _stated(file)
        except (FormatError, StorageError):
            return None
        step = self._reach.steps.get(found[0].attempt.key)
        if step is None or step.manifest.attempt != found[0].attempt:
            return None
        parts = step.manifest.parts
        name, _, in_node_file = parts[found[0].rank].file.partition("/")
        if bool(in_node_file) != (found[0].section is not None):
            return None
        named = {(part.rank, part.index_digest) for part in parts if part.file.partition("/")[0] == name}
        return step.directory / name if named == {(each.rank, each.index_digest) for each in found} else None

    def _is_whole(self, file: Path) -> bool:
        """True if every byte of what a file says that it holds is sound."""
        try:
            return all(_is_sound(file, each) for each in _stated(file))
        except (FormatError, StorageError):
            return False

    def _belongs(self, path: Path, found: _Found) -> bool:
        if (base := parse_base_file_name(path.name)) is not None:
            return found.rank == base[0] and found.index_digest in ("", base[2])
        node, part = parse_node_file_name(path.name), parse_part_file_name(path.name)
        world_size = node[1] if node is not None else part[1] if part is not None else 0
        try:
            if self._reach.attempt_of(path, world_size) != found.attempt:
                return False
        except DeeppartError:
            return False
        if part is not None:
            return found.rank == part[0]
        records = self._reach.manifests[found.attempt].parts
        return any(each.rank == found.rank and each.file.startswith(f"{path.name}/") for each in records)

    def _is_elsewhere(self, path: Path, found: _Found) -> bool:
        """True if there is another sound file, or section, of a part."""
        others = [*self._reach.copies(found.attempt, found.rank), *kept_in(path.parent)]
        if found.index_digest:
            name = base_file_name(found.rank, found.attempt.world_size, found.index_digest)
            others += self._reach.same_files(path.with_name(name), *_base(name))
        return any(
            _holds(other, found) for other in dict.fromkeys(others) if file_of(other) != path and access.exists(other)
        )


def _base(name: str) -> tuple[int, int, str]:
    parsed = parse_base_file_name(name)
    assert parsed is not None
    return parsed


def _stated(file: Path) -> list[_Found]:
    """The parts of a file, as its index or its table states them; one at least."""
    if parse_node_file_name(_proper_name(file)) is None:
        with FileSource(file) as source:
            reader = PartReader(source, where=str(file))
            return [_Found(reader.attempt, reader.rank, reader.index_digest)]
    with FileSource(file) as source:
        table = read_any_table(source, str(file))
    found = []
    for section in table.sections:
        with FileSource(file, section) as source:
            reader = PartReader(source, where=str(file), expected_rank=section.rank)
            found.append(_Found(reader.attempt, reader.rank, reader.index_digest, section))
    return found


def _inside(file: Path) -> Iterator[_Found]:
    """The parts in a file, by their headers, as far as they are found."""
    try:
        yield from _stated(file)
        return
    except (FormatError, StorageError):
        pass
    is_node_file = parse_node_file_name(_proper_name(file)) is not None
    size = access.lstat(file).st_size
    for at in range(0, size, SECTION_ALIGNMENT) if is_node_file else (0,):
        if (header := header_of(file, at)) is not None:
            yield _Found(header.attempt, header.rank, "")


def _proper_name(file: Path) -> str:
    """The name of a file that is kept under another one."""
    return file.name.lstrip(".").split(".kept-")[0]


def _holds(path: Path, wanted: _Found) -> bool:
    """True if a file, or a section, holds a part, all of which is sound."""
    try:
        if parse_node_file_name(_proper_name(path)) is not None:
            return any(_are_one_part(each, wanted) and _is_sound(path, each) for each in _stated(path))
        with FileSource(path) as source:
            reader = PartReader(source, where=str(path))
            found = _Found(reader.attempt, reader.rank, reader.index_digest)
            if not _are_one_part(found, wanted):
                return False
            reader.verify()
    except (FormatError, StorageError):
        return False
    return True


def _are_one_part(found: _Found, wanted: _Found) -> bool:
    same = (found.attempt, found.rank) == (wanted.attempt, wanted.rank)
    return same and wanted.index_digest in ("", found.index_digest)


def _is_sound(file: Path, part: _Found) -> bool:
    try:
        with FileSource(file, part.section) as source:
            PartReader(source, where=str(file), expected_index_digest=part.index_digest).verify()
    except (FormatError, StorageError):
        return False
    return True


def _rename(file: Path, own: Path) -> bool:
    """Give a file its own name, and what has that name the other one; False if that is refused."""
    try:
        rename_new(file, own)
        return True
    except FileExistsError:
        pass
    except OSError:
        return False
    try:
        exchange_names(file, own)
        return True
    except OSError:
        return _rename_in_turn(file, own)


def _rename_in_turn(file: Path, own: Path) -> bool:
    """Where names cannot be exchanged at once. What lay in the place has a name meanwhile that a repair looks at."""
    aside = kept_path(own)
    try:
        rename_new(own, aside)
    except OSError:
        return False
    try:
        rename_new(file, own)
    except OSError:
        with contextlib.suppress(OSError):
            rename_new(aside, own)
        return False
    with contextlib.suppress(OSError):  # else it is kept under that name
        rename_new(aside, file)
    return True
