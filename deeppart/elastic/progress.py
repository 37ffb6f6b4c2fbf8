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
#: What messages call kinds of members.
_KINDS = {"sums": "accumulator", "parallel": "model"}


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
        #: True in the rest of an epoch in which a state was loaded, up to the next loop over data.
        self.went_back = False
        self._members: dict[str, ProgressMember] = {}
        #: Loaded states of members that do not exist yet.
        self._pending: dict[str, Mapping[str, Any]] = {}
        #: Members created within a loop over epochs. After a state is loaded there they may be created again, and then
        #: get the state of the same name in ``_recreatable``, or none if that is None.
        self._created_in_loop = set[str]()
        self._recreatable: dict[str, Mapping[str, Any] | None] = {}
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

    def begin_loop(self, name: str, member: ProgressMember) -> int | None:
        """Record that a loop over a member begins, and return :attr:`current_epoch`.

        Raises:
            ConfigError: another member of this name has replaced ``member``.
        """
        if self._members.get(name) is not member:
            raise ConfigError(
                "a loop over a loader that has been replaced",
                expected="the newer loader of this name, made after going back to an older checkpoint",
                found="the older one",
                where=f"loader {name}",
            )
        self.went_back = False
        return self.current_epoch

    def remaining_epochs_until(self, epochs: int) -> Iterator[int]:
        """Iterate over the unfinished epochs below ``epochs``.

        An epoch left by ``break``, ``return`` or an error stays the current one for checkpoints, and is finished when
        the next loop over epochs begins. After an older state is loaded within the loop, its epoch is the next one: it
        begins at once if a loop over a loader follows, otherwise (after ``continue`` or ``break``) with the next
        iteration.

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
        self.went_back = False
        while self.finished_epochs < epochs:
            self._in_loop, self.turn = True, self.turn + 1
            ended = False
            try:
                yield self.finished_epochs
                ended = True
            finally:
                self._in_loop, self._interrupted = False, not (ended or self.went_back)
            if not self.went_back:
                self.finished_epochs += 1
            self.went_back = False

    def name_for(self, kind: str, name: str | None) -> str:
        """The name of a new member.

        Args:
            kind: such as "loader".
            name: given by the user; by default the kind and a number in order of creation.

        Raises:
            ConfigError: the name is taken; or there is no name within an epoch, where the number would depend on the
                epoch that a restarted job begins with.
        """
        if name is None and self._in_loop:
            raise ConfigError(
                f"a {_KINDS.get(kind, kind)} without a name is made within the loop over epochs",
                expected="the same order of creation after a restart, which skips finished epochs",
                found=f"epoch {self.finished_epochs} is running",
                todo="make it before the loop; or give it a `name` that contains its epoch",
            )
        if name is None:
            return next(each for number in count() if (each := f"{kind}-{number}") not in self._members)
        if name in self._members and name not in self._recreatable:
            raise ConfigError(
                "two members of a training have the same name",
                found=repr(name),
                todo="give the second one another `name`",
            )
        return name

    def join(self, name: str, member: ProgressMember) -> None:
        """Register a member and load its state from a checkpoint restored before. If that fails, it is not one."""
        saved = self._pending.get(name) or self._recreatable.get(name)
        if saved is not None:
            member.load_state_dict(saved)
        self._pending.pop(name, None)
        self._recreatable.pop(name, None)
        self._members[name] = member
        if self._in_loop:
            self._created_in_loop.add(name)

    def forget(self, name: str) -> None:
        """Leave a member out of checkpoints from now on."""
        self._members.pop(name, None)
        self._created_in_loop.discard(name)

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
        self.finished_epochs, self._interrupted, self.went_back = state["epoch"], False, self._in_loop
        self._pending, self._recreatable = {}, {name: state["members"].get(name) for name in self._created_in_loop}
        for name in [each for each in self._created_in_loop if self._recreatable[each] is None]:  # newer than the state
            getattr(self._members[name], "start_over", lambda: None)()
        for name, saved in state["members"].items():
            if name in self._members:
                self._members[name].load_state_dict(saved)
            else:
                self._pending[name] = saved


#: The progress of this process.
progress = Progress()
