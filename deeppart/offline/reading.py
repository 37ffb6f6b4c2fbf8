"""Reads checkpoints without the job that wrote them: one process, no MPI, no imports of names from files."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from deeppart._gc import collection_paused
from deeppart._threads import on_threads
from deeppart.codec import RawCodec
from deeppart.errors import (
    ConfigError,
    DeeppartError,
    FormatError,
    RestoreError,
    StateError,
    StorageError,
    StructureMismatchError,
    one_line,
)
from deeppart.mapped import populate_pages
from deeppart.model import Box
from deeppart.offline.find import Chosen, OpenPart, open_part, structure_of, with_checkpoint
from deeppart.part import FileSource, KeyFiles, read_key_files
from deeppart.recovery import CheckedPart
from deeppart.state.document import RankDocument, Structure, gather_global_state, with_global_state
from deeppart.state.objects import REGISTERED
from deeppart.state.paths import KIND_NAMES, ROOT, Path, covers, may_match_below, nearest_globs, readable
from deeppart.state.pieces import ANY_PART, Fault, Held, LeafPiece, PartPieces, Source, own_faults, refuse
from deeppart.state.restore import (
    LiveBox,
    Scatter,
    Target,
    Wanted,
    build,
    resolve_registered,
    tie,
)
from deeppart.state.tensors import COMPOSITES, SUBCLASS, Array, HostMemory, LeafType, array_over, new_array
from deeppart.state.tree import (
    ArrayLeaf,
    Branch,
    Node,
    ValueLeaf,
    assign,
    container_items,
    container_kind,
    make_container,
    numbers_in,
)
from deeppart.state.values import CONTAINERS
from deeppart.storage import StoredStep

#: Leaves are read in batches of this size; larger leaves one by one.
BATCH_BYTES = 256 << 20
#: Chunks that are read at the same time.
MOST_THREADS = 4


def load(
    path: str | os.PathLike[str],
    step: int | None = None,
    keys: str | Sequence[str] | None = None,
    rank: int = 0,
    sign_key_file: KeyFiles = None,
    mmap: bool = False,
) -> Any:
    """Read a committed checkpoint in one process, onto the CPU.

    Args:
        path: the persistent directory.
        step: number of the step; None for the newest with a sound manifest.
        keys: globs over paths (``model``, ``model/*.bias``, ``optimizer/state/0/*``). Only matching leaves, and the
            chunks with their bytes, are read. None for everything. A glob that matches a container covers everything
            below it, and one that ends in ``/*`` also covers the container itself. Components of a path are joined by
            ``/``; within a component ``~`` is written ``~0`` and ``/`` is written ``~1`` (RFC 6901). ``*`` also matches
            ``/``.
        rank: the rank whose values to return for per-rank leaves.
        sign_key_file: file or files with keys, with one of which the checkpoint must be signed
            (``Config.sign_key_file``); None: signatures are not checked.
        mmap: map leaves instead of reading them, after their digests were checked. Mapped leaves share the page cache
            with other processes; modified pages are copied, and the file does not change. Leaves that were compressed,
            divided between ranks, or unchanged since an earlier step (``incremental``) are read. As with
            ``torch.load(mmap=True)``, mapped leaves cannot be resized, and a device that fails later ends the process
            by SIGBUS.

    Returns:
        The nested state, with containers as saved, the results of ``state_dict()`` for objects, and tensors on the CPU,
        tied as they were saved; tensor subclasses are dicts of their components. Members of enums and objects of
        dataclasses are :class:`~deeppart.types.SavedMember` and :class:`~deeppart.types.SavedRecord`, and objects of
        registered types are their data, unless their types are registered in this process, too
        (:func:`deeppart.register`). With ``keys``, containers only have matching items.

    Raises:
        RestoreError: there is no such checkpoint.
        FormatError: a file that is needed is damaged.
        SignatureError: a file that is needed is not signed with one of the keys.
        ConfigError: a key file cannot be used, or was given together with ``mmap``.
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
    if mmap and signing is not None:
        raise ConfigError(
            "a signed checkpoint cannot be mapped: its files might be changed after the signatures were checked",
            expected="mmap or sign_key_file",
            found="both",
            todo="leave out mmap",
        )

    def use(chosen: Chosen) -> Any:
        chosen.warn()
        return _load(chosen, keys, rank, mmap=mmap)

    return with_checkpoint(FilePath(path), step, use, signing)


def _load(chosen: Chosen, keys: str | Sequence[str] | None, rank: int, *, mmap: bool) -> Any:
    with ExitStack() as files:
        checkpoint = OpenCheckpoint(files, chosen.step, rank)
        tree, leaves = checkpoint.select([keys] if isinstance(keys, str) else keys)
        checkpoint.check(leaves)
        arrays = checkpoint.read(leaves, mmap=mmap)
    with collection_paused():
        tree = resolve_registered(checkpoint.target, tree)
        return build(checkpoint.target, arrays, tree)


@dataclass(frozen=True, slots=True)
class Row:
    """A container, leaf or small value of a checkpoint, as one rank saved it.

    Attributes:
        path: its keys. An object stands for the result of its ``state_dict()``.
        node: the saved node; for an item of a container of small values, that of the container.
        own: true for a per-rank leaf or value.
        value: the small value.
        form: the object of which a value or container is the whole data, as text: ``deque(maxlen=9)``; None if it is
            not the data of an object.
        composite: kind of the tensor of which it is a component: "sparse_coo", "quantized", "jagged", ...; or "".
        object: type name of the object of which it is the ``state_dict()`` or the data; or "".
    """

    path: Path
    node: Node
    own: bool = False
    value: Any = None
    form: str | None = None
    composite: str = ""
    object: str = ""

    @property
    def name(self) -> str:
        """The path as text."""
        return readable(self.path)

    @property
    def leaf(self) -> int | None:
        """Number of the leaf; None if the row is not a leaf."""
        return self.node.index if isinstance(self.node, ArrayLeaf) else None

    @property
    def is_empty(self) -> bool:
        """True for an empty container, but not for a container of small values."""
        return isinstance(self.node, Branch) and not self.node.children

    @property
    def is_container(self) -> bool:
        """True if the row is a container."""
        return isinstance(self.node, Branch) or container_kind(self.value) is not None

    @property
    def container(self) -> tuple[str, int]:
        """Kind of a container as text, and the number of its items."""
        kind, name, size = container_kind(self.value) or "", "", len(self.value or ())
        if isinstance(self.node, Branch):
            kind, name, size = self.node.kind, self.node.name, len(self.node.keys)
        return f"{KIND_NAMES.get(kind, kind)} {name}".rstrip(), size


#: The document of a missing part.
_NOTHING = RankDocument({}, {})


class OpenCheckpoint:
    """A committed checkpoint with open part files, as one of its ranks saved it.

    Attributes:
        step, rank: as given; ANY_PART: what all ranks share (:meth:`as_rank`).
        shared: the structure in the manifest.
        parts: the open parts by rank.
        held, global_state: the pieces and global tensors of these parts.
        structure: the structure of that rank's state.
        target: types and values as that rank has saved them.
        has_own: true if there are per-rank leaves or values.
    """

    def __init__(
        self, files: ExitStack | None, step: StoredStep, rank: int = 0, problems: list[str] | None = None
    ) -> None:
        """Open all parts.

        Args:
            files: closes the parts; None: they are closed at once, and no leaf can be read.
            step, rank: the step, and the rank as which to read it.
            problems: receives a line for each part that cannot be used, which is then skipped; None: raise an error.
        """
        self.step, self._where = step, step.where
        self.shared = shared = structure_of(step)
        self._check_rank(rank)
        self.parts = dict[int, OpenPart]()
        self._of_ranks, self._own_faults = dict[int, Structure](), dict[int, list[Fault]]()
        for number in range(self.world_size):
            where = f"{self._where}, part {number}"
            try:
                with ExitStack() as at_once:
                    part = (files or at_once).enter_context(open_part(step, number))
                structure = part.own.check(shared, where)
                part.check_places(structure, where)
            except (FormatError, StorageError) as error:
                if problems is None:
                    raise
                problems.append(one_line(error))
                continue
            self.parts[number], self._of_ranks[number] = part, structure
            self._own_faults[number] = own_faults(structure, part.own.types, part.reader.spans)
        self._may_share = step.signing is None
        self.held = Held(shared, {number: part.reader.spans for number, part in self.parts.items()})
        own = [self.parts[number].own if number in self.parts else _NOTHING for number in range(self.world_size)]
        self.global_state = gather_global_state(shared, own, self._where)
        if not problems:
            self.global_state.check(shared, self._where)
        self.has_own = bool(
            shared.per_rank.any()
            or any(not self.global_state.has_part(tree) for each in own for tree in each.trees)
            or self.held.own
            or any(value.differs for value in self.global_state.values.values())
        )
        self._pieces = {
            number: PartPieces(part.reader.spans, part.reader.raw_starts) for number, part in self.parts.items()
        }
        if rank in self.parts:
            self._look_as(rank)

    @property
    def world_size(self) -> int:
        """Number of ranks that saved it."""
        return self.step.manifest.attempt.world_size

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            expected = f"a rank below {self.world_size}"
            raise RestoreError(f"no rank {rank} saved this checkpoint", expected=expected, where=self._where)

    def _look_as(self, rank: int | None) -> None:
        self.rank, self._paths = ANY_PART if rank is None else rank, list[Path]()
        structure, own = (self.shared, None) if rank is None else (self._of_ranks[rank], self.parts[rank].own)
        self.structure = with_global_state(structure, self.global_state)
        self.target = Target.of_rank(self.structure, own, rank)

    def as_rank(self, rank: int | None) -> OpenCheckpoint:
        """The same open checkpoint as another rank; None: what all ranks share, even if parts are missing."""
        if rank is not None:
            self._check_rank(rank)
        other = copy.copy(self)
        other._look_as(rank)
        return other

    @property
    def paths(self) -> list[Path]:
        """The paths of the leaves and values, by number."""
        self._paths = self._paths or self.structure.paths()
        return self._paths

    def is_own(self, number: int) -> bool:
        """True if this leaf or value is per rank."""
        structure = self.structure
        if number in structure.divisions:
            return any(self.rank in ranks for ranks in self.held.own_of(number).values())
        if (value := structure.in_parts.get(number)) is not None:
            return value.differs and self.rank in (ANY_PART, *value.contents)
        return bool(structure.per_rank[number])

    def types_of_ranks(self, leaf: int) -> dict[int, LeafType]:
        """Rank -> type of a per-rank leaf, for each rank that is read."""
        return {rank: part.own.types[leaf] for rank, part in self._looked_at() if leaf in part.own.types}

    def values_of_ranks(self, value: int) -> dict[int, Any]:
        """Rank -> per-rank small value, likewise."""
        if (found := self.structure.in_parts.get(value)) is not None:
            return dict(found.contents)
        return {rank: part.own.values[value] for rank, part in self._looked_at() if value in part.own.values}

    def _looked_at(self) -> Iterable[tuple[int, OpenPart]]:
        return self.parts.items() if self.rank == ANY_PART else [(self.rank, self.parts[self.rank])]

    def rows(self, tree: Node | None = None, path: Path = (), *, items: bool = False) -> Iterator[Row]:
        """Yield the rows of a tree at a path in order, containers before their items; with ``items``, also the items of
        containers of small values.
        """
        return self._rows(self.structure.tree if tree is None else tree, path, items, "")

    def _rows(self, node: Node, path: Path, items: bool, composite: str) -> Iterator[Row]:
        form, name = None, ""
        while isinstance(node, Branch) and node.kind == "object":
            form, name, node = (None if node.form is None else str(node.form)), name or node.name, node.children[0]
        if isinstance(node, ArrayLeaf):
            yield Row(path, node, self.is_own(node.index), composite=composite, object=name)
        elif isinstance(node, ValueLeaf):
            value, own = self.target.values[node.index], self.is_own(node.index)
            yield Row(path, node, own, value, form, composite, name)
            if items and container_kind(value) is not None:
                yield from _items(node, value, path, own)
        elif isinstance(node, Branch):
            yield Row(path, node, form=form, composite=composite, object=name)
            kind = node.kind if node.kind in COMPOSITES and node.kind != SUBCLASS else composite
            for key, child in zip(node.keys, node.children, strict=True):
                yield from self._rows(child, (*path, key), items, kind)

    def select(self, patterns: Sequence[str] | None) -> tuple[Node, set[int]]:
        """The part of the tree that globs match, and the numbers of the leaves in it.

        If only some items of a container of small values match, the others are removed from the values of the target.
        """
        return select(self.structure, self.target.values, patterns, self._where)

    def check(self, leaves: set[int]) -> None:
        """Check, before reading, that the parts have every byte of these leaves exactly once."""
        leaves = self._with_owners(leaves) - set(self.structure.aliases)
        refuse(self.held.faults, leaves, self.held.structure, {}, self._where)
        tensors = leaves & self.structure.divisions.keys()
        for part, faults in self._own_faults.items():
            wanted = leaves if part == self.rank else tensors
            refuse(faults, wanted, self._of_ranks[part], self.parts[part].own.types, f"{self._where}, part {part}")

    def read(self, leaves: set[int], *, mmap: bool = False) -> dict[int, Array]:
        """Read leaves into new arrays on the CPU. Reads only chunks with their bytes, and checks their digests.

        With ``mmap``, leaves that are contiguous and raw in a file are mapped.
        """
        self.target.dropped = frozenset(self.structure.types.keys() - self._with_owners(leaves))
        mapped = self._mapped() if mmap else {}
        types = self.target.types
        arrays = {leaf: new_array(types[leaf]) for leaf in self.target.numbers() if leaf not in mapped}
        scatter = Scatter(
            each for leaf, array in arrays.items() for each in self._wanted(leaf, LiveBox.whole(array), f"leaf {leaf}")
        )

        def bring(found: tuple[int, int, list[LeafPiece]]) -> None:
            part, chunk, pieces = found
            reader = self.parts[part].reader
            scatter.bring(
                part,
                pieces,
                int(reader.chunks["raw_length"][chunk]),
                lambda: np.frombuffer(reader.read_chunk(chunk), dtype=np.uint8),
                lambda into: reader.read_into(chunk, into.data),
            )

        on_threads(bring, self._holding(scatter), _threads(), "deeppart-load")
        arrays |= mapped
        tie(self.target, arrays)
        return arrays

    def _mapped(self) -> dict[int, Array]:
        """The leaves of the target that can be mapped."""
        structure, found = self.structure, dict[int, Array]()
        kinds = {leaf: self.target.types[leaf] for leaf in self.target.numbers() if leaf not in structure.divisions}
        for number, part in self.parts.items():
            here = {leaf: kind for leaf, kind in kinds.items() if number == self.rank or not structure.per_rank[leaf]}
            found |= _map_leaves(part, self._pieces[number], here)
        return found

    def read_boxes(self, wanted: Mapping[int, Sequence[LiveBox]]) -> None:
        """Fill boxes of leaves. Reads only chunks with their bytes, all of whose digests are checked before anything is
        written.
        """
        self.check(set(wanted))
        views = {leaf for leaf in wanted if leaf in self.structure.aliases}
        scatter = Scatter(
            each
            for leaf, boxes in wanted.items()
            if leaf not in views
            for live in boxes
            for each in self._wanted(leaf, live, readable(self.paths[leaf]))
        )
        chosen: dict[int, list[int]] = {}
        for part, chunk, _ in self._holding(scatter):
            chosen.setdefault(part, []).append(chunk)
        checked: dict[int, CheckedPart] = {}
        for part, chunks in chosen.items():
            opened = self.parts[part]
            checked[part] = CheckedPart(opened.reader, opened.source, may_share=self._may_share)
            checked[part].check(np.isin(np.arange(len(opened.reader.chunks)), chunks), _threads())
        arrays = self.read(views) if views else {}
        for leaf in views:
            for live in wanted[leaf]:
                assign(live.array, arrays[leaf][live.box.slices()])
        for part, chunk, pieces in self._holding(scatter):
            source, nbytes = checked[part], int(checked[part].reader.chunks["raw_length"][chunk])
            scatter.bring(part, pieces, nbytes, partial(source.data, chunk), partial(source.read_into, chunk))

    def _holding(self, scatter: Scatter) -> Iterator[tuple[int, int, list[LeafPiece]]]:
        """Yield (part, chunk, wanted pieces in it) for all chunks with wanted pieces."""
        for part, pieces in self._pieces.items():
            for chunk, held, wants in scatter.chunks(part, pieces):
                yield part, chunk, [held[place] for place in sorted({place for place, _ in wants})]

    def owner_of(self, leaf: int) -> int:
        """The leaf with the bytes of this one: itself, or the one whose memory it shares."""
        alias = self.structure.aliases.get(leaf)
        return leaf if alias is None else alias.owner

    def tied_to(self, leaf: int) -> str | None:
        """The path of the leaf whose memory a leaf shares, or None."""
        owner = self.owner_of(leaf)
        return None if owner == leaf else readable(self.paths[owner])

    def batches(self, leaves: Collection[int]) -> Iterator[set[int]]:
        """Batches of leaves of at most :data:`BATCH_BYTES`; leaves that share memory are in one batch."""
        families: dict[int, set[int]] = {}
        for leaf in sorted(leaves):
            families.setdefault(self.owner_of(leaf), set()).add(leaf)
        for owners in in_batches(families, lambda owner: self.target.types[owner].nbytes):
            yield set().union(*(families[owner] for owner in owners))

    def repeats(self, leaf: int) -> StateError | None:
        """The error for a leaf whose elements share addresses, as after ``expand()``, so that it is small in the
        checkpoint but would be large elsewhere; None for other leaves.
        """
        types = self.target.types
        nbytes, stored = types[leaf].nbytes, types[self.owner_of(leaf)].nbytes
        if nbytes <= max(stored, BATCH_BYTES):
            return None
        return StateError(
            "a leaf repeats its few bytes, as expand() makes it, and would be too large by itself",
            expected=f"at most {BATCH_BYTES} bytes",
            found=f"{nbytes} bytes of {types[leaf]}, of which {stored} are stored",
            where=f"path {readable(self.paths[leaf])}",
            todo="name the other leaves as KEYS",
        )

    def read_sound(self, leaves: set[int]) -> tuple[dict[int, Array], dict[int, DeeppartError]]:
        """Read leaves, without those with damaged or missing bytes, and those of :meth:`repeats`: these have errors."""
        refused = {leaf: error for leaf in sorted(leaves) if (error := self.repeats(leaf)) is not None}
        arrays, damaged = self._read_sound(leaves - refused.keys())
        return arrays, {**refused, **damaged}

    def _read_sound(self, leaves: set[int]) -> tuple[dict[int, Array], dict[int, DeeppartError]]:
        try:
            self.check(leaves)
            arrays = self.read(leaves)
        except (FormatError, StorageError) as error:
            if isinstance(error, StorageError) and error.errno == errno.ENOENT and self.step.is_retired():
                raise
            if len(leaves) == 1:
                return {}, dict.fromkeys(leaves, error)
        else:
            return {leaf: arrays[leaf] for leaf in leaves}, {}
        found: dict[int, Array] = {}
        refused: dict[int, DeeppartError] = {}
        for leaf in sorted(leaves):
            read, errors = self._read_sound({leaf})
            found |= read
            refused |= errors
        return found, refused

    def _wanted(self, leaf: int, live: LiveBox, name: str) -> Iterator[Wanted]:
        """The bytes of the parts that go into an array."""
        kind = self.target.types[leaf]
        part = self.rank if self.structure.per_rank[leaf] else ANY_PART
        sources: Iterable[Source] = (Source(part, leaf, 0, Box.whole(kind.shape)),)
        if leaf in self.structure.divisions:
            sources = self.held.sources(leaf, live.box, self.rank)
        return (Wanted(source, live, kind.itemsize, name) for source in sources)

    def _with_owners(self, leaves: set[int]) -> set[int]:
        aliases = self.structure.aliases
        return leaves | {aliases[leaf].owner for leaf in leaves if leaf in aliases}


def _map_leaves(part: OpenPart, pieces: PartPieces, kinds: Mapping[int, LeafType]) -> dict[int, Array]:
    """Map those of some leaves that are contiguous in a part file, after checking their digests.

    The arrays are writable, since the mapping is private.
    """
    reader, source, spans = part.reader, part.source, part.reader.spans
    if not isinstance(source, FileSource):
        return {}
    chunks, starts = reader.chunks, reader.raw_starts
    ends = chunks["offset"] + chunks["encoded_length"]
    # Raw chunks of this file are contiguous. For each chunk, the number of earlier ones that are encoded or in a base:
    others = np.append(0, np.cumsum((chunks["codec"] != RawCodec.codec_id) | (chunks["base"] != 0)))
    rows = np.flatnonzero(np.isin(spans["leaf"], [*kinds]))
    begins, lengths = spans["raw_offset"][rows], spans["length"][rows]
    first, last = np.searchsorted(starts, begins, "right") - 1, np.searchsorted(starts, begins + lengths, "left") - 1
    offsets = chunks["offset"][first] + begins - starts[first]
    types = [kinds[leaf] for leaf in spans["leaf"][rows].tolist()]
    lies = others[first] == others[last + 1]
    lies &= lengths == np.array([kind.nbytes for kind in types], dtype=np.uint64)
    lies &= offsets % np.array([kind.itemsize for kind in types], dtype=np.uint64) == 0
    if not lies.any():
        return {}
    is_mapped = np.zeros(len(spans), dtype=np.bool_)
    is_mapped[rows[lies]] = True
    needed = np.flatnonzero(pieces.chunks_with(is_mapped))
    origin = int(chunks["offset"][needed].min())
    memory = np.frombuffer(source.mapped(origin, int(ends[needed].max())), dtype=np.uint8)

    def check(chunk: int) -> None:
        held = memory[int(chunks["offset"][chunk]) - origin : int(ends[chunk]) - origin]
        populate_pages(held, source.path)
        reader.check_chunk(chunk, held.data)

    on_threads(check, needed.tolist(), _threads(), "deeppart-load")
    found: dict[int, Array] = {}
    for row in np.flatnonzero(lies).tolist():
        octets = np.asarray(HostMemory(memory.ctypes.data + int(offsets[row]) - origin, types[row].nbytes, memory))
        found[int(spans["leaf"][rows[row]])] = array_over(octets, types[row])
    return found


def _threads() -> int:
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


def in_batches(leaves: Iterable[int], nbytes: Callable[[int], int]) -> Iterator[list[int]]:
    """Batches of leaves in order, of at most :data:`BATCH_BYTES` or one leaf."""
    batch, room = list[int](), BATCH_BYTES
    for leaf in leaves:
        if batch and room < nbytes(leaf):
            yield batch
            batch, room = [], BATCH_BYTES
        batch.append(leaf)
        room -= nbytes(leaf)
    if batch:
        yield batch


def _items(node: Node, value: Any, path: Path, own: bool) -> Iterator[Row]:
    """The rows of the items of a container of small values."""
    for key, item in zip(*container_items(value), strict=True):
        yield Row((*path, key), node, own, item)
        if type(item) in CONTAINERS:
            yield from _items(node, item, (*path, key), own)


def select(
    structure: Structure, values: dict[int, Any], patterns: Sequence[str] | None, where: str | None = None
) -> tuple[Node, set[int]]:
    """The part of the tree that the globs match, and the leaf numbers in it; containers of small values are reduced."""
    if patterns is None:
        return structure.tree, numbers_in(structure.tree, ArrayLeaf)
    kept: set[int] = set()

    def prune(node: Node, path: tuple[Any, ...]) -> Node | None:
        text = readable(path)
        container = not isinstance(node, ArrayLeaf)
        if (path or not isinstance(node, Branch)) and covers(text, patterns, container=container):
            kept.update(numbers_in(node, ArrayLeaf))
            return node
        if not isinstance(node, Branch):
            return _select_items(node, values, text, patterns) if isinstance(node, ValueLeaf) else None
        pruned = [prune(child, inner) for inner, child in node.items(path)]
        found = [(key, child) for key, child in zip(node.keys, pruned, strict=True) if child is not None]
        if not found:
            return None
        if node.kind in COMPOSITES:  # a tensor is only selected as a whole
            kept.update(numbers_in(node, ArrayLeaf))
            return node
        children = tuple(child for _, child in found)
        whole = len(found) == len(node.children)
        kind = node.kind if whole or node.kind != "namedtuple" else "dict"  # a namedtuple needs all fields
        form = node.form if node.form is None or node.form.kind != REGISTERED else None  # these objects need all data
        return replace(node, kind=kind, keys=tuple(key for key, _ in found), children=children, form=form)

    tree = prune(structure.tree, ())
    if tree is None:
        raise _no_match(structure, patterns, where)
    return tree, kept


def _no_match(structure: Structure, patterns: Sequence[str], where: str | None) -> StructureMismatchError:
    """The error for globs that match nothing."""
    names = sorted(readable(path) for path, _ in structure.walk())
    near = dict.fromkeys(other for pattern in patterns for other in nearest_globs(pattern, names))
    return StructureMismatchError(
        "no leaf of the checkpoint matches the keys asked for",
        expected=f"globs over {len(names)} paths such as {', '.join(near or names[:4])}",
        found=", ".join(map(repr, patterns)),
        where=where,
        todo="`deeppart show DIR` lists the paths",
    )


def _select_items(node: ValueLeaf, values: dict[int, Any], path: str, patterns: Sequence[str]) -> ValueLeaf | None:
    """Reduce a container of small values to the items whose paths match; None if none do."""
    value = values[node.index]
    beneath = [pattern for pattern in patterns if may_match_below(path, pattern)]
    if container_kind(value) is None or not beneath:
        return None
    chosen = _choose(value, "" if path == ROOT else f"{path}/", beneath)
    if chosen is None:
        return None
    values[node.index] = chosen
    return node


def _choose(value: Any, prefix: str, patterns: Sequence[str]) -> Any:
    """A nested container without items that do not match; None if none match."""
    found = []
    for key, item in zip(*container_items(value), strict=True):
        path = prefix + readable((key,))
        if covers(path, patterns):
            found.append((key, item))
        elif type(item) in CONTAINERS:
            inner = _choose(item, f"{path}/", patterns)
            if inner is not None:
                found.append((key, inner))
    if not found:
        return None
    return make_container(container_kind(value) or "", [key for key, _ in found], [item for _, item in found])
