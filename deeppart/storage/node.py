"""The levels on node-local storage: `local`, the fast first copy; `partner`, copies of another node's parts; `parity`,
this node's share of its group's parity.

There is no manifest: a step can be restored if every part of one attempt is found on some node, or can be rebuilt from
parity. Files are in ``local_dir/<lineage>/``, so that files of other experiments in the same scratch directory cannot
be confused with them; those of `partner` and `parity` in subdirectories of these names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deeppart import access
from deeppart.access import PERMISSIONS
from deeppart.errors import (
    CorruptFileError,
    FormatError,
    MissingError,
    SignatureError,
    StorageError,
    lacks_resources,
    one_line,
)
from deeppart.mapped import forget_removed
from deeppart.model import Attempt, Level, ParityIdentity, StepKey
from deeppart.part import (
    FileSource,
    ParityReader,
    PartReader,
    Signing,
    is_parity_file_name,
    parity_file_name,
    parse_part_file_name,
    part_file_name,
    part_key,
    step_name,
)
from deeppart.plan.restart import Inventory, StoredParity, StoredPart
from deeppart.storage.files import DurableFile, Over
from deeppart.storage.manifests import StoredStep
from deeppart.storage.posix import PosixStore, make_directory
from deeppart.storage.spares import Recycled
from deeppart.storage.steps import is_gone, list_steps, remove_steps

#: Subdirectory of a level in ``local_dir/<lineage>/``.
NODE_FOLDERS: dict[str, str] = {Level.LOCAL: "", Level.PARTNER: "partner", Level.PARITY: "parity"}


def node_root(directory: Path, lineage: str, level: str) -> Path:
    """The directory with a level's step directories on a node."""
    return directory / lineage / NODE_FOLDERS[level]


class NodeLevel:
    """One level on this node's storage."""

    def __init__(
        self,
        directory: Path,
        lineage: str,
        name: str,
        session: str,
        permissions: str = PERMISSIONS[0],
        signing: Signing | None = None,
    ) -> None:
        self.name, self.signing = name, signing
        self._local = access.root_of(directory) or access.Root(directory, access.Rules(permissions, node=True))
        self._below = [each for each in (lineage, NODE_FOLDERS[name]) if each]
        root = make_directory(self._local, *self._below)
        self._directory, self._session = self._local.path / lineage, session
        roots = [self._directory / folder for folder in NODE_FOLDERS.values()]
        #: This session's files at this level that may be overwritten.
        self.recycled = Recycled(root, session, roots)
        self.store = PosixStore(root, recycled=self.recycled)
        self._device = _device(self._local.path)
        probe = f".probe-{os.getpid()}"
        self.store.replace(probe, b"")
        self.store.delete("", [probe], durable=False)

    def at(self, path: str) -> Path:
        """Bind a path to this node's directory."""
        return self._local.at(path)

    def part_path(self, attempt: Attempt, rank: int) -> Path:
        """The path of a rank's part."""
        return self.store.path(part_key(attempt, rank))

    def open_part(self, attempt: Attempt, rank: int, *, mend: bool = False) -> DurableFile:
        """Begin a part file. ``mend``: it may replace a damaged one."""
        return self._open(part_key(attempt, rank), mend)

    def open_parity(self, identity: ParityIdentity, *, mend: bool = False) -> DurableFile:
        """Begin a parity file; see :meth:`open_part`."""
        return self._open(f"{step_name(identity.attempt.key)}/{parity_file_name(identity)}", mend)

    def _open(self, key: str, mend: bool) -> DurableFile:
        forget_removed()  # other ranks of this node may have removed files that this process has mapped
        over: Over = "damaged" if mend else "nothing"
        try:
            return self.store.writer(key, over=over)
        except MissingError:
            # Create local_dir again if it was removed, but not if its file system was unmounted.
            if _device(self._directory) != self._device:
                raise
            make_directory(self._local, *self._below)
            return self.store.writer(key, over=over)

    def free_bytes(self) -> int:
        """Free bytes for this process."""
        with access.open_folder(self._local.path) as folder:
            found = os.fstatvfs(folder.fd)
        return found.f_bavail * found.f_frsize

    def steps(self) -> set[StepKey]:
        """Steps with any files at this level."""
        return set(list_steps(self.store))

    def retire(self, keys: set[StepKey]) -> None:
        """Remove steps from this node. Files of the newest one of this session are recycled for its next checkpoint."""
        own = [key for key in keys if key.session == self._session]
        if own:
            newest = max(own, key=lambda key: key.sequence)
            self.recycled.set_aside(self.store.path(step_name(newest)))
        remove_steps(self.store, keys)
        forget_removed()


def _device(path: Path) -> int:
    """Device number of the file system of a directory, or of its nearest existing parent."""
    for each in (path, *path.parents):
        with contextlib.suppress(OSError), access.open_folder(each) as folder:
            return os.fstat(folder.fd).st_dev
    return -1


@dataclass(frozen=True, slots=True)
class Note:
    """A line about a file or directory on a node that is not used.

    Attributes:
        kind: "remark": a sound file of another lineage. "unlisted": a directory that could not be listed. "damaged": a
            file that cannot be read, is not sound, or is in the place of another file. "refused": a part that is not
            signed with the key.
        text: the line.
        path: the file, for "damaged" and "refused".
    """

    kind: Literal["remark", "unlisted", "damaged", "refused"]
    text: str
    path: Path | None = None


@dataclass(slots=True)
class NodeContents:
    """The files on a node's storage.

    Attributes:
        parts: parts with sound header, footer and index, of `local` and `partner`.
        parity: parity files, likewise.
        notes: lines about other files.
    """

    parts: list[StoredPart] = field(default_factory=list)
    parity: list[StoredParity] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def lines(self, *kinds: str) -> list[str]:
        """The lines of the given kinds; of all kinds by default."""
        return [note.text for note in self.notes if not kinds or note.kind in kinds]

    @staticmethod
    def inventory(nodes: Sequence[NodeContents], committed: Iterable[StoredStep]) -> Inventory:
        """The inventory for the restart planner, with one rank per node."""
        return Inventory(
            found=tuple(tuple(node.parts) for node in nodes),
            node_of=tuple(range(len(nodes))),
            committed=tuple(each.as_committed() for each in committed),
            parity=tuple(tuple(node.parity) for node in nodes),
        )


def take_stock(directory: Path, lineage: str, signing: Signing | None) -> NodeContents:
    """Open every file of a lineage on a node, at all levels; problems become notes."""
    found, directory = NodeContents(), access.below_root(directory)
    for level in NODE_FOLDERS:
        list_level(node_root(directory, lineage, level), level, lineage, signing, found)
    return found


def list_level(root: Path, level: str, lineage: str, signing: Signing | None, found: NodeContents) -> None:
    """Open every file of a level, and add it to ``found``."""
    store = PosixStore(root)
    try:
        steps = list_steps(store)
    except StorageError as error:
        _not_listed(error, root, found)
        return
    for key in steps:
        place = step_name(key)
        try:
            names = sorted(store.list(place))
        except MissingError:  # a running job has just retired it
            continue
        except StorageError as error:
            _not_listed(error, root / place, found)
            continue
        for name in names:
            try:
                _look_at(store, f"{place}/{name}", level, lineage, signing, found)
            except (FormatError, StorageError) as error:
                if lacks_resources(error):
                    raise
                if is_gone(root / place / name):
                    continue
                kind: Literal["refused", "damaged"] = "refused" if isinstance(error, SignatureError) else "damaged"
                found.notes.append(Note(kind, one_line(error), root / place / name))


def _not_listed(error: StorageError, directory: Path, found: NodeContents) -> None:
    if lacks_resources(error):
        raise error
    found.notes.append(Note("unlisted", f"{error.summary}: {error.found}: {directory}"))


def _look_at(
    store: PosixStore, key: str, level: str, lineage: str, signing: Signing | None, found: NodeContents
) -> None:
    """Add a file if its header, footer and index are sound and it is in its own place."""
    name = key.rpartition("/")[2]
    if parse_part_file_name(name) is not None:
        part = stored_part(store, key, level, signing)
        if _is_of(lineage, store, key, part.attempt, part_file_name(part.rank, part.attempt.world_size), found):
            found.parts.append(part)
    elif is_parity_file_name(name):
        parity = stored_parity(store, key)
        if _is_of(lineage, store, key, parity.identity.attempt, parity_file_name(parity.identity), found):
            found.parity.append(parity)


def _is_of(lineage: str, store: PosixStore, key: str, attempt: Attempt, name: str, found: NodeContents) -> bool:
    """Whether a file belongs to the lineage; if not, add a remark. Raises if it is in the place of another file."""
    path, home = store.where(key), f"{step_name(attempt.key)}/{name}"
    if attempt.lineage != lineage:
        found.notes.append(Note("remark", f"{path}: not used: {name} of step {attempt.step} of another lineage"))
        return False
    if key != home:
        what = f"{name} of step {attempt.step}, which belongs at {store.where(home)}"
        raise CorruptFileError("not used: another file is in this place", found=what, where=path)
    return True


def stored_part(store: PosixStore, key: str, level: str, signing: Signing | None) -> StoredPart:
    """Read a part file's record; checks header, footer, index, signature (with keys), and that it has no references."""
    path = store.where(key)
    with store.open(key) as source:
        reader = PartReader(source, where=path, signing=signing)
        if reader.bases:
            raise CorruptFileError(
                "a part on a node refers to other steps",
                expected="a whole part",
                where=path,
                todo="remove it: it is a copy of one in a persistent directory, which can be restored from there alone",
            )
        what = (level, reader.attempt, reader.rank, path, source.size, reader.index_digest)
        return StoredPart(
            *what, written=source.written, content_digest=reader.content_digest, raw_bytes=reader.raw_bytes
        )


def stored_parity(store: PosixStore, key: str) -> StoredParity:
    """Read a parity file's record; checks header, footer and index."""
    path = store.where(key)
    with store.open(key) as source:
        return StoredParity(ParityReader(source, where=path).identity, path, source.size)


def file_problem(path: Path, signing: Signing | None, pace: Callable[[int], None] = lambda nbytes: None) -> str | None:
    """Read a whole part or parity file, and return what is wrong with it, or None."""
    try:
        with FileSource(path) as source:
            if is_parity_file_name(path.name):
                ParityReader(source, where=str(path)).verify(pace=pace)
            else:
                PartReader(source, where=str(path), signing=signing).verify(pace=pace)
    except (FormatError, StorageError) as error:
        return one_line(error)
    return None
