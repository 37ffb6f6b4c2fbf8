"""The progress of a training: its epochs and the positions of its loaders and accumulators, saved under one key.

    state = {"model": model, "optimizer": optimizer, "elastic": deeppart.elastic.progress}

A restarted job runs its script from the beginning and skips finished epochs and, within the current epoch, finished
loops over loaders. Unfinished ones continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from deeppart.errors import ConfigError, RestoreError

if TYPE_CHECKING:
    from .loader import ElasticDataLoader

#: Version of the saved state.
_VERSION = 1


class ProgressMember(Protocol):
    """A loader, accumulator or other object whose state is saved with the progress."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values, the same on every rank; may be collective."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from such values."""


class Progress:
    """The epochs of one training and its members. Not thread-safe.

    ``state_dict`` is collective if an accumulator is a member.

    Example:
        >>> from deeppart.elastic import Progress
        >>> progress = Progress()
        >>> for epoch in progress.remaining_epochs_until(3):
        ...     if epoch == 1:
        ...         saved = progress.state_dict()  # in the middle of epoch 1
        >>> again = Progress()
        >>> again.load_state_dict(saved)
        >>> list(again.remaining_epochs_until(3))
        [1, 2]
    """

    def __init__(self) -> None:
        #: Number of finished epochs.
        self.finished_epochs = 0
        self._in_loop = False
        self._interrupted = False  # the last epoch was left by break, return or an error
        #: True in the rest of an epoch in which a state was loaded: the next iteration continues from it.
        self._went_back = False
        self._members: dict[str, ProgressMember] = {}
        #: Loaded states of members that do not exist yet.
        self._pending: dict[str, Mapping[str, Any]] = {}
        #: Loaders and accumulators created in the current epoch, which leave the progress when the next one begins. The
        #: script creates them again in each epoch.
        self.of_epoch = set[str]()
        #: Number of epochs that loops have started; members use it to detect a new iteration.
        self.turn = 0
        #: The loader whose batch is being processed.
        self.loader: ElasticDataLoader | None = None
        #: The model whose gradient noise is measured.
        self.trained: Any = None

    @property
    def current_epoch(self) -> int | None:
        """The epoch of the current loop over :meth:`remaining_epochs_until`; None outside of loops."""
        return self.finished_epochs if self._in_loop else None

    def check_member(self, name: str, member: ProgressMember) -> None:
        """Check that a member is at the current position.

        Raises:
            ConfigError: a state was loaded since the epoch began; or the member was created in an earlier epoch.
        """
        if self._went_back:
            raise ConfigError(
                "an epoch goes on after a checkpoint was loaded in it",
                where=name,
                todo="`continue` or `break` after restoring: the loop over epochs continues from the checkpoint",
            )
        if self._members.get(name) is not member:
            raise ConfigError(
                "this was made in an earlier epoch",
                where=name,
                todo="make it again in each epoch, or once before the loop over epochs",
            )

    def remaining_epochs_until(self, epochs: int) -> Iterator[int]:
        """Iterate over the unfinished epochs below ``epochs``.

        An epoch left by ``break``, ``return`` or an error stays the current one for checkpoints, and is finished when
        the next loop over epochs begins. After an older state is loaded within the loop, ``continue`` or ``break``: its
        epoch is the next one.

        Args:
            epochs: total number of epochs of the training.

        Raises:
            ConfigError: a loop over epochs is running already.
        """
        if self._in_loop:
            raise ConfigError(
                "a loop over epochs begins within another one",
                found=f"epoch {self.finished_epochs} is running",
                todo="end the outer loop first",
            )
        if self._interrupted:
            self.finished_epochs, self._interrupted = self.finished_epochs + 1, False
        while self.finished_epochs < epochs:
            self._forget_epoch()
            self._in_loop, self.turn = True, self.turn + 1
            ended = False
            try:
                yield self.finished_epochs
                ended = True
            finally:
                self._in_loop, self._interrupted = False, not (ended or self._went_back)
                went_back, self._went_back = self._went_back, False
            if not went_back:
                self.finished_epochs += 1

    def name_for(self, kind: str, name: str | None) -> str:
        """The name of a new member.

        Args:
            kind: such as "loader".
            name: given by the user; by default the kind, the epoch if it is created in one, and a number in order of
                creation.

        Raises:
            ConfigError: the name is taken; or there is no name within a loop over data, in whose middle a restarted
                job may begin, or for a model in an epoch.
        """
        if name is None and (self.loader is not None or (self._in_loop and kind == "parallel")):
            raise ConfigError(
                "a member of a training is made within a loop",
                expected="the same order of creation after a restart",
                found=f"{kind} without a `name`",
                todo="make it before the loop",
            )
        if name is None:
            prefix = f"{kind}-epoch{self.finished_epochs}" if self._in_loop else kind
            return next(each for number in count() if (each := f"{prefix}-{number}") not in self._members)
        if name in self._members:
            raise ConfigError(
                "two members of a training have the same name",
                found=repr(name),
                todo="give the second one another `name`",
            )
        return name

    def join(self, name: str, member: ProgressMember, *, stays: bool = False) -> None:
        """Register a member and load its state from a checkpoint restored before. If that fails, it is not one.

        Args:
            name, member: the member.
            stays: not only for the current epoch.
        """
        if (saved := self._pending.get(name)) is not None:
            member.load_state_dict(saved)
        self._pending.pop(name, None)
        self._members[name] = member
        if self._in_loop and not stays:
            self.of_epoch.add(name)

    def _forget_epoch(self) -> None:
        """Leave the members of an epoch out of checkpoints from now on."""
        while self.of_epoch:
            del self._members[self.of_epoch.pop()]

    def state_dict(self) -> dict[str, Any]:
        """Plain values, the same on every rank."""
        members = {name: member.state_dict() for name, member in self._members.items()}
        return {"version": _VERSION, "epoch": self.finished_epochs, "members": dict(self._pending) | members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. Members created later load their state when they are created.

        Raises:
            RestoreError: the state has another version.
        """
        if state["version"] != _VERSION:
            raise RestoreError(
                "the saved progress has a version that this release does not know",
                expected=f"version {_VERSION}",
                found=repr(state["version"]),
                todo="use the release of deeppart that has saved it",
            )
        self.finished_epochs, self._interrupted, self._went_back = state["epoch"], False, self._in_loop
        self._forget_epoch()
        self._pending = {}
        for name, saved in state["members"].items():
            if name in self._members:
                self._members[name].load_state_dict(saved)
            else:
                self._pending[name] = saved


#: The progress of this process.
progress = Progress()

#: :meth:`Progress.remaining_epochs_until` of the progress of this process.
remaining_epochs_until = progress.remaining_epochs_until


def current_epoch() -> int | None:
    """The epoch of the current loop over :func:`remaining_epochs_until`; None outside of loops."""
    return progress.current_epoch


def finished_epochs() -> int:
    """Number of finished epochs."""
    return progress.finished_epochs
