"""Loops over epochs that go on where they were.

A job that is started again runs its script from the beginning. Code right before a loop over epochs, and within an
epoch before a loop over a data loader, runs again; so it has to do no harm. A learning rate, for example, is changed at
the end of an epoch, after the last loop over data: an epoch that is over is not gone through again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import BinaryIO

from ..checkpoint import State, load_state
from ..errors import UsageError


class _EpochState(State):
    def __init__(self) -> None:
        super().__init__(".adaptdl-epoch")
        self.finished = 0
        self.current: int | None = None

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump(self.finished, fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        self.finished = pickle.load(fileobj)


_state: _EpochState | None = None


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """The epochs that are not over yet, up to ``epoch``, exclusively; one that is left early is over, too."""
    state = _epoch_state()
    if state.current is not None:
        raise UsageError("a loop over epochs begins in another one", found=f"epoch {state.current} is under way")
    while state.finished < epoch:
        state.current = state.finished
        try:
            yield state.current
        finally:
            state.finished += 1
            state.current = None


def current_epoch() -> int | None:
    """The epoch that a loop of :func:`remaining_epochs_until` is in; None outside of them."""
    return _epoch_state().current


def finished_epochs() -> int:
    """Epochs that are over."""
    return _epoch_state().finished


def _epoch_state() -> _EpochState:
    global _state
    if _state is None:
        _state = _EpochState()
        load_state(_state)
    return _state
