"""Reading checkpoints without the job that wrote them: one process, no MPI, nothing imported that a file names."""

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

#: Leaves are read so many bytes at a time, or one by one where they are larger.
BATCH_BYTES = 256 << 20
#: Chunks that are read at a time.
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
        step: which one; None for the newest whose manifest is sound.
        keys: globs over paths (``model``, ``model/*.bias``, ``optimizer/state/0/*``); only the leaves that they cover,
            and the chunks that hold them, are read. None for everything. One that matches a container covers all below
            it, and one that ends in ``/*`` the container before it too. Components of a path are joined by ``/``;
            inside a component ``~`` is written ``~0`` and ``/`` is written ``~1`` (RFC 6901). ``*`` also matches ``/``.
        rank: whose values to take for leaves that each rank saved for itself.
        sign_key_file: file, or files, with the key that the checkpoint must be signed with (``Config.sign_key_file``);
            None: signatures are not checked.
        mmap: map leaves instead of reading them, after their digests were checked. Their memory is the page cache,
            which processes of one machine share; what is changed is copied then, and the file stays. Leaves that were
            compressed, divided between ranks, or unchanged since an earlier step (``incremental``) are read all the
            same. As with ``torch.load(mmap=True)``, mapped leaves cannot be resized, and a device that fails later ends
            the process by SIGBUS.

    Returns:
        The nested state, with containers as saved, objects as what their ``state_dict()`` returned, tensors on the
        CPU, tied where they were tied; subclasses of tensors are dicts of what they are made of. Members of enums and
        objects of dataclasses are :class:`~deeppart.types.SavedMember` and :class:`~deeppart.types.SavedRecord`, those
        of registered types their data, unless their types were registered here, too (:func:`deeppart.register`). With
        ``keys``, containers hold only what matched.

    Raises:
        RestoreError: no such checkpoint.
        FormatError: a file that is needed is damaged.
        SignatureError: or not signed with the key.
        ConfigError: a key file is not used, or given with ``mmap``.
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
    """A container, a leaf or a small value of a checkpoint, as one rank saved it.

    Attributes:
        path: its keys. An object is what its ``state_dict()`` returned.
        node: as it was saved; of an item of a container of small values, the container's.
        own: true of a leaf or value that the rank has saved for itself.
        value: the small value.
        form: what a value or container is all of the data of, as text: ``deque(maxlen=9)``; None if of nothing.
        composite: kind of the tensor that it is a component of: "sparse_coo", "quantized", "jagged", ...; "" of none.
        object: type name of the object of which it is the ``state_dict()`` or the data; "" of none.
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
        """The path, for people."""
        return readable(self.path)

    @property
    def leaf(self) -> int | None:
        """Number of a leaf; None of anything else."""
        return self.node.index if isinstance(self.node, ArrayLeaf) else None

    @property
    def is_empty(self) -> bool:
        """True of a container, not one of small values, in which nothing is."""
        return isinstance(self.node, Branch) and not self.node.children

    @property
    def is_container(self) -> bool:
        """True if it stands for what is below it."""
        return isinstance(self.node, Branch) or container_kind(self.value) is not None

    @property
    def container(self) -> tuple[str, int]:
        """What a container is, for people, and how many items it has."""
        kind, name, size = container_kind(self.value) or "", "", len(self.value or ())
        if isinstance(self.node, Branch):
            kind, name, size = self.node.kind, self.node.name, len(self.node.keys)
        return f"{KIND_NAMES.get(kind, kind)} {name}".rstrip(), size


#: Of a part that is not there.
_NOTHING = RankDocument({}, {})


class OpenCheckpoint:
    """A committed checkpoint whose part files are open, as one of its ranks saved it.

    Attributes:
        step, rank: as given; ANY_PART: what all ranks share (:meth:`as_rank`).
        shared: the structure that the manifest has.
        parts: those that are open, by rank.
        held, global_state: what they have together.
        structure: the nesting of that rank's state.
        target: types and values as that rank has saved them.
        has_own: true if some of it is one rank's, of which other ranks may have saved something else.
    """

    def __init__(
        self, files: ExitStack | None, step: StoredStep, rank: int = 0, problems: list[str] | None = None
    ) -> None:
        """Open all parts.

        Args:
            files: closes them; None: they are closed at once, and no leaf can be read.
            step, rank: which step, as which of its ranks saved it.
            problems: gets a line about each part that cannot be used, which is passed over; None: it is an error.
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
        """How many ranks saved it."""
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
        """The same open files, as another rank saved them; None: what all ranks share, however many parts are open."""
        if rank is not None:
            self._check_rank(rank)
        other = copy.copy(self)
        other._look_as(rank)
        return other

    @property
    def paths(self) -> list[Path]:
        """Of the leaves and values, by number."""
        self._paths = self._paths or self.structure.paths()
        return self._paths

    def is_own(self, number: int) -> bool:
        """True if the rank saved this leaf or value for itself, and other ranks may have had others."""
        structure = self.structure
        if number in structure.divisions:
            return any(self.rank in ranks for ranks in self.held.own_of(number).values())
        if (value := structure.in_parts.get(number)) is not None:
            return value.differs and self.rank in (ANY_PART, *value.contents)
        return bool(structure.per_rank[number])

    def types_of_ranks(self, leaf: int) -> dict[int, LeafType]:
        """The type of a leaf that ranks have saved for themselves, of each that is looked at."""
        return {rank: part.own.types[leaf] for rank, part in self._looked_at() if leaf in part.own.types}

    def values_of_ranks(self, value: int) -> dict[int, Any]:
        """The same of a small value."""
        if (found := self.structure.in_parts.get(value)) is not None:
            return dict(found.contents)
        return {rank: part.own.values[value] for rank, part in self._looked_at() if value in part.own.values}

    def _looked_at(self) -> Iterable[tuple[int, OpenPart]]:
        return self.parts.items() if self.rank == ANY_PART else [(self.rank, self.parts[self.rank])]

    def rows(self, tree: Node | None = None, path: Path = (), *, items: bool = False) -> Iterator[Row]:
        """All of a tree that stands at a path, in its order, containers before what is in them; with ``items``, also
        what is inside of containers of small values.
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
        """The part of the tree that globs cover, and the numbers of the leaves in it.

        Of a value container of which only some items are covered, only these are left among the values of the target.
        """
        return select(self.structure, self.target.values, patterns, self._where)

    def check(self, leaves: set[int]) -> None:
        """See that the parts hold every byte of these leaves exactly once, before any is read."""
        leaves = self._with_owners(leaves) - set(self.structure.aliases)
        refuse(self.held.faults, leaves, self.held.structure, {}, self._where)
        tensors = leaves & self.structure.divisions.keys()
        for part, faults in self._own_faults.items():
            wanted = leaves if part == self.rank else tensors
            refuse(faults, wanted, self._of_ranks[part], self.parts[part].own.types, f"{self._where}, part {part}")

    def read(self, leaves: set[int], *, mmap: bool = False) -> dict[int, Array]:
        """New arrays on the CPU, with every chunk's digest checked; reads no chunk that holds none of these leaves.

        With ``mmap``, leaves that lie in a file as they do in memory are mapped.
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
        """Fill boxes of leaves; reads no chunk that holds nothing of them.

        The digests of all of these chunks are checked before anything is written.
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
        """Part, chunk, and the pieces in it that are wanted, of all chunks that hold any."""
        for part, pieces in self._pieces.items():
            for chunk, held, wants in scatter.chunks(part, pieces):
                yield part, chunk, [held[place] for place in sorted({place for place, _ in wants})]

    def owner_of(self, leaf: int) -> int:
        """The leaf that has the bytes of this one: itself, or the one whose memory it shares."""
        alias = self.structure.aliases.get(leaf)
        return leaf if alias is None else alias.owner

    def tied_to(self, leaf: int) -> str | None:
        """The path of the leaf whose memory a leaf shares; None if it has its own."""
        owner = self.owner_of(leaf)
        return None if owner == leaf else readable(self.paths[owner])

    def batches(self, leaves: Collection[int]) -> Iterator[set[int]]:
        """Leaves to be read together, at most :data:`BATCH_BYTES` of them: those that share memory in one go."""
        families: dict[int, set[int]] = {}
        for leaf in sorted(leaves):
            families.setdefault(self.owner_of(leaf), set()).add(leaf)
        for owners in in_batches(families, lambda owner: self.target.types[owner].nbytes):
            yield set().union(*(families[owner] for owner in owners))

    def repeats(self, leaf: int) -> StateError | None:
        """The refusal of a leaf that is small in the checkpoint because its elements lie at one address, as
        ``expand()`` makes it, and would be large anywhere else; None if it is none.
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
        """Read leaves, and pass over those of which a byte is damaged or missing, and those that only repeat theirs."""
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
        """What an array wants of the parts."""
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
    """Those of some leaves that lie in the file of a part in one piece, as arrays over it, with their digests checked.

    The arrays are writable, as the mapping is private.
    """
    reader, source, spans = part.reader, part.source, part.reader.spans
    if not isinstance(source, FileSource):
        return {}
    chunks, starts = reader.chunks, reader.raw_starts
    ends = chunks["offset"] + chunks["encoded_length"]
    # Those of the file lie one after another. How many before each are encoded, or in a base:
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
    """Leaves in their order, at most :data:`BATCH_BYTES` of them together, or one."""
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
    """What is inside of a container of small values."""
    for key, item in zip(*container_items(value), strict=True):
        yield Row((*path, key), node, own, item)
        if type(item) in CONTAINERS:
            yield from _items(node, item, (*path, key), own)


def select(
    structure: Structure, values: dict[int, Any], patterns: Sequence[str] | None, where: str | None = None
) -> tuple[Node, set[int]]:
    """The part of the tree that the globs cover, and the leaf numbers in it; value containers are cut, too."""
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
        if node.kind in COMPOSITES:  # a tensor is wanted as a whole
            kept.update(numbers_in(node, ArrayLeaf))
            return node
        children = tuple(child for _, child in found)
        whole = len(found) == len(node.children)
        kind = node.kind if whole or node.kind != "namedtuple" else "dict"  # a namedtuple needs all its fields
        form = node.form if node.form is None or node.form.kind != REGISTERED else None  # it needs all of its data
        return replace(node, kind=kind, keys=tuple(key for key, _ in found), children=children, form=form)

    tree = prune(structure.tree, ())
    if tree is None:
        raise _no_match(structure, patterns, where)
    return tree, kept


def _no_match(structure: Structure, patterns: Sequence[str], where: str | None) -> StructureMismatchError:
    """The refusal of globs that cover nothing."""
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
    """A value container of which some items are covered: their paths are those that they would have one by one."""
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
    """A container of a value container, less the items that are not covered; None if that is all."""
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
