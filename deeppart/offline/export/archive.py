"""A committed checkpoint -> one HDF5 file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py

from deeppart.access import storage_error
from deeppart.model.version import VERSION
from deeppart.offline.batches import batches
from deeppart.offline.export.beside import BesideFile
from deeppart.offline.export.hdf5 import ORDERED, Filter, exact_key, link_name, type_name, write_array, write_value
from deeppart.offline.export.reading import Content, Progress, Totals
from deeppart.state.document.structure import SavedApart, SavedArray, SavedNode, SavedSharded, SavedValue

ARCHIVE_VERSION = 1


class Hdf5Writer:
    """Writes HDF5."""

    form = "hdf5"
    is_directory = False

    def __init__(self, filter: Filter | None = None) -> None:  # noqa: A002
        self._filter = filter

    def write(self, content: Content, beside: BesideFile, told: Progress) -> Totals:
        """Write all of it."""
        return _Archive(content, self._filter, told).write(beside.path, beside.out)


class _Archive:
    """One archive in the making."""

    def __init__(self, content: Content, filter: Filter | None, progress: Progress) -> None:  # noqa: A002
        self._checkpoint, self._suspect, self._progress = content.checkpoint, content.suspect, progress
        self._content, self._filter = content, filter
        self._tree, self._leaves = content.tree, content.leaves
        content.refuse_repeats()
        self._places: dict[int, tuple[h5py.Group, str, str | None]] = {}
        self._values = self._own_values = 0

    def write(self, path: Path, out: Path) -> Totals:
        """Write all of it."""
        types = self._checkpoint.target.types
        total = sum(types[leaf].nbytes for leaf in self._leaves)
        try:
            with h5py.File(path, "w", libver=("earliest", "v110"), locking="best-effort") as file:
                self._describe(file)
                self._place(file, self._tree, "state", None)
                done = 0
                for batch in batches(self._checkpoint, self._leaves):
                    self._write_leaves(batch)
                    done += sum(types[leaf].nbytes for leaf in batch)
                    self._progress(done, total)
        except (OSError, RuntimeError, ValueError) as error:  # h5py raises any of them for what HDF5 says
            raise storage_error("cannot write the archive", _as_os_error(error), out) from error
        return self._content.totals(self._values, self._own_values)

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
            self._own_values += own
            _note(write_value(group, name, self._checkpoint.target.values[node.index]), key, own)
        elif isinstance(node, (SavedApart, SavedSharded)):
            raise AssertionError("the structure of one rank has everything in its place")  # noqa: TRY004
        elif node.kind == "object":  # what its state_dict() has returned
            self._place(group, node.children[0], name, key)
            if node.form is not None and name in group:
                group[name].attrs["object"] = str(node.form)
                group[name].attrs["form"] = json.dumps([node.form.kind, *node.form.about])
        else:
            made = group.create_group(name)
            made.attrs["type"] = node.kind
            if node.name:
                made.attrs["name"] = node.name
            _note(made, key, False)
            taken: set[str] = set()
            names = [link_name(child_key, taken) for child_key in node.keys]
            if node.kind in ORDERED:  # what is in a group is listed by name
                made.attrs["order"] = json.dumps(names)
            for child_key, child_name, child in zip(node.keys, names, node.children, strict=True):
                plain = child_name == child_key or node.kind in ("list", "tuple")
                self._place(made, child, child_name, None if plain else exact_key(child_key))

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
            made = write_array(group, name, arrays[leaf], types[leaf], self._filter)
            made.attrs["type"] = type_name(types[leaf])
            _note(made, key, bool(structure.per_rank[leaf]))
            if leaf in structure.aliases and structure.aliases[leaf].owner in self._places:
                owner_group, owner_name, _ = self._places[structure.aliases[leaf].owner]
                made.attrs["shares_memory_with"] = f"{owner_group.name}/{owner_name}"

    def _same(self, leaf: int) -> int | None:
        """The leaf of the archive that this one is, in all but its place; None if there is none."""
        if not self._content.is_same(leaf):
            return None
        owner = self._checkpoint.structure.aliases[leaf].owner
        return owner if self._places[owner][2] == self._places[leaf][2] else None


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
