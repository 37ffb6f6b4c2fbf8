"""Reading checkpoints without the job that wrote them: one process, no MPI, nothing imported that a file names."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from deeppart.errors import RestoreError, StorageError, StructureMismatchError
from deeppart.levels.persistent import committed_steps, read_manifest, read_manifests
from deeppart.levels.steps import MANIFEST_NAME, list_steps, step_directory
from deeppart.model import Manifest
from deeppart.part import SHARED_TABLE, FileSource, PartReader
from deeppart.state.document import OwnDocument, decode_meta
from deeppart.state.flatten import readable
from deeppart.state.merge import build, tie
from deeppart.state.scatter import Scatter, check_cover, chunk_pieces
from deeppart.state.structure import SavedArray, SavedBranch, SavedNode, Structure, decode_structure
from deeppart.state.target import Target, decode_values

#: How often ``load`` looks again because a running job has removed what it was about to read.
MOST_LOOKS = 20


def load(
    path: str | os.PathLike[str],
    step: int | None = None,
    keys: str | Sequence[str] | None = None,
    rank: int = 0,
) -> Any:
    """Read a committed checkpoint in one process, onto the CPU.

    Args:
        path: the persistent directory.
        step: which one; None for the newest whose manifest is sound.
        keys: globs over leaf paths ("model/*", "optimizer/state/0/*"); only the leaves that match, and the chunks that
            hold them, are read. None for everything. Components of a path are joined by ``/``; inside a component
            ``~`` is written ``~0`` and ``/`` is written ``~1`` (RFC 6901). ``*`` also matches ``/``.
        rank: whose values to take for leaves that each rank saved for itself.

    Returns:
        The nested state: containers as saved, objects as what their ``state_dict()`` returned, tensors on the CPU,
        tied where they were tied. With ``keys``, containers hold only what matched.

    Raises:
        RestoreError: no such checkpoint.
        FormatError: a file that is needed is damaged.
        StructureMismatchError: ``keys`` match nothing.
        StorageError: a file cannot be read.
    """
    for look in range(MOST_LOOKS):
        manifest = find_manifest(Path(path), step)
        directory = step_directory(Path(path), manifest.attempt.step)
        try:
            return _load(directory, manifest, keys, rank)
        except StorageError as error:
            # a job that is running may have committed the next step and removed this one
            retired = error.errno == errno.ENOENT and not (directory / MANIFEST_NAME).exists()
            if step is not None or not retired or look == MOST_LOOKS - 1:
                raise
    raise AssertionError("the last look returns or raises")


def _load(directory: Path, manifest: Manifest, keys: str | Sequence[str] | None, rank: int) -> Any:
    where = str(directory)
    structure = decode_structure(manifest.structure, where)
    if not 0 <= rank < manifest.attempt.world_size:
        raise RestoreError(
            f"no rank {rank} saved this checkpoint", expected=f"a rank below {manifest.attempt.world_size}", where=where
        )
    patterns = [keys] if isinstance(keys, str) else keys
    tree, arrays_wanted = _select(structure, patterns)
    with ExitStack() as files:
        readers = [_open_part(files, directory, manifest, number) for number in range(manifest.attempt.world_size)]
        own = decode_meta(readers[rank].meta, f"{where}, part {rank}")
        target = _target(structure, own, where)
        wanted = arrays_wanted | {structure.aliases[i].owner for i in arrays_wanted if i in structure.aliases}
        _check(structure, target, readers, rank, wanted, where)
        target.dropped = frozenset(set(range(len(structure.types))) - wanted)
        arrays = target.arrays()
        scatter = Scatter(arrays)
        for number, reader in enumerate(readers):
            _read_wanted(reader, scatter, structure, mine=number == rank)
    tie(target, arrays)
    return build(target, arrays, tree)


def find_manifest(root: Path, step: int | None) -> Manifest:
    """The manifest of a step, or of the newest step that has a sound one.

    Raises:
        RestoreError: there is none; the reasons are listed.
        FormatError, StorageError: the step asked for has a damaged one.
    """
    if step is not None:
        try:
            return read_manifest(root, step)
        except FileNotFoundError:
            raise _nothing(root, f"step {step} is not a committed checkpoint", committed_steps(root)) from None
    if not root.is_dir():
        raise _nothing(root, "there is no such checkpoint directory", [])
    for _ in range(MOST_LOOKS):
        manifests, problems = read_manifests(root)
        if manifests:
            return manifests[max(manifests)]
        if list_steps(root).keys() == problems.keys():  # otherwise a running job has moved on meanwhile
            break
    reasons = "; ".join(f"step {number}: {reason}" for number, reason in sorted(problems.items()))
    raise _nothing(root, "there is no committed checkpoint", [], reasons or "no step directory")


def _nothing(root: Path, summary: str, committed: list[int], found: str | None = None) -> RestoreError:
    return RestoreError(
        summary,
        found=found or f"committed steps: {committed[-8:] if committed else 'none'}",
        where=str(root.absolute()),
        todo="`deeppart ls DIR` shows what is there",
    )


def _open_part(files: ExitStack, directory: Path, manifest: Manifest, number: int) -> PartReader:
    record = manifest.parts[number]
    path = directory / record.file
    source = files.enter_context(FileSource(path))
    return PartReader(
        source,
        where=str(path),
        expected_attempt=manifest.attempt,
        expected_rank=number,
        expected_index_digest=record.index_digest,
    )


def _target(structure: Structure, own: OwnDocument, where: str) -> Target:
    own.check(structure, where)
    values = decode_values(structure, where)
    for index, value in own.values.items():
        values[index] = value
    return Target(structure, own.all_types(structure), values)


def _check(
    structure: Structure, target: Target, readers: list[PartReader], rank: int, wanted: set[int], where: str
) -> None:
    own = set(np.flatnonzero(structure.per_rank).tolist())
    wanted = wanted - set(structure.aliases)
    shared = [reader.spans[reader.spans["table"] == SHARED_TABLE] for reader in readers]
    check_cover(target.types, wanted - own, shared, where)
    mine = readers[rank].spans
    check_cover(target.types, wanted & own, [mine[mine["table"] != SHARED_TABLE]], f"{where}, part {rank}")


def _read_wanted(reader: PartReader, scatter: Scatter, structure: Structure, *, mine: bool) -> None:
    """Read the chunks of a part that hold wanted leaves; per-rank ones only from the rank's own part."""
    for chunk, pieces in enumerate(chunk_pieces(reader.spans, reader.raw_starts)):
        good = [p for p in pieces if scatter.wants(p.leaf) and (mine or not structure.per_rank[p.leaf])]
        if good:
            scatter.write(good, np.frombuffer(reader.read_chunk(chunk), dtype=np.uint8))


def _select(structure: Structure, patterns: Sequence[str] | None) -> tuple[SavedNode, set[int]]:
    """The part of the tree whose leaf paths match, and the leaf numbers in it."""
    if patterns is None:
        return structure.tree, set(range(len(structure.types)))
    kept: set[int] = set()

    def prune(node: SavedNode, path: tuple[Any, ...]) -> SavedNode | None:
        if not isinstance(node, SavedBranch):
            if not any(fnmatch.fnmatchcase(readable(path), pattern) for pattern in patterns):
                return None
            if isinstance(node, SavedArray):
                kept.add(node.index)
            return node
        inner = [
            (key, prune(child, path if node.kind == "object" else (*path, key)))
            for key, child in zip(node.keys, node.children, strict=True)
        ]
        found = [(key, child) for key, child in inner if child is not None]
        if not found:
            return None
        children = tuple(child for _, child in found)
        whole = len(found) == len(node.children)
        kind = node.kind if whole or node.kind != "namedtuple" else "dict"  # a namedtuple needs all its fields
        return SavedBranch(kind, tuple(key for key, _ in found), children, node.name, node.metadata)

    tree = prune(structure.tree, ())
    if tree is None:
        names = sorted(readable(path) for path, _ in structure.walk())
        raise StructureMismatchError(
            "no leaf of the checkpoint matches the keys asked for",
            expected=f"globs over {len(names)} paths such as {', '.join(names[:4])}",
            found=", ".join(map(repr, patterns)),
            todo="`deeppart show DIR` lists the paths",
        )
    return tree, kept
