"""A step whose leaves are read one by one, in boxes: of the session of a job, or of a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deeppart import access
from deeppart.checkpointer import Checkpointer
from deeppart.errors import DeeppartError
from deeppart.model import Box
from deeppart.offline import Chosen, OpenCheckpoint, find_step, target_of, with_checkpoint
from deeppart.part import KeyFiles, read_key_files
from deeppart.recovery import SavedStep
from deeppart.state.document import with_global_state
from deeppart.state.restore import DROPPED, LiveBox, Target, build, is_composite, resolve_registered
from deeppart.state.tensors import SUBCLASS, is_plain
from deeppart.state.tree import DICTS, ArrayLeaf, Branch, LeafNumbers, Node, ValueLeaf
from deeppart.storage import PosixStore, committed_steps


@dataclass(frozen=True, slots=True)
class Stored:
    """A stand-in in a step for an item of its state whose bytes are not loaded.

    Attributes:
        leaf: number of the leaf, if it is a tensor that is one; None of a numpy array, of a tensor that is made of
            others, and of an object or a tuple with tensors in it.
        dtype, shape: of the tensor that it is; None and () of anything else.
        is_own: one rank's, of which others may have saved something else.
        owner: number of the leaf that it shares its elements with; None if there is none.
        is_view: true if it is only a part of the owner, or has its elements in another order.
        is_tensor: true of any tensor.
        subclass: name of the class of the first tensor of a subclass in it; "" if there is none.
    """

    leaf: int | None = None
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    is_own: bool = False
    owner: int | None = None
    is_view: bool = False
    is_tensor: bool = False
    subclass: str = ""


class Step:
    """A step, as one rank sees it.

    Attributes:
        number: of the step.
        where: it is, for messages.
        rank: whose part is seen of a step of a directory.
        state: the nested state: its dicts, lists and small values; for a leaf a record of what it is, and so for what
            only leaves can make: tuples, objects and such that have leaves in them.

    Example:
        >>> import deeppart, torch
        >>> from deeppart.extension import Box, Step
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"w": torch.arange(6.0), "epoch": 3}, step=100)
        >>> step = Step.of_directory("ckpt")
        >>> row = torch.zeros(2)
        >>> step.read({step.state["w"].leaf: [(Box((4,), (2,)), row)]})
        >>> step.number, step.state["epoch"], row.tolist()
        (100, 3, [4.0, 5.0])
    """

    def __init__(self, number: int, target: Target, where: str) -> None:
        self.number, self.where, self.rank = number, where, 0
        self._target = target
        self.state = self._standing(resolve_registered(target, target.structure.tree))
        #: Of a directory: what to open, and as which rank.
        self._directory: tuple[Chosen, int] | None = None

    @classmethod
    def of_session(cls, checkpointer: Checkpointer, number: int | None = None) -> Step | None:
        """The step that ``restore()`` would restore here, without its bytes (collective); None if there is none.

        Its leaves are restored by ``checkpointer.restore(live, step.number)``.

        Raises:
            RestoreError, CommError: as of :meth:`deeppart.Checkpointer.restore`.
        """
        found = checkpointer._preview(number)
        if found is None:
            return None
        saved = found.saved
        return cls(saved.attempt.step, _target(saved, checkpointer.rank), f"step {saved.attempt.step}")

    @classmethod
    def of_directory(
        cls,
        directory: str | os.PathLike[str],
        number: int | None = None,
        *,
        rank: int = 0,
        sign_key_file: KeyFiles = None,
    ) -> Step:
        """A committed step of a persistent directory, or the newest one whose manifest is sound.

        Args:
            directory: the persistent directory.
            number: of the step.
            rank: whose part to see; the last one where there were fewer.
            sign_key_file: as of :func:`deeppart.load`.

        Raises:
            RestoreError, FormatError, StorageError: as of :func:`deeppart.load`.
        """
        root, signing = Path(directory), read_key_files(sign_key_file)

        def use(chosen: Chosen) -> Step:
            with ExitStack() as files:
                opened = _open(files, chosen, rank)
            target = opened.target
            made = cls(chosen.step.key.step, target, chosen.step.where)
            made._directory, made.rank = (chosen, rank), opened.rank
            return made

        found = with_checkpoint(root, number, use, signing)
        assert found._directory is not None
        found._directory[0].warn()
        return found

    @staticmethod
    def newest(source: Checkpointer | str | os.PathLike[str], sign_key_file: KeyFiles = None) -> int | None:
        """The default step; None if there is no checkpoint (of a session, collective)."""
        if isinstance(source, Checkpointer):
            found = source._preview(None)
            return None if found is None else found.saved.attempt.step
        root = access.below_root(Path(source))
        if not committed_steps(PosixStore(root)):
            return None
        return find_step(root, None, read_key_files(sign_key_file)).step.key.step

    @staticmethod
    def check_keys(sign_key_file: KeyFiles) -> None:
        """Raise ConfigError if key files cannot be used."""
        read_key_files(sign_key_file)

    @staticmethod
    def committed(directory: str | os.PathLike[str]) -> list[int]:
        """The numbers of the committed steps of a persistent directory, ascending."""
        return sorted({key.step for key in committed_steps(PosixStore(Path(directory)))})

    @staticmethod
    def agree(checkpointer: Checkpointer, error: DeeppartError | None) -> None:
        """Raise this rank's error, if there is one, and an error that quotes it on the other ranks (collective)."""
        checkpointer._raise_together(error)

    def read(self, wanted: Mapping[int, Sequence[tuple[Box, torch.Tensor]]]) -> None:
        """Fill tensors with boxes of leaves, of a step of a directory.

        Only the chunks with requested bytes are read, and all of them are checked before anything is written.

        Args:
            wanted: number of a leaf -> boxes, each with a tensor of its sizes; of another dtype, it is converted.
        """
        assert self._directory is not None, "a step of a session is read by restore()"
        chosen, rank = self._directory
        later: list[tuple[torch.Tensor, torch.Tensor]] = []
        boxes: dict[int, list[LiveBox]] = {}
        for leaf, parts in wanted.items():
            dtype = self._target.types[leaf].torch_dtype
            for box, into in parts:
                memory = into
                if into.dtype != dtype or not is_plain(into):
                    memory = torch.empty(box.sizes, dtype=dtype)
                    later.append((into, memory))
                boxes.setdefault(leaf, []).append(LiveBox(memory, box))
        with ExitStack() as files:
            _open(files, chosen, rank).read_boxes(boxes)
        for into, memory in later:
            into.copy_(memory)

    def _standing(self, node: Node) -> Any:
        """The value or stand-in for a node of the saved tree."""
        target = self._target
        if isinstance(node, ValueLeaf):
            return target.values[node.index]
        if isinstance(node, ArrayLeaf):
            kind, structure, alias = (
                target.types[node.index],
                target.structure,
                target.structure.aliases.get(node.index),
            )
            if kind.kind != "torch":
                return Stored()
            own, owner = bool(structure.per_rank[node.index]), None if alias is None else alias.owner
            is_view = alias is not None and not target.is_twin(node.index, alias)
            return Stored(node.index, kind.torch_dtype, kind.shape, own, owner, is_view, is_tensor=True)
        if not isinstance(node, Branch):
            return DROPPED  # another rank's own
        if node.is_object:
            return self._standing(node.children[0])
        if node.form is None and node.kind in DICTS:
            items = ((key, self._standing(child)) for key, child in zip(node.keys, node.children, strict=True))
            return {key: item for key, item in items if item is not DROPPED}
        if node.form is None and node.kind == "list":
            children = map(self._standing, node.children)
            return [None if child is DROPPED else child for child in children]
        if LeafNumbers.of(node).arrays:
            return Stored(is_tensor=is_composite(node) and node.form is None, subclass=next(_subclasses(node), ""))
        return build(target, {}, node)


def _subclasses(node: Node) -> Iterator[str]:
    """The names of the classes of tensors of subclasses."""
    if isinstance(node, Branch):
        if node.kind == SUBCLASS:
            yield node.name
        for child in node.children:
            yield from _subclasses(child)


def _open(files: ExitStack, chosen: Chosen, rank: int) -> OpenCheckpoint:
    return OpenCheckpoint(files, chosen.step, min(rank, chosen.manifest.attempt.world_size - 1))


def _target(step: SavedStep, rank: int) -> Target:
    """The step as a rank had it, or as rank 0 did where other ranks have saved it."""
    of_ranks, own = step.documents.of_ranks, step.documents.own
    seen_by = min(rank, len(of_ranks) - 1) if step.same_world else 0
    structure = with_global_state(of_ranks[seen_by], step.global_state)
    values = step.global_state.contents(rank if step.same_world else None)
    return target_of(structure, own[seen_by], values, f"step {step.attempt.step}")
