"""What the trainers have in common: when a checkpoint is due, and the Checkpointer that makes it."""

from __future__ import annotations

from typing import Any

from deeppart.checkpointer import Checkpointer
from deeppart.config import Config
from deeppart.errors import ConfigError
from deeppart.interop.stop_signal import StopSignal
from deeppart.state.tree.globs import PerRank


class Saving:
    """Checkpoints of one training, whichever library runs its loop."""

    def __init__(self, checkpointer: Checkpointer | Config | None, every: int, *, sigterm: bool) -> None:
        if type(every) is not int or every < 1:
            raise ConfigError("impossible value for every", expected="a number of steps, 1 or more", found=repr(every))
        self._given = checkpointer if isinstance(checkpointer, Checkpointer) else None
        self._config = checkpointer if isinstance(checkpointer, Config) else None
        self._own: Checkpointer | None = None
        self._every = every
        self._signal = StopSignal() if sigterm else None
        self._safe: int | None = None
        self.stopped = False

    @property
    def checkpointer(self) -> Checkpointer:
        """The one in use; opened now if it has to be (collective)."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = Checkpointer(self._config)
        return self._own

    def restore(self, state: Any, per_rank: PerRank, *, required: bool = False) -> int | None:
        """Restore a state in place (collective); returns the step, or None."""
        self._safe = self.checkpointer.restore(state, per_rank=per_rank, required=required)
        return self._safe

    def begin(self) -> None:
        """Training begins (collective)."""
        self.stopped = False
        if self._signal is not None:
            self._signal.listen()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be made after this step (collective); the one that sets :attr:`stopped` is."""
        if self._signal is not None and not self.stopped and self._signal.told():
            self.stopped = True
            return True
        return step % self._every == 0

    def save(self, state: Any, step: int, *, last: bool = False) -> None:
        """Save a state after a step; after the last one at all levels (collective)."""
        pending = self.checkpointer.checkpoint(state, step, force=last or self.stopped)
        if "persistent" in pending.levels:
            self._safe = step

    def is_safe(self, step: int) -> bool:
        """True if this step was restored, or is on its way to the persistent level: it need not be saved at the end."""
        return self._safe == step

    def end(self) -> None:
        """Training has ended: wait for what is in the background, if this object opened the Checkpointer."""
        if self._signal is not None:
            self._signal.end()
        if self._own is not None:
            closing, self._own = self._own, None
            closing.close()

    def abandon(self, error: BaseException) -> None:
        """Training was ended by an error: the other ranks may never come, so nothing waits for them."""
        if self._signal is not None:
            self._signal.end()
        if self._own is not None:
            leaving, self._own = self._own, None
            leaving.__exit__(type(error), error, error.__traceback__)
