"""A storage reader for DCP: ``dcp.load`` reads checkpoints of this library."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint import LoadPlan, LoadPlanner, Metadata
from torch.distributed.checkpoint import StorageReader as TorchStorageReader
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.futures import Future

from deeppart.checkpointer import Checkpointer
from deeppart.errors import ConfigError, DeeppartError, StructureMismatchError, as_error
from deeppart.interop.dcp.described import metadata_of
from deeppart.interop.dcp.destinations import destinations, hand_over
from deeppart.interop.dcp.names import step_of
from deeppart.interop.dcp.sources import DirectorySource, SessionSource, Source
from deeppart.interop.dcp.storage_writer import StorageWriter
from deeppart.interop.dcp.stored import Stored, Wanted
from deeppart.part import KeyFiles


class StorageReader(TorchStorageReader):
    """Loads steps of a :class:`deeppart.Checkpointer`, or of :class:`StorageWriter`, by ``dcp.load``.

    DCP's names are the keys of a path, joined by dots, so what ``checkpoint({"model": model})`` has saved is loaded as
    ``{"model": model}``, too. Of a directory, only the chunks that hold what is asked for are read. Digests are
    checked. Values are data: what DCP unpickles was pickled here, in memory.

    ``checkpoint_id`` is a step, as for the writer; without one, the newest is loaded.

    Args:
        source: a writer, or a :class:`deeppart.Checkpointer`: its session reads every level, each byte once for all
            ranks together, and all of them call ``dcp.load``. Or a persistent directory: any number of processes read
            it, each for itself; also with ``no_dist``.
        rank: of a directory: whose values to take of what each rank saved for itself.
        sign_key_file: of a directory: as of :func:`deeppart.load`. A session has its own.

    Raises:
        ConfigError: ``source`` is something else, or a key file is not used.

    Example:
        >>> import deeppart, torch, torch.distributed.checkpoint as dcp
        >>> from deeppart.interop.dcp import StorageReader
        >>> model = torch.nn.Linear(2, 1)
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     _ = checkpointer.checkpoint({"model": model, "epoch": 3}, step=100)
        >>> live = {"model": torch.nn.Linear(2, 1)}
        >>> dcp.load(live, checkpoint_id=100, storage_reader=StorageReader("ckpt"))
        >>> bool((live["model"].weight == model.weight).all())
        True
    """

    def __init__(
        self,
        source: StorageWriter | Checkpointer | str | os.PathLike[str],
        *,
        rank: int = 0,
        sign_key_file: KeyFiles = None,
    ) -> None:
        self._source: Source
        if isinstance(source, StorageWriter):
            self._source = SessionSource(source.checkpointer)
        elif isinstance(source, Checkpointer):
            self._source = SessionSource(source)
        elif isinstance(source, (str, os.PathLike)):
            self._source = DirectorySource(source, rank, sign_key_file)
        else:
            raise ConfigError(
                "impossible source for deeppart's reader of DCP",
                expected="a StorageWriter, a Checkpointer, or a persistent directory",
                found=type(source).__name__,
            )
        self._step: int | None = None
        self._stored: Stored | None = None
        self._failure: DeeppartError | None = None

    def newest(self) -> int | None:
        """The step that a load without ``checkpoint_id`` takes; None if there is no checkpoint.

        Of a session, a call of all ranks.

        Raises:
            RestoreError: there are checkpoints, but none can be loaded. StorageError, RemoteRankError,
                PeerTimeoutError: it cannot be found out.
        """
        return self._source.newest()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if it names a step."""
        return StorageWriter.validate_checkpoint_id(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """The next load is of this step.

        Raises:
            ConfigError: it names none.
        """
        self._step = None if checkpoint_id is None else step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """What there is. An error is kept for :meth:`set_up_storage_reader`: here, DCP would make a text of it."""
        self._stored, self._failure = None, None
        step, self._step = self._step, None
        try:
            self._stored = self._source.look(step)
        except Exception as error:  # of whatever kind: the other ranks hear of it from DCP
            self._failure = as_error(error, "a checkpoint cannot be loaded")
            return metadata_of({})
        return metadata_of({name: entry.item for name, entry in self._stored.entries.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **options: Any) -> None:
        """Nothing to set up.

        Raises:
            RestoreError: there is no such checkpoint. FormatError, StorageError, CommError: it cannot be read.
        """
        if self._failure is not None:
            raise self._failure

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """What all ranks must read together is told.

        Raises:
            UnsupportedLeafError: the planner asks for a tensor that only its class could make.
        """
        names = sorted(item.storage_index.fqn for item in plan.items if item.type is LoadItemType.BYTE_IO)
        compounds = [name for name in names if self._known(name).node is not None]
        for name in compounds:
            assert self._stored is not None
            self._stored.refuse_to_build(name)
        return plan if self._source.ranks is None else replace(plan, storage_data=compounds)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See that all ranks of the session take part, and tell them what all of them read.

        Raises:
            ConfigError: others do.
        """
        if self._source.ranks is None:
            return plans
        if len(plans) != self._source.ranks:
            raise ConfigError(
                "DCP loads on other ranks than deeppart's reader was made for",
                expected=f"{self._source.ranks} ranks, those of the session",
                found=f"{len(plans)}" + (", as with no_dist=True" if len(plans) == 1 else ""),
                todo="give both the same process_group; or read the persistent directory: StorageReader(DIRECTORY)",
            )
        everywhere = sorted({name for plan in plans for name in plan.storage_data or ()})
        return [replace(plan, storage_data=everywhere) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what a plan asks for, check it, and put it into the planner's tensors.

        Raises:
            StateError: a tensor of the planner does not fit. RestoreError, FormatError, StorageError, CommError: it
                cannot be read. No tensor was changed then, unless the error says so.
        """
        tensors = [item for item in plan.items if item.type is not LoadItemType.BYTE_IO]
        values = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
        together = self._source.ranks is not None
        wanted: dict[str, list[Wanted]] = {}
        pickled: list[tuple[ReadItem, io.BytesIO]] = []

        def pickle(brought: Mapping[str, Any]) -> None:
            """What may fail of a class of the caller's, before anything is changed."""
            for item in values:
                name = item.storage_index.fqn
                pickled.append((item, _pickled(brought[name] if name in brought else self._known(name).value)))

        try:
            found = destinations(planner, tensors, lambda name: self._known(name).item.dtype, may_refuse=together)
            for each in found:
                wanted.setdefault(each.item.storage_index.fqn, []).append(each.wanted)
            mine = [item.storage_index.fqn for item in values if self._known(item.storage_index.fqn).node is not None]
            compounds = plan.storage_data if together else mine
            if compounds is None or not set(mine) <= set(compounds):
                raise StructureMismatchError(
                    "a planner has lost what deeppart's reader put into its plan",
                    expected="a LoadPlan with the storage_data that it had",
                    todo="make plans by dataclasses.replace(plan, ...)",
                )
        except Exception as error:  # of the planner: other ranks may read together with this one
            self._source.refuse(as_error(error, "the planner does not say where to put a tensor"))
        with torch.no_grad():
            self._source.bring(wanted, compounds, pickle)
        hand_over(planner, found)
        for item, data in pickled:
            planner.load_bytes(item, data)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _known(self, name: str) -> Any:
        entry = None if self._stored is None else self._stored.entries.get(name)
        if entry is None:
            raise StructureMismatchError(
                "a planner asks for something that the checkpoint lacks",
                found=name,
                todo="see metadata in set_up_planner",
            )
        return entry


def _pickled(value: Any) -> io.BytesIO:
    """A value as planners expect it."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data
