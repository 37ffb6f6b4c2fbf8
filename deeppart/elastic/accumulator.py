"""Sums over all ranks that survive restarts: losses, hits, numbers of samples."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Self

import torch

from deeppart.errors import ConfigError

from .epochs import Progress, progress
from .ranks import Ranks, ranks_of_job

Number = int | float
_MAX_INT64 = (1 << 63) - 1


class Accumulator(MutableMapping[str, Any]):
    """A dict of sums that survive a restart on another number of ranks.

    Outside of :meth:`synchronized` ranks can only add: ``sums["loss"] += loss`` or ``sums.update(loss=loss, seen=n)``.
    This communicates nothing, and reading finds an empty dict. Within it the dict is the same on every rank; all ranks
    may read it, and change it in the same way.

    Values added for a filler (:attr:`deeppart.elastic.ElasticDataLoader.counted` is 0) are ignored.

    Values are integers, floats, and tensors and arrays of one element. Tensors are added on their device, without
    synchronizing with a GPU: floats in double precision, integers in 64 bits.

    Within :func:`deeppart.elastic.remaining_epochs_until` a restarted job gets the same values again in blocks that
    were finished in the current epoch.

    Args:
        name: in checkpoints; by default numbered in order of creation.
        progress: of the training; by default that of the process.
        ranks: by default those of torch.distributed, or of the launcher.

    Example:
        >>> from deeppart.elastic import Accumulator, Progress
        >>> sums = Accumulator(progress=Progress())
        >>> for loss in (0.5, 0.25):
        ...     sums["loss"] += loss
        ...     sums["seen"] += 1
        >>> with sums.synchronized():
        ...     print(sums["loss"] / sums["seen"])
        ...     sums.clear()
        0.375
    """

    def __init__(self, *, name: str | None = None, progress: Progress = progress, ranks: Ranks | None = None) -> None:
        self._ranks = ranks if ranks is not None else ranks_of_job()
        self._added: dict[str, Any] = {}
        self._sums: dict[str, Number] = {}
        #: Sums at the beginning of each finished block of this epoch, and how many of the blocks this process has run.
        self._epoch = 0
        self._blocks: list[dict[str, Number]] = []
        self._done = self._turn = 0
        self._open: dict[str, Number] | None = None
        self._progress = progress
        self.name = progress.name_for("sums", name)
        progress.join(self.name, self)

    @contextlib.contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """A block in which every rank has the sums over all ranks (collective)."""
        if self._open is not None:
            yield self
            return
        self._progress.check_member(self.name, self)
        epoch = self._progress.current_epoch
        if self._turn != self._progress.turn:
            self._turn, self._done = self._progress.turn, 0
        if epoch is not None and epoch != self._epoch:
            self._epoch, self._blocks, self._done = epoch, [], 0
        repeatable = epoch is not None and self._progress.loader is None  # restarts do not repeat loops over data
        if repeatable and self._done < len(self._blocks):
            self._open = dict(self._blocks[self._done])
            self._added.clear()
            self._done += 1
        else:
            self._reduce()
            self._open = self._sums
            if repeatable:
                self._blocks.append(dict(self._sums))
                self._done += 1
        try:
            yield self
        finally:
            self._open = None

    # --- adding -------------------------------------------------------------------------------------------------------

    def update(self, *args: Any, **values: Any) -> None:
        """Add to the sums, as ``+=`` does; within a block, new sums begin at 0."""
        for key, value in dict(*args, **values).items():
            self._begin(key)
            self[key] += value

    def subtract(self, *args: Any, **values: Any) -> None:
        """Subtract from the sums, as ``-=`` does; within a block, new sums begin at 0."""
        for key, value in dict(*args, **values).items():
            self._begin(key)
            self[key] -= value

    def _begin(self, key: str) -> None:
        if self._open is not None:
            self._open.setdefault(key, 0)

    def __iadd__(self, other: Mapping[str, Any]) -> Self:
        """``sums += {"loss": loss}``, as :meth:`update`."""
        self.update(other)
        return self

    def __isub__(self, other: Mapping[str, Any]) -> Self:
        """As :meth:`subtract`."""
        self.subtract(other)
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        """Set a sum within a block; outside, the last part of ``sums[key] += value``."""
        if self._open is not None:
            self._open[key] = value
            return
        if not (isinstance(value, _Sum) and value.owner is self and value.key == key):
            raise ConfigError(
                "a sum can only be added to, or subtracted from, outside of synchronized()",
                expected=f"{key!r}: sums[{key!r}] += value",
                found=f"= {value!r}",
                where=f"accumulator {self.name}",
            )
        if not isinstance(key, str):  # sums are exchanged as JSON
            raise ConfigError("the name of a sum is not a string", found=repr(key), where=f"accumulator {self.name}")
        loader = self._progress.loader
        if loader is None or loader.counted:
            self._added[key] = _add(self._added[key], value.added) if key in self._added else value.added

    # --- reading: an empty dict outside of a block --------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        """As ``dict.get``."""
        return super().get(key, default) if key in self else default

    def __getitem__(self, key: str) -> Any:
        """A sum; outside of a block, an operand for ``+=`` and ``-=``."""
        return _Sum(self, key) if self._open is None else self._open[key]

    def __delitem__(self, key: str) -> None:
        """Delete a sum within a block."""
        del ({} if self._open is None else self._open)[key]

    def __contains__(self, key: object) -> bool:
        """False outside of a block."""
        return key in (self._open or ())

    def __iter__(self) -> Iterator[str]:
        """Names of the sums within a block."""
        return iter(self._open or ())

    def __len__(self) -> int:
        """0 outside of a block."""
        return len(self._open or ())

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The sums over all ranks (collective).

        Raises:
            ConfigError: within a synchronized block, whose changes would be saved in part.
        """
        if self._open is not None:
            raise ConfigError(
                "a checkpoint within a synchronized block",
                where=f"accumulator {self.name}",
                todo="make it after the block",
            )
        self._reduce()
        return {"sums": dict(self._sums), "epoch": self._epoch, "blocks": [dict(block) for block in self._blocks]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved sums; values added since are dropped."""
        self._sums, self._epoch = dict(state["sums"]), state["epoch"]
        self._blocks = [dict(block) for block in state["blocks"]]
        self._done = 0
        self._added.clear()

    def _reduce(self) -> None:
        mine = {key: _number(key, value) for key, value in self._added.items()}
        for of_rank in self._ranks.gather(mine, "adding up sums"):
            for key, value in of_rank.items():
                self._sums[key] = self._sums.get(key, 0) + value
        self._added.clear()


class _Sum:
    """The operand ``sums[key]`` of ``+=`` and ``-=``."""

    __slots__ = ("added", "key", "owner")

    def __init__(self, owner: Accumulator, key: str) -> None:
        self.owner, self.key, self.added = owner, key, 0

    def __add__(self, value: Any) -> _Sum:
        self.added = _add(self.added, _widened(self.key, value))
        return self

    def __sub__(self, value: Any) -> _Sum:
        self.added = _add(self.added, -_widened(self.key, value))
        return self


def _widened(key: str, value: Any) -> Any:
    """A value without its autograd graph, as a float64 or int64 tensor or a Python number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        scalar = value.detach().reshape(())
        if scalar.is_floating_point():
            return _double(scalar)
        return scalar.item() if scalar.dtype == torch.uint64 else scalar.long()
    if not isinstance(value, torch.Tensor) and getattr(value, "size", None) == 1 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, numbers.Real):
        return value
    raise ConfigError(
        "this cannot be added up",
        expected="a number, or a tensor or array of one element",
        found=type(value).__name__,
        where=f"sum {key!r}",
    )


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.device.type != "mps" else tensor  # which has no float64


def _add(one: Any, other: Any) -> Any:
    """The sum of two such values; torch would return float32 for an int64 tensor and a Python float."""
    if isinstance(one, torch.Tensor) == isinstance(other, torch.Tensor):
        return one + other
    tensor, number = (one, other) if isinstance(one, torch.Tensor) else (other, one)
    if not isinstance(number, int):
        return _double(tensor) + float(number)
    return tensor + number if abs(number) <= _MAX_INT64 else tensor.item() + number


def _number(key: str, value: Any) -> Number:
    found = value.item() if hasattr(value, "item") else value
    if isinstance(found, bool | int):
        return int(found)
    if isinstance(found, numbers.Real):
        return float(found)
    raise ConfigError("this cannot be added up", found=repr(found), where=f"sum {key!r}")
