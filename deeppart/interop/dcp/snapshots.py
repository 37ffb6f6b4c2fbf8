"""When and where a training loop saves by DCP, and the checkpoint from which it continues."""

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
    """DCP checkpoints of a training loop: every so many steps, each in a directory of its own.

    All methods but ``steps`` are calls of all ranks of the process group. Nothing is removed.

    Args:
        path: of a snapshot's directory, with ``{step}`` once, in its last component: ``"ckpt/step-{step}"``, or
            ``"ckpt/{step:08d}"``.
        every: :meth:`save` saves at steps that are multiples of it.
        planner: makes a planner for each save: ``functools.partial(BalancedSavePlanner, files="node")``.
        writer, reader: make DCP's writer and reader of a directory; for extensions, for other storage.
        background: save by ``dcp.async_save``, in a thread. The next save waits for the one before.
        process_group: of the ranks that save; None for all.

    Raises:
        ConfigError: ``path`` or ``every`` is impossible.

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
            step: of the training loop.
            force: save at any step.

        Returns:
            Where it is saved, in the background perhaps later; None if it is not.

        Raises:
            TypeError, ValueError: ``step`` is no number of a step.
            CheckpointException: of torch; the save, or the one before it in the background, failed.
        """
        step = check_step(step, "save(state, step)")
        if step % self.every and not force:
            return None
        self.wait()
        path = self.path_of(step)
        writer, planner, group = self._writer(path), self._planner(), self._group
        if self._background:
            saving: Any = dcp.async_save(state, storage_writer=writer, planner=planner, process_group=group)
            self._saving = getattr(saving, "upload_completion", saving)  # of what a writer that stages has returned
        else:
            dcp.save(state, storage_writer=writer, planner=planner, process_group=group)
        return path

    def wait(self) -> None:
        """Return when nothing is being saved in the background.

        Raises:
            CheckpointException: of torch; a save failed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()  # bounded: by torch, and the timeout of its process group

    def load_latest(self, state: dict[str, Any]) -> int | None:
        """Load the newest complete snapshot into a state, in place, as ``dcp.load`` does.

        The first rank looks which it is.

        Returns:
            Its step; None if there is none.

        Raises:
            StorageError: the directory above cannot be read.
            CheckpointException: of torch; the snapshot cannot be loaded. Part of the state may have changed.
        """
        self.wait()
        step = self._agreed_latest()
        if step is not None:
            dcp.load(state, storage_reader=self._reader(self.path_of(step)), process_group=self._group)
        return step

    def steps(self) -> list[int]:
        """The steps of which there are complete snapshots, ascending.

        Raises:
            StorageError: the directory above cannot be read.
        """
        try:
            steps = map(self._step_of, ForeignFile.names_in(self._parent) or ())
        except RestoreError:  # there is no such directory
            return []
        found = sorted(step for step in steps if step is not None)
        return [step for step in found if METADATA_NAME in (ForeignFile.names_in(self.path_of(step)) or ())]

    def _step_of(self, name: str) -> int | None:
        """The step whose directory has a name."""
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
            except DeeppartError as error:  # the others wait for an answer
                found = [error]
        dist.broadcast_object_list(found, src=source, group=self._group)
        if isinstance(found[0], DeeppartError):
            raise found[0]
        return found[0]


def _template(path: str) -> tuple[Path, str]:
    """The directory above, and the template of a name."""
    parent, _, name = path.rstrip("/").rpartition("/")
    fault = ""
    try:
        fields = [(field, conversion) for _, field, _, conversion in Formatter().parse(name) if field is not None]
        if fields != [("step", None)] or "{" in parent:
            fault = "its last component must have {step} once, and no other has anything in braces"
        elif name.format(step=7) == name.format(step=8):
            fault = "steps 7 and 8 would have the same name"
    except (ValueError, IndexError, KeyError) as error:
        fault = str(error)
    if fault:
        raise ConfigError(
            "impossible template for the path of a snapshot",
            expected='one such as "ckpt/step-{step}"',
            found=f"{path!r}: {fault}",
        )
    return Path(parent or ("/" if path.startswith("/") else ".")), name
