"""A saved step whose structure is loaded, and whose leaves are read box by box on request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deeppart import access
from deeppart.checkpointer import Checkpointer
from deeppart.config import refuse_url
from deeppart.errors import DeeppartError
from deeppart.model import Box
from deeppart.offline import Chosen, OpenCheckpoint, find_step, with_checkpoint
from deeppart.part import KeyFiles, read_key_files
from deeppart.recovery import SavedStep
from deeppart.state.document import with_global_state
from deeppart.state.restore import DROPPED, LiveBox, Target, build, is_composite, resolve_registered
from deeppart.state.tensors import SUBCLASS, is_plain
from deeppart.state.tree import DICTS, ArrayLeaf, Branch, Node, ValueLeaf, every_node, numbers_in
from deeppart.storage import PosixStore, committed_steps


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Placeholder in :attr:`Step.state` for an item that contains leaves.

    Attributes:
        leaf: leaf number of a plain tensor; None for numpy arrays, composite tensors, and objects and tuples with
            leaves in them.
        dtype, shape: of a plain tensor; otherwise None and ().
        is_rank_local: true for a rank-local leaf.
        owner: number of the leaf with which it shares its elements, or None.
        is_view: true if it is a part of the owner, or has its elements in another order.
        is_tensor: true for any tensor.
        subclass: name of the first tensor subclass in it; "" if there is none.
    """

    leaf: int | None = None
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    is_rank_local: bool = False
    owner: int | None = None
    is_view: bool = False
    is_tensor: bool = False
    subclass: str = ""


class Step:
    """A saved step, as one rank sees it.

    Attributes:
        number: step number.
        where: its location, for messages.
        rank: for a directory: the rank whose rank-local leaves it has.
        state: the nested state: dicts, lists and small values. Leaves, and tuples and objects that contain leaves, are
            replaced by placeholders.

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
        self.state = self._placeholder(resolve_registered(target, target.structure.tree))
        #: For a directory: the checkpoint, and the rank as which to open it.
        self._directory: tuple[Chosen, int] | None = None

    @classmethod
    def of_session(cls, checkpointer: Checkpointer, number: int | None = None) -> Step | None:
        """The step that ``restore()`` would restore (collective); None if there is none.

        To read its leaves, call ``checkpointer.restore(live, step.number)``.

        Raises:
            RestoreError, CommError: as for :meth:`deeppart.Checkpointer.restore`.
        """
        saved = checkpointer._preview(number)
        if saved is None:
            return None
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
        """A committed step of a persistent directory.

        Args:
            directory: the persistent directory.
            number: step number; None for the newest one with a valid manifest.
            rank: rank whose rank-local leaves to use; the last one if there were fewer ranks.
            sign_key_file: as for :func:`deeppart.load`.

        Raises:
            RestoreError, FormatError, StorageError: as for :func:`deeppart.load`.
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
        """The newest usable step; None if there is no checkpoint. Collective for a Checkpointer."""
        if isinstance(source, Checkpointer):
            found = source._preview(None)
            return None if found is None else found.attempt.step
        refuse_url("the checkpoint directory", source)
        root = access.below_root(Path(source))
        if not committed_steps(PosixStore(root)):
            return None
        return find_step(root, None, read_key_files(sign_key_file)).step.key.step

    @staticmethod
    def check_keys(sign_key_file: KeyFiles) -> None:
        """Raise ConfigError if a key file is invalid."""
        read_key_files(sign_key_file)

    @staticmethod
    def agree(checkpointer: Checkpointer, error: DeeppartError | None) -> None:
        """Raise this rank's error, if any, and an error that quotes it on the other ranks (collective)."""
        checkpointer._raise_together(error)

    def read(self, wanted: Mapping[int, Sequence[tuple[Box, torch.Tensor]]]) -> None:
        """Fill tensors with boxes of leaves; for a step of a directory.

        Only the required chunks are read. All of them are verified before any tensor is modified.

        Args:
            wanted: leaf number -> boxes, each with a tensor of the same sizes; elements are converted to its dtype.
        """
        assert self._directory is not None, "a step of a session is read by restore()"
        chosen, rank = self._directory
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        boxes: dict[int, list[LiveBox]] = {}
        for leaf, requested in wanted.items():
            dtype = self._target.types[leaf].torch_dtype
            for box, tensor in requested:
                filled = tensor
                if tensor.dtype != dtype or not is_plain(tensor):
                    filled = torch.empty(box.sizes, dtype=dtype)
                    copies.append((tensor, filled))
                boxes.setdefault(leaf, []).append(LiveBox(filled, box))
        with ExitStack() as files:
            _open(files, chosen, rank).read_boxes(boxes)
        for tensor, filled in copies:
            tensor.copy_(filled)

    def _placeholder(self, node: Node) -> Any:
        """The value or placeholder for a node of the saved tree."""
        target = self._target
        if isinstance(node, ValueLeaf):
            return target.values[node.index]
        if isinstance(node, ArrayLeaf):
            kind, alias = target.types[node.index], target.structure.aliases.get(node.index)
            if kind.kind != "torch":
                return Placeholder()
            rank_local, owner = bool(target.structure.per_rank[node.index]), None if alias is None else alias.owner
            is_view = alias is not None and not target.is_twin(node.index, alias)
            return Placeholder(node.index, kind.torch_dtype, kind.shape, rank_local, owner, is_view, is_tensor=True)
        if not isinstance(node, Branch):
            return DROPPED  # rank-local, of another rank
        if node.is_object:
            return self._placeholder(node.children[0])
        if node.form is None and node.kind in DICTS:
            items = ((key, self._placeholder(child)) for key, child in zip(node.keys, node.children, strict=True))
            return {key: item for key, item in items if item is not DROPPED}
        if node.form is None and node.kind == "list":
            children = map(self._placeholder, node.children)
            return [None if child is DROPPED else child for child in children]
        if numbers_in(node, ArrayLeaf):
            inside = (each for _, each in every_node(node, ()) if isinstance(each, Branch) and each.kind == SUBCLASS)
            name = next((each.name for each in inside), "")
            return Placeholder(is_tensor=is_composite(node) and node.form is None, subclass=name)
        return build(target, {}, node)


def _open(files: ExitStack, chosen: Chosen, rank: int) -> OpenCheckpoint:
    return OpenCheckpoint(files, chosen.step, min(rank, chosen.manifest.attempt.world_size - 1))


def _target(step: SavedStep, rank: int) -> Target:
    """The step as this rank saved it; on another world size, as rank 0 did."""
    of_ranks, own = step.documents.of_ranks, step.documents.own
    source_rank = min(rank, len(of_ranks) - 1) if step.same_world else 0
    structure = with_global_state(of_ranks[source_rank], step.global_state)
    return Target.of_rank(structure, own[source_rank], rank if step.same_world else None)
