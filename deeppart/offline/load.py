"""Reading checkpoints without the job that wrote them: one process, no MPI, nothing imported that a file names."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from deeppart import access
from deeppart._gc import collection_paused
from deeppart.config.arguments import check_step
from deeppart.errors import (
    DeeppartWarning,
    FormatError,
    RestoreError,
    StorageError,
    StructureMismatchError,
    warn_caller,
)
from deeppart.model import Manifest
from deeppart.part import SHARED_TABLE, FileSource, PartReader, Signing
from deeppart.recovery.suspects import suspect_lines, warn_suspect
from deeppart.state.columns import CONTAINERS
from deeppart.state.document import OwnDocument, decode_meta
from deeppart.state.flatten import ROOT, readable
from deeppart.state.leaves import Array
from deeppart.state.merge import build, tie
from deeppart.state.patterns import covers, may_match_below
from deeppart.state.runs import make_run, run_items, run_kind
from deeppart.state.scatter import Piece, Scatter, check_cover, check_places, chunk_pieces
from deeppart.state.structure import SavedArray, SavedBranch, SavedNode, SavedValue, Structure, decode_structure
from deeppart.state.target import Target, decode_values
from deeppart.storage.key_files import KeyFiles, read_key_files
from deeppart.storage.persistent import CommittedStep, committed_steps, read_manifest, read_manifests, unusable
from deeppart.storage.recognizing import recognize
from deeppart.storage.retired import MOST_LOOKS, step_is_retired
from deeppart.storage.steps import list_steps

T = TypeVar("T")


def load(
    path: str | os.PathLike[str],
    step: int | None = None,
    keys: str | Sequence[str] | None = None,
    rank: int = 0,
    sign_key_file: KeyFiles = None,
) -> Any:
    """Read a committed checkpoint in one process, onto the CPU.

    Args:
        path: the persistent directory.
        step: which one; None for the newest whose manifest is sound.
        keys: globs over paths (``model``, ``model/*.bias``, ``optimizer/state/0/*``); only the leaves that they cover,
            and the chunks that hold them, are read. None for everything. One that matches a container covers all below
            it, and one that ends in ``/*`` the container before it too. Components of a path are joined by ``/``;
            inside a component ``~`` is written ``~0`` and ``/`` is written ``~1`` (RFC 6901). ``*`` also matches ``/``.
        rank: whose values to take for leaves that each rank saved for itself.
        sign_key_file: file, or files, with the key that the checkpoint must be signed with (``Config.sign_key_file``);
            None: signatures are not checked.

    Returns:
        The nested state, with containers as saved, objects as what their ``state_dict()`` returned, tensors on the
        CPU, tied where they were tied. With ``keys``, containers hold only what matched.

    Raises:
        RestoreError: no such checkpoint.
        FormatError: a file that is needed is damaged.
        SignatureError: or not signed with the key.
        ConfigError: a key file is not used.
        StructureMismatchError: ``keys`` match nothing.
        StorageError: a file cannot be read.

    Example:
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"epoch": 1, "best": {"loss": 0.5}}, step=100)
        >>> deeppart.load("ckpt", keys="best/*")
        {'best': {'loss': 0.5}}
    """
    signing = read_key_files(sign_key_file)

    def use(chosen: Chosen) -> Any:
        chosen.tell()
        return _load(chosen, keys, rank, signing)

    return with_checkpoint(Path(path), step, use, signing)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The committed step that is read.

    Attributes:
        directory, manifest: of the step.
        passed_over: lines about newer steps that cannot be used.
        suspect: lines about leaves that ranks may not have held alike.
    """

    directory: Path
    manifest: Manifest
    passed_over: tuple[str, ...]
    suspect: tuple[str, ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that whoever reads it should know."""
        return self.passed_over + self.suspect

    def tell(self) -> None:
        """Warn the caller of it."""
        step = self.manifest.attempt.step
        if self.passed_over:
            warn_caller(f"step {step} is read; {'; '.join(self.passed_over)}", DeeppartWarning)
        warn_suspect(step, self.suspect)


def with_checkpoint(root: Path, step: int | None, use: Callable[[Chosen], T], signing: Signing | None) -> T:
    """Do something with a committed step; with the next newest, if the newest was asked for and a job removes it.

    Args:
        root: the persistent directory.
        step: which one; None for the newest whose manifest is sound.
        use: gets the step; may be called again, with another one.
        signing: what the manifest must be signed with; None: not checked.

    Raises:
        RestoreError: no such checkpoint.
        FormatError: its manifest is damaged.
        StorageError: from ``use``.
    """
    step = None if step is None else check_step(step, "load(path, step)")
    with access.guarded(root, access.READING):
        return _with_checkpoint(root, step, use, signing)


def _with_checkpoint(root: Path, step: int | None, use: Callable[[Chosen], T], signing: Signing | None) -> T:
    for look in range(MOST_LOOKS):
        found, passed_over = find_step(root, step, signing)
        suspect = suspect_lines(root, found.manifest.attempt)
        try:
            return use(Chosen(found.directory, found.manifest, passed_over, tuple(suspect)))
        except StorageError as error:
            # a job that is running may have committed the next step and removed this one
            retired = error.errno == errno.ENOENT and step_is_retired(found.directory)
            if step is not None or not retired or look == MOST_LOOKS - 1:
                raise
    raise AssertionError("the last look returns or raises")


def _load(chosen: Chosen, keys: str | Sequence[str] | None, rank: int, signing: Signing | None) -> Any:
    with ExitStack() as files:
        checkpoint = OpenCheckpoint(files, chosen.directory, chosen.manifest, rank, signing=signing)
        tree, leaves = checkpoint.select([keys] if isinstance(keys, str) else keys)
        checkpoint.check(leaves)
        arrays = checkpoint.read(leaves)
    with collection_paused():
        return build(checkpoint.target, arrays, tree)


class OpenCheckpoint:
    """A committed checkpoint whose part files are open.

    Args:
        files: closes them.
        directory: of the step.
        manifest: of the step.
        rank: whose per-rank leaves and values are meant.
        signing: what the parts must be signed with; None: not checked.

    Attributes:
        manifest, rank: as given.
        structure: the state's nesting.
        target: types and values as that rank has saved them.

    Raises:
        RestoreError: no such rank.
        FormatError: a part's header, footer or index is damaged.
        StorageError: a file cannot be read.
    """

    def __init__(
        self, files: ExitStack, directory: Path, manifest: Manifest, rank: int = 0, *, signing: Signing | None
    ) -> None:
        self.manifest, self.rank, self._where = manifest, rank, str(directory)
        self.structure = decode_structure(manifest.structure, self._where)
        if not 0 <= rank < manifest.attempt.world_size:
            expected = f"a rank below {manifest.attempt.world_size}"
            raise RestoreError(f"no rank {rank} saved this checkpoint", expected=expected, where=self._where)
        self._readers = [
            _open_part(files, directory, manifest, number, signing) for number in range(manifest.attempt.world_size)
        ]
        own = [
            decode_meta(reader.meta, f"{self._where}, part {number}", with_structure=False)
            for number, reader in enumerate(self._readers)
        ]
        shared = self.structure
        for number, reader in enumerate(self._readers):
            where = f"{self._where}, part {number}"
            own[number].check(shared, where)
            places = reader.spans, reader.raw_starts, reader.marked_per_rank
            check_places(own[number].complete(shared, where), own[number].types, *places, where)
        self.structure = own[rank].complete(shared, self._where)
        self.target = _target(self.structure, own[rank], self._where)
        self._pieces = [chunk_pieces(reader.spans, reader.raw_starts) for reader in self._readers]
        self._chunks = [_chunks_of_leaves(chunks) for chunks in self._pieces]

    def select(self, patterns: Sequence[str] | None) -> tuple[SavedNode, set[int]]:
        """The part of the tree that globs cover, and the numbers of the leaves in it.

        Raises:
            StructureMismatchError: nothing matches.
        """
        return _select(self.structure, self.target.values, patterns)

    def check(self, leaves: set[int]) -> None:
        """See that the parts hold every byte of these leaves exactly once, before any is read.

        Raises:
            CorruptFileError: they do not.
        """
        leaves = self._with_owners(leaves) - set(self.structure.aliases)
        own = set(np.flatnonzero(self.structure.per_rank).tolist())
        shared = [reader.spans[reader.spans["table"] == SHARED_TABLE] for reader in self._readers]
        check_cover(self.target.types, leaves - own, shared, self._where)
        mine = self._readers[self.rank].spans
        mine = mine[mine["table"] != SHARED_TABLE]
        check_cover(self.target.types, leaves & own, [mine], f"{self._where}, part {self.rank}")

    def read(self, leaves: set[int]) -> dict[int, Array]:
        """New arrays on the CPU, with every chunk's digest checked; reads no chunk that holds none of these leaves.

        Returns:
            Leaf number -> tensor or array; with those whose memory one of them shares, as views of these.

        Raises:
            FormatError: a chunk is damaged.
            StorageError: a file cannot be read.
        """
        self.target.dropped = frozenset(set(range(len(self.structure.types))) - self._with_owners(leaves))
        arrays = self.target.arrays()
        scatter = Scatter(arrays)
        per_rank = self.structure.per_rank
        for number, reader in enumerate(self._readers):
            mine = {leaf for leaf in arrays if number == self.rank or not per_rank[leaf]}
            for chunk in sorted({chunk for leaf in mine for chunk in self._chunks[number].get(leaf, ())}):
                good = [piece for piece in self._pieces[number][chunk] if piece.leaf in mine]
                scatter.write(good, np.frombuffer(reader.read_chunk(chunk), dtype=np.uint8))
        tie(self.target, arrays)
        return arrays

    def _with_owners(self, leaves: set[int]) -> set[int]:
        aliases = self.structure.aliases
        return leaves | {aliases[leaf].owner for leaf in leaves if leaf in aliases}


def _chunks_of_leaves(pieces: list[list[Piece]]) -> dict[int, list[int]]:
    chunks: dict[int, list[int]] = {}
    for chunk, held in enumerate(pieces):
        for piece in held:
            chunks.setdefault(piece.leaf, []).append(chunk)
    return chunks


def find_step(root: Path, step: int | None, signing: Signing | None) -> tuple[CommittedStep, tuple[str, ...]]:
    """A committed step, or the newest that has a sound manifest. Of several commits of one step, the last.

    Returns:
        The step, and a line about each newer one that cannot be used, where the newest was asked for.

    Args:
        signing: what the manifest must be signed with; None: not checked.

    Raises:
        RestoreError: there is none; the reasons are listed.
        FormatError, StorageError: the step asked for has a damaged manifest.
    """
    if not root.is_dir():
        _check_place(root)
        raise _nothing(root, "there is no such checkpoint directory", [])
    if step is not None:
        return _find_exactly(root, step, signing), ()
    for _ in range(MOST_LOOKS):
        found, problems = read_manifests(root, signing)
        if found:
            newer = {key: why for key, why in unusable(problems).items() if key.step > found[-1].key.step}
            return found[-1], tuple(
                f"step {key.step} is newer, and cannot be used: {why}" for key, why in newer.items()
            )
        if list_steps(root).keys() == problems.keys():  # otherwise a running job has moved on meanwhile
            break
    _check_place(root)
    reasons = "; ".join(f"step {key.step}: {reason}" for key, reason in sorted(problems.items()))
    raise _nothing(root, "there is no committed checkpoint", [], reasons or "no step directory")


def _check_place(root: Path) -> None:
    """Where there is nothing to load: say what was given instead of a checkpoint directory."""
    mistaken = recognize(root)
    if mistaken is not None:
        raise RestoreError(mistaken.what, where=str(root.absolute()), todo=mistaken.todo)


def _find_exactly(root: Path, step: int, signing: Signing | None) -> CommittedStep:
    found: list[CommittedStep] = []
    refusal: FormatError | StorageError | None = None
    for key, directory in list_steps(root).items():
        if key.step == step:
            try:
                found.append(CommittedStep(key, directory, read_manifest(root, key, signing)))
            except FileNotFoundError:
                continue
            except (FormatError, StorageError) as error:
                refusal = error
    if found:
        return max(found, key=lambda each: each.order)
    if refusal is not None:
        raise refusal
    _check_place(root)
    committed = sorted({key.step for key in committed_steps(root)})
    raise _nothing(root, f"step {step} is not a committed checkpoint", committed)


def _nothing(root: Path, summary: str, committed: list[int], found: str | None = None) -> RestoreError:
    return RestoreError(
        summary,
        found=found or f"committed steps: {committed[-8:] if committed else 'none'}",
        where=str(root.absolute()),
        todo="`deeppart ls DIR` shows what is there",
    )


def _open_part(
    files: ExitStack, directory: Path, manifest: Manifest, number: int, signing: Signing | None
) -> PartReader:
    record = manifest.parts[number]
    path = directory / record.file
    source = files.enter_context(FileSource(path))
    return PartReader(
        source,
        where=str(path),
        expected_attempt=manifest.attempt,
        expected_rank=number,
        expected_index_digest=record.index_digest,
        signing=signing,
    )


def _target(structure: Structure, own: OwnDocument, where: str) -> Target:
    values = decode_values(structure, where)
    for index, value in own.values.items():
        values[index] = value
    return Target(structure, own.all_types(structure), values)


def _select(structure: Structure, values: list[Any], patterns: Sequence[str] | None) -> tuple[SavedNode, set[int]]:
    """The part of the tree that the globs cover, and the leaf numbers in it; cuts runs to the items that they cover."""
    if patterns is None:
        return structure.tree, set(range(len(structure.types)))
    kept: set[int] = set()

    def prune(node: SavedNode, path: tuple[Any, ...]) -> SavedNode | None:
        text = readable(path)
        container = not isinstance(node, SavedArray)
        if (path or not isinstance(node, SavedBranch)) and covers(text, patterns, container=container):
            kept.update(_arrays(node))
            return node
        if not isinstance(node, SavedBranch):
            return _select_items(node, values, text, patterns) if isinstance(node, SavedValue) else None
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


def _arrays(node: SavedNode) -> Iterator[int]:
    """Numbers of the leaves in a tree."""
    if isinstance(node, SavedArray):
        yield node.index
    elif isinstance(node, SavedBranch):
        for child in node.children:
            yield from _arrays(child)


def _select_items(node: SavedValue, values: list[Any], path: str, patterns: Sequence[str]) -> SavedValue | None:
    """A run of which some items are covered: their paths are those that they would have one by one."""
    value = values[node.index]
    beneath = [pattern for pattern in patterns if may_match_below(path, pattern)]
    if run_kind(value) is None or not beneath:
        return None
    chosen = _choose(value, "" if path == ROOT else f"{path}/", beneath)
    if chosen is None:
        return None
    values[node.index] = chosen
    return node


def _choose(value: Any, prefix: str, patterns: Sequence[str]) -> Any:
    """A container of a run, less the items that are not covered; None if that is all."""
    found = []
    for key, item in zip(*run_items(value), strict=True):
        path = prefix + readable((key,))
        if covers(path, patterns):
            found.append((key, item))
        elif type(item) in CONTAINERS:
            inner = _choose(item, f"{path}/", patterns)
            if inner is not None:
                found.append((key, inner))
    if not found:
        return None
    return make_run(run_kind(value) or "", [key for key, _ in found], [item for _, item in found])
