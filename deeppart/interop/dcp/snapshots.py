"""A training loop's DCP checkpoints: cadence, directories, and the newest complete one."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from string import Formatter
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, SavePlanner, StorageReader, StorageWriter

from deeppart.config import check_count, check_step
from deeppart.errors import ConfigError, DeeppartError, RestoreError
from deeppart.extension import ForeignFile
from deeppart.interop.dcp.planner import BalancedSavePlanner
from deeppart.interop.formats import METADATA_NAME


class Snapshots:
    """DCP checkpoints of a training loop: one directory for every n-th step.

    All methods except ``steps`` and ``path_of`` are collective over the process group. Nothing is removed.

    Args:
        path: template of a snapshot's directory, with ``{step}`` once, in its last component: ``"ckpt/step-{step}"``,
            or ``"ckpt/{step:08d}"``.
        every: :meth:`save` saves at multiples of this step.
        planner: factory of a planner for each save: ``functools.partial(BalancedSavePlanner, files="node")``.
        writer, reader: factories of DCP's writer and reader for a directory; for extensions or other storage.
        background: save with ``dcp.async_save``, in a thread. A save waits for the previous one.
        process_group: the ranks that save; None for all.

    Raises:
        ConfigError: ``path`` or ``every`` is invalid.

    Example:
        >>> import torch
        >>> from deeppart.interop.dcp import Snapshots
        >>> snapshots = Snapshots("ckpt/step-{step}", every=100)
        >>> state = {"weights": torch.zeros(1000)}
        >>> step = snapshots.load_latest(state) or 0
        >>> for step in range(step + 1, 201):
        ...     state["weights"] += 1
        ...     _ = snapshots.save(state, step)
        >>> snapshots.steps()
        [100, 200]
    """

    def __init__(
        self,
        path: str,
        every: int = 1,
        *,
        planner: Callable[[], SavePlanner] = BalancedSavePlanner,
        writer: Callable[[Path], StorageWriter] = FileSystemWriter,
        reader: Callable[[Path], StorageReader] = FileSystemReader,
        background: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        check_count("every", every, "steps")
        self.every = every
        self._parent, self._name = _template(path)
        self._planner, self._writer, self._reader = planner, writer, reader
        self._background, self._group = background, process_group
        self._saving: Future[Any] | None = None

    def path_of(self, step: int) -> Path:
        """The directory of a step."""
        return self._parent / self._name.format(step=step)

    def save(self, state: dict[str, Any], step: int, *, force: bool = False) -> Path | None:
        """Save a state if the step is a multiple of ``every``.

        Args:
            state: as for ``dcp.save``.
            step: the training step.
            force: save at any step.

        Returns:
            The directory, which may be incomplete while a background save runs; None if nothing was saved.

        Raises:
            TypeError, ValueError: ``step`` is not a step number.
            CheckpointException: (torch) this save, or the previous one in the background, failed.
        """
        step = check_step(step, "save(state, step)")
        if step % self.every and not force:
            return None
        self.wait()
        path = self.path_of(step)
        writer, planner, group = self._writer(path), self._planner(), self._group
        if self._background:
            saving: Any = dcp.async_save(state, storage_writer=writer, planner=planner, process_group=group)
            self._saving = getattr(saving, "upload_completion", saving)  # if the writer is a stager
        else:
            dcp.save(state, storage_writer=writer, planner=planner, process_group=group)
        return path

    def wait(self) -> None:
        """Wait for the background save.

        Raises:
            CheckpointException: (torch) the save failed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()  # bounded by the timeout of torch's process group

    def load_latest(self, state: dict[str, Any]) -> int | None:
        """Load the newest complete snapshot, chosen by the first rank, into a state in place with ``dcp.load``.

        Returns:
            Its step; None if there is none.

        Raises:
            StorageError: the parent directory cannot be read.
            CheckpointException: (torch) the snapshot cannot be loaded. Part of the state may have changed.
        """
        self.wait()
        step = self._agreed_latest()
        if step is not None:
            dcp.load(state, storage_reader=self._reader(self.path_of(step)), process_group=self._group)
        return step

    def steps(self) -> list[int]:
        """The steps with complete snapshots, ascending.

        Raises:
            StorageError: the parent directory cannot be read.
        """
        try:
            steps = map(self._step_of, ForeignFile.names_in(self._parent) or ())
        except RestoreError:  # there is no such directory
            return []
        found = sorted(step for step in steps if step is not None)
        return [step for step in found if METADATA_NAME in (ForeignFile.names_in(self.path_of(step)) or ())]

    def _step_of(self, name: str) -> int | None:
        """The step of a directory name."""
        pieces = (
            re.escape(text) + "([0-9]+)" * (field is not None) for text, field, *_ in Formatter().parse(self._name)
        )
        found = re.fullmatch("".join(pieces), name)
        return int(found[1]) if found and self.path_of(int(found[1])).name == name else None

    def _agreed_latest(self) -> int | None:
        if not (dist.is_available() and dist.is_initialized()):
            return max(self.steps(), default=None)
        source = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        found: list[int | DeeppartError | None] = [None]
        if dist.get_rank() == source:
            try:
                found = [max(self.steps(), default=None)]
            except DeeppartError as error:  # raised on all ranks
                found = [error]
        dist.broadcast_object_list(found, src=source, group=self._group)
        if isinstance(found[0], DeeppartError):
            raise found[0]
        return found[0]


def _template(path: str) -> tuple[Path, str]:
    """The parent directory and the name template."""
    parent, _, name = path.rstrip("/").rpartition("/")
    fault = ""
    try:
        fields = [(field, conversion) for _, field, _, conversion in Formatter().parse(name) if field is not None]
        if fields != [("step", None)] or "{" in parent:
            fault = "{step} must occur once, in the last component, and there must be no other braces"
        elif name.format(step=7) == name.format(step=8):
            fault = "steps 7 and 8 would have the same name"
    except (ValueError, IndexError, KeyError) as error:
        fault = str(error)
    if fault:
        raise ConfigError(
            "invalid template for the path of a snapshot",
            expected='a path such as "ckpt/step-{step}"',
            found=f"{path!r}: {fault}",
        )
    return Path(parent or ("/" if path.startswith("/") else ".")), name
