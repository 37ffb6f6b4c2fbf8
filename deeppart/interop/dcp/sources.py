"""Where a storage reader for DCP reads from: the session of a job, or a directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from deeppart import access
from deeppart.checkpointer import Checkpointer
from deeppart.errors import CheckpointError, DeeppartError, RestoreError, as_error
from deeppart.interop.dcp.pieces import Pieces
from deeppart.interop.dcp.stored import Entry, Stored, Wanted, live_tree, whole
from deeppart.offline.find import Chosen, find_step, with_checkpoint
from deeppart.offline.load import OpenCheckpoint, target_of
from deeppart.part import KeyFiles, read_key_files
from deeppart.recovery.saved import SavedStep
from deeppart.session.looking import Looked
from deeppart.state.document.whole import with_wholes
from deeppart.state.restore.boxes import LiveBox
from deeppart.state.restore.request import Asked, asked_of
from deeppart.state.restore.target import Target
from deeppart.state.tree.leaves import TORCH_DTYPES
from deeppart.state.tree.noting import is_plain
from deeppart.state.tree.paths import readable
from deeppart.storage.manifests import committed_steps

#: What the live state has is restored, and nothing else.
_HERE_ALONE = asked_of(None, None, True, False, None, "keep", "ignore")
#: Names -> boxes that are asked for.
WantedByName = Mapping[str, Sequence[Wanted]]
Use = Callable[[dict[str, Any]], None]


class Source(Protocol):
    """Where steps are read from."""

    #: How many ranks read together; None: each by itself.
    ranks: int | None

    def newest(self) -> int | None:
        """The step that :meth:`look` takes if it is told none; None if there is none."""
        ...

    def look(self, step: int | None) -> Stored:
        """What a step holds, or the newest."""
        ...

    def bring(self, wanted: WantedByName, compounds: Sequence[str], use: Use) -> None:
        """Fill what is asked for of the step that was looked at."""
        ...

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise an error, instead of :meth:`bring`; on all ranks that read together."""
        ...


class SessionSource:
    """A job's session: every step that its levels have, from the cheapest source that is left. Calls are collective.

    What each rank had saved for itself it gets back; on another number of ranks, all get that of rank 0.
    """

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self.ranks: int | None = checkpointer.world_size
        self._step: Looked | None = None
        self._stored: Stored | None = None

    def newest(self) -> int | None:
        """The newest step that can be recovered; None if there is no checkpoint."""
        found = self._checkpointer._look(None)
        return None if found is None else found.saved.attempt.step

    def look(self, step: int | None) -> Stored:
        """What a step holds, or the newest that can be recovered."""
        self._stored = self._step = None
        found = self._checkpointer._look(step)
        if found is None:
            raise RestoreError("there is no checkpoint", where=str(self._checkpointer.config.persistent_dir))
        saved = found.saved
        self._step, self._stored = found, Stored(_target(saved, self._checkpointer.rank), f"step {saved.attempt.step}")
        return self._stored

    def bring(self, wanted: WantedByName, compounds: Sequence[str], use: Use) -> None:
        """Fill what is asked for, once every byte of it was checked.

        What is no tensor to DCP comes first: a step is restored as a whole, or not at all, but these are two restores.
        """
        stored, _ = self._looked()
        self._checkpointer._raise_together(None)  # whoever refuses says so here
        found = self._compounds(stored, compounds)
        self._checkpointer._raise_together(_failure_of(use, found))
        live: dict[int, Any] = {}
        later: list[tuple[torch.Tensor, Wanted]] = []
        asked = [(stored.entries[name], parts) for name, parts in wanted.items()]
        owners = _owners(stored.target, {entry.leaf for entry, _ in asked if entry.leaf is not None})
        for entry, parts in asked:
            assert entry.leaf is not None
            live[entry.leaf] = self._live(stored, entry, parts, later, entry.leaf in owners)
        for owner in owners - live.keys():
            kind = stored.target.types[owner]
            live[owner] = torch.empty(kind.shape, dtype=TORCH_DTYPES[kind.dtype])
        self._restore(live_tree(stored.tree, live), _HERE_ALONE)
        for source, want in later:
            want.into.copy_(source)

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise it, and on the other ranks an error that quotes it."""
        self._checkpointer._raise_together(error)
        raise AssertionError("an error of this rank is raised")

    def _looked(self) -> tuple[Stored, Looked]:
        if self._stored is None or self._step is None:
            raise CheckpointError("DCP reads before it has asked what there is", todo="load by dcp.load")
        return self._stored, self._step

    def _restore(self, live: Any, asked: Asked) -> None:
        _, step = self._looked()
        self._checkpointer._restore_looked(live, step, "strict" if step.saved.same_world else "rank0", asked)

    def _live(
        self,
        stored: Stored,
        entry: Entry,
        parts: Sequence[Wanted],
        later: list[tuple[torch.Tensor, Wanted]],
        is_owner: bool,
    ) -> torch.Tensor:
        """What stands in the live state for a leaf."""
        item, leaf = entry.item, entry.leaf
        assert item.shape is not None and item.dtype is not None and leaf is not None
        into = whole(parts, item)
        if into is not None:
            return into
        structure = stored.target.structure
        if is_owner or structure.per_rank[leaf] or leaf in structure.aliases:  # is filled as a whole, or not at all
            all_of = torch.empty(item.shape, dtype=item.dtype)
            later += [(all_of[part.box.slices()], part) for part in parts]
            return all_of
        tensors = []
        for part in parts:
            tensor = part.into
            if tensor.dtype != item.dtype:
                tensor = torch.empty(part.box.sizes, dtype=item.dtype)
                later.append((tensor, part))
            tensors.append(tensor)
        return Pieces(item.shape, [part.box for part in parts], tensors)

    def _compounds(self, stored: Stored, names: Sequence[str]) -> dict[str, Any]:
        if not names:
            return {}
        paths = [stored.entries[name].path for name in names]
        # Of a list, all of it or none.
        ends = [next((end for end, key in enumerate(path) if type(key) is int), len(path)) for path in paths]
        names_of = (readable(path[:end]) for path, end in zip(paths, ends, strict=True))
        keys = sorted({re.sub(r"[*?\[]", r"[\g<0>]", name) for name in names_of})  # as they are, no globs
        made: dict[Any, Any] = {}
        self._restore(made, asked_of(keys, None, True, False, None, None, None))
        found = {}
        for name, path in zip(names, paths, strict=True):
            item: Any = made
            for key in path:
                item = item[key]
            found[name] = item
        return found


class DirectorySource:
    """A persistent directory: each process reads by itself the chunks that it needs."""

    ranks: int | None = None

    def __init__(self, directory: str | os.PathLike[str], rank: int = 0, sign_key_file: KeyFiles = None) -> None:
        self._root, self._rank, self._signing = Path(directory), rank, read_key_files(sign_key_file)
        self._looked: tuple[Chosen, Stored] | None = None

    def newest(self) -> int | None:
        """The newest committed step whose manifest is sound; None if there is no checkpoint."""
        with access.guarded(self._root, access.READING):
            if not committed_steps(self._root):
                return None
            found, _ = find_step(self._root, None, self._signing)
        return found.manifest.attempt.step

    def look(self, step: int | None) -> Stored:
        """What a committed step holds, or the newest whose manifest is sound."""

        def use(chosen: Chosen) -> tuple[Chosen, Stored]:
            with ExitStack() as files:
                target = self._open(files, chosen).target
            return chosen, Stored(target, str(chosen.directory))

        self._looked = None
        self._looked = chosen, stored = with_checkpoint(self._root, step, use, self._signing)
        chosen.tell()
        return stored

    def bring(self, wanted: WantedByName, compounds: Sequence[str], use: Use) -> None:
        """Fill what is asked for, once all of it was read and checked."""
        if self._looked is None:
            raise CheckpointError("DCP reads before it has asked what there is", todo="load by dcp.load")
        chosen, stored = self._looked
        with access.guarded(self._root, access.READING), ExitStack() as files:
            checkpoint = self._open(files, chosen)
            found = {}
            if compounds:
                leaves = {leaf for name in compounds for leaf in stored.leaves_in(name)}
                checkpoint.check(leaves)
                arrays = checkpoint.read(leaves)
                found = {name: stored.built(name, arrays) for name in compounds}
            use(found)
            later: list[tuple[torch.Tensor, Wanted]] = []
            boxes: dict[int, list[LiveBox]] = {}
            for name, parts in wanted.items():
                entry = stored.entries[name]
                assert entry.leaf is not None
                for part in parts:
                    memory = part.into
                    if memory.dtype != entry.item.dtype or not is_plain(memory):
                        memory = torch.empty(part.box.sizes, dtype=entry.item.dtype)
                        later.append((memory, part))
                    boxes.setdefault(entry.leaf, []).append(LiveBox(memory, part.box))
            checkpoint.read_boxes(boxes)
        for memory, part in later:
            part.into.copy_(memory)

    def refuse(self, error: DeeppartError) -> NoReturn:
        """Raise it."""
        raise error

    def _open(self, files: ExitStack, chosen: Chosen) -> OpenCheckpoint:
        saved_by = chosen.manifest.attempt.world_size
        rank = min(self._rank, saved_by - 1)
        return OpenCheckpoint(files, chosen.directory, chosen.manifest, rank, signing=self._signing)


def _failure_of(use: Use, found: dict[str, Any]) -> DeeppartError | None:
    try:
        use(found)
    except Exception as error:  # of a class of the caller's: the other ranks wait
        return as_error(error, "what was restored cannot be handed to the planner")
    return None


def _owners(target: Target, wanted: Collection[int]) -> set[int]:
    """The leaves of which a wanted one was saved as a part: they are restored, too, and as a whole."""
    aliases = target.structure.aliases
    found = {leaf: aliases[leaf] for leaf in wanted if leaf in aliases}
    return {alias.owner for leaf, alias in found.items() if not target.is_twin(leaf, alias)}


def _target(step: SavedStep, rank: int) -> Target:
    """The step as a rank had it, or as rank 0 did where other ranks have saved it."""
    of_ranks, own = step.documents.of_ranks, step.documents.own
    seen_by = min(rank, len(of_ranks) - 1) if step.same_world else 0
    structure = with_wholes(of_ranks[seen_by], step.wholes)
    values = step.wholes.contents(rank if step.same_world else None)
    return target_of(structure, own[seen_by], values, f"step {step.attempt.step}")
