"""A committed checkpoint -> one HDF5 file."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import h5py

from deeppart import access
from deeppart.errors import StateError, StorageError
from deeppart.model.version import VERSION
from deeppart.offline.export.hdf5 import exact_key, link_name, type_name, write_array, write_value
from deeppart.offline.find import Chosen, with_checkpoint
from deeppart.offline.load import OpenCheckpoint
from deeppart.state.document.structure import SavedApart, SavedArray, SavedNode, SavedSharded, SavedValue
from deeppart.state.document.ties import contiguous_strides
from deeppart.state.tree.paths import readable
from deeppart.storage.key_files import KeyFiles, read_key_files
from deeppart.storage.refusals import storage_error

ARCHIVE_VERSION = 1

#: Leaves are read so many bytes at a time, or one by one where they are larger.
_BATCH_BYTES = 256 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export.

    Attributes:
        path: the archive.
        step: of the checkpoint.
        rank: whose per-rank leaves and values it holds.
        leaves, values: how many of each.
        per_rank: how many of them were saved by each rank for itself.
        nbytes: bytes of the leaves.
        file_bytes: bytes of the archive.
        remarks: lines about newer steps that cannot be used, and leaves that are suspect.
    """

    path: Path
    step: int
    rank: int
    leaves: int
    values: int
    per_rank: int
    nbytes: int
    file_bytes: int
    remarks: tuple[str, ...] = ()


def export(
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    step: int | None = None,
    keys: Sequence[str] | None = None,
    rank: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    sign_key_file: KeyFiles = None,
) -> Exported:
    """Write a committed checkpoint into one HDF5 file, which appears under its name when it is complete.

    Every byte is checked as it is read, in the files of older checkpoints too where the step refers to those. At most
    256 MiB of leaves, or one leaf, are in memory at a time.

    Args:
        root: the persistent directory.
        out: the archive to make.
        step: which one; None for the newest whose manifest is sound.
        keys: globs over leaf paths, as :func:`deeppart.load` takes them; None for everything.
        rank: whose values to take for leaves that each rank saved for itself.
        overwrite: replace a file of that name.
        progress: is told bytes done and bytes in all, now and then.
        sign_key_file: as :func:`deeppart.load` takes it.

    Raises:
        RestoreError: no such checkpoint, or no such rank.
        FormatError: a file that is needed is damaged.
        StructureMismatchError: ``keys`` match nothing.
        StorageError: a file cannot be read or written, or there is one of that name.
    """
    out = Path(out)
    told = progress or (lambda done, total: None)
    signing = read_key_files(sign_key_file)
    try:
        folder = access.open_folder(out.absolute().parent)
        taken = folder.has(out.name)
    except OSError as error:
        raise storage_error("cannot write the archive", error, out) from error
    with folder:
        if taken and not overwrite:
            todo = "choose another name, or have it replaced (--overwrite)"
            raise StorageError("there is a file of that name", errno=errno.EEXIST, where=str(out.absolute()), todo=todo)

        def use(chosen: Chosen) -> Exported:
            chosen.tell()
            with ExitStack() as files, _Beside(folder, out) as beside:
                checkpoint = OpenCheckpoint(files, chosen.directory, chosen.manifest, rank, signing=signing)
                made = _Archive(checkpoint, keys, chosen.suspect, told).write(beside.path, out)
                file_bytes = beside.finish()
            return Exported(out, chosen.manifest.attempt.step, rank, *made, file_bytes, chosen.remarks)

        return with_checkpoint(Path(root), step, use, signing)


class _Beside:
    """A file beside the archive, which becomes it when it is complete; removed when the block is left without that.

    Attributes:
        path: leads to the file that was made here, whatever others call by its name meanwhile.
    """

    def __init__(self, folder: access.Folder, out: Path) -> None:
        self._folder, self._out = folder, out
        self._name = f".{out.name}.{os.urandom(8).hex()}.tmp"
        try:
            self._fd = folder.create(self._name)
        except OSError as error:
            raise storage_error("cannot write the archive", error, out) from error
        self.path = Path(f"/proc/self/fd/{self._fd}")

    def finish(self) -> int:
        """Make it durable and give it its name; returns its length."""
        try:
            os.fsync(self._fd)
            self._folder.rename(self._name, self._folder, self._out.name)
            self._folder.sync()
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise storage_error("cannot make the archive durable", error, self._out) from error

    def __enter__(self) -> _Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            os.close(self._fd)
        if kind is not None:
            with suppress(OSError):
                self._folder.remove(self._name)


class _Archive:
    """One archive in the making."""

    def __init__(
        self, checkpoint: OpenCheckpoint, keys: Sequence[str] | None, suspect: Sequence[str], progress: Progress
    ) -> None:
        self._checkpoint, self._suspect, self._progress = checkpoint, suspect, progress
        self._tree, leaves = checkpoint.select(keys)
        checkpoint.check(leaves)
        _check_repeats(checkpoint, leaves)
        self._leaves = leaves
        self._places: dict[int, tuple[h5py.Group, str, str | None]] = {}
        self._values = 0
        self._per_rank = int(checkpoint.structure.per_rank[sorted(leaves)].sum()) if leaves else 0

    def write(self, path: Path, out: Path) -> tuple[int, int, int, int]:
        """Write all of it; returns the numbers of leaves, values, those per rank, and the leaves' bytes.

        Args:
            path: of an empty file. out: what it will be called, for messages.
        """
        types = self._checkpoint.target.types
        total = sum(types[leaf].nbytes for leaf in self._leaves)
        try:
            with h5py.File(path, "w", libver=("earliest", "v110"), locking="best-effort") as file:
                self._describe(file)
                self._place(file, self._tree, "state", None)
                done = 0
                for batch in self._batches():
                    self._write_leaves(batch)
                    done += sum(types[leaf].nbytes for leaf in batch)
                    self._progress(done, total)
        except (OSError, RuntimeError, ValueError) as error:  # h5py raises any of them for what HDF5 says
            raise storage_error("cannot write the archive", _as_os_error(error), out) from error
        return len(self._leaves), self._values, self._per_rank, total

    def _describe(self, file: h5py.File) -> None:
        manifest = self._checkpoint.manifest
        file.attrs["deeppart_archive"] = ARCHIVE_VERSION
        file.attrs["library"] = f"deeppart {VERSION}"
        file.attrs["step"] = manifest.attempt.step
        file.attrs["created"] = manifest.created
        file.attrs["world_size"] = manifest.attempt.world_size
        file.attrs["rank"] = self._checkpoint.rank
        if self._suspect:
            file.attrs["suspect"] = list(self._suspect)

    def _place(self, group: h5py.Group, node: SavedNode, name: str, key: str | None) -> None:
        """Make the groups, write the values, and note where the leaves go."""
        if isinstance(node, SavedArray):
            self._places[node.index] = (group, name, key)
        elif isinstance(node, SavedValue):
            own = bool(self._checkpoint.structure.per_rank_values[node.index])
            self._values += 1
            self._per_rank += own
            _note(write_value(group, name, self._checkpoint.target.values[node.index]), key, own)
        elif isinstance(node, (SavedApart, SavedSharded)):
            raise AssertionError("the structure of one rank has everything in its place")  # noqa: TRY004
        elif node.kind == "object":  # what its state_dict() has returned
            self._place(group, node.children[0], name, key)
            if node.form is not None and name in group:
                group[name].attrs["object"] = str(node.form)
        else:
            made = group.create_group(name)
            made.attrs["type"] = node.kind
            if node.name:
                made.attrs["name"] = node.name
            _note(made, key, False)
            taken: set[str] = set()
            for child_key, child in zip(node.keys, node.children, strict=True):
                child_name = link_name(child_key, taken)
                plain = child_name == child_key or node.kind in ("list", "tuple")
                self._place(made, child, child_name, None if plain else exact_key(child_key))

    def _batches(self) -> Iterator[set[int]]:
        """Leaves to be read together: those that share memory in one go."""
        aliases, types = self._checkpoint.structure.aliases, self._checkpoint.target.types
        families: dict[int, set[int]] = {}
        for leaf in sorted(self._leaves):
            families.setdefault(aliases[leaf].owner if leaf in aliases else leaf, set()).add(leaf)
        batch: set[int] = set()
        room = _BATCH_BYTES
        for owner, family in families.items():
            if batch and room < types[owner].nbytes:
                yield batch
                batch, room = set(), _BATCH_BYTES
            batch |= family
            room -= types[owner].nbytes
        if batch:
            yield batch

    def _write_leaves(self, batch: set[int]) -> None:
        structure, types = self._checkpoint.structure, self._checkpoint.target.types
        arrays = self._checkpoint.read(batch)
        for leaf in sorted(batch, key=lambda leaf: (leaf in structure.aliases, leaf)):
            group, name, key = self._places[leaf]
            owner = self._same(leaf)
            if owner is not None:  # two names of one data set, as two tied leaves are of one tensor
                owner_group, owner_name, _ = self._places[owner]
                group[name] = owner_group[owner_name]
                continue
            made = write_array(group, name, arrays[leaf], types[leaf])
            made.attrs["type"] = type_name(types[leaf])
            _note(made, key, bool(structure.per_rank[leaf]))
            if leaf in structure.aliases and structure.aliases[leaf].owner in self._places:
                owner_group, owner_name, _ = self._places[structure.aliases[leaf].owner]
                made.attrs["shares_memory_with"] = f"{owner_group.name}/{owner_name}"

    def _same(self, leaf: int) -> int | None:
        """The leaf of the archive that this one is, in all but its place; None if there is none."""
        alias, types = self._checkpoint.structure.aliases.get(leaf), self._checkpoint.target.types
        if alias is None or alias.owner not in self._places or alias.offset:
            return None
        same_place = self._places[alias.owner][2] == self._places[leaf][2]
        same_type = types[alias.owner] == types[leaf] and alias.strides == contiguous_strides(types[leaf].shape)
        return alias.owner if same_place and same_type else None


def _check_repeats(checkpoint: OpenCheckpoint, leaves: set[int]) -> None:
    """Refuse what is small in the checkpoint because its elements lie at one address, and would be large in an archive.

    Raises:
        StateError: naming the leaf.
    """
    types, aliases = checkpoint.target.types, checkpoint.structure.aliases
    for leaf in sorted(leaves & aliases.keys()):
        nbytes, stored = types[leaf].nbytes, types[aliases[leaf].owner].nbytes
        if nbytes > max(stored, _BATCH_BYTES):
            path = readable(checkpoint.structure.array_paths()[leaf])
            raise StateError(
                "a leaf repeats its few bytes, as expand() makes it, and would be too large in an archive",
                expected=f"at most {_BATCH_BYTES} bytes",
                found=f"{nbytes} bytes of {types[leaf]}, of which {stored} are stored",
                where=f"path {path}",
                todo="export the other leaves: name them as KEYS",
            )


def _as_os_error(error: OSError | RuntimeError | ValueError) -> OSError:
    """The exception of h5py as an ``OSError``, with the error number that HDF5 names in the text."""
    named = re.search(r"errno = (\d+)", str(error))
    if isinstance(error, OSError) and (error.errno or not named):
        return error
    return OSError(int(named[1]), str(error)) if named else OSError(str(error))


def _note(made: h5py.HLObject, key: str | None, own: bool) -> None:
    if key is not None:
        made.attrs["key"] = key
    if own:
        made.attrs["per_rank"] = True
