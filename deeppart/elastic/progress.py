"""How far a training has come: its epochs, and the places of its loaders and sums, saved under one key.

    state = {"model": model, "optimizer": optimizer, "elastic": deeppart.elastic.progress}

A job that goes on runs its script from the beginning. What has been done already is skipped: epochs that are over, and
within the epoch loops over loaders that are over. What was left in the middle goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from deeppart.errors import ConfigError, RestoreError

if TYPE_CHECKING:
    from .loader import ElasticDataLoader

#: Of what ``state_dict`` gives.
_VERSION = 1
_KINDS = {"sums": "accumulator", "parallel": "model"}


class ProgressMember(Protocol):
    """What has a place of its own: a loader, or sums."""

    def state_dict(self) -> dict[str, Any]:
        """The same small values on every rank; it may be collective."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such values."""


class Progress:
    """The epochs of one training, and what else has a place in it.

    Not for several threads. ``state_dict`` is collective where sums are among the members.

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
        self._finished = 0
        self._in_loop = False
        self._left = False
        #: A state was taken within an epoch, and no loop over data has begun since.
        self._taken = False
        self._members: dict[str, ProgressMember] = {}
        self._waiting: dict[str, Mapping[str, Any]] = {}
        #: Members that were made within a loop over epochs. When a state is taken, they may be made once more, with
        #: what the state has of them: None for nothing.
        self._within = set[str]()
        self._again: dict[str, Mapping[str, Any] | None] = {}
        #: How often a loop over epochs has begun an epoch. Members count by it what comes in which order.
        self.turn = 0
        #: The loader whose batch is being worked on.
        self.loader: ElasticDataLoader | None = None
        #: The model that is trained, where its gradients' noise is measured.
        self.trained: Any = None

    @property
    def finished_epochs(self) -> int:
        """Epochs that are over."""
        return self._finished

    @property
    def current_epoch(self) -> int | None:
        """The epoch that a loop of :meth:`remaining_epochs_until` is in; None outside of them."""
        return self._finished if self._in_loop else None

    @property
    def gone_back(self) -> bool:
        """True in the rest of an epoch in which a state was taken, up to the next loop over data."""
        return self._taken

    def entered(self, name: str, member: ProgressMember) -> int | None:
        """The epoch, as :attr:`current_epoch`, for a loop over data that begins.

        Args:
            name, member: whose loop it is.

        Raises:
            ConfigError: another member has been made in its place.
        """
        if self._members.get(name) is not member:
            raise ConfigError(
                "a loop over a loader in whose place another one was made",
                expected="the newer one of this name, made after the training has gone back to an older checkpoint",
                found="the older one",
                where=f"loader {name}",
            )
        self._taken = False
        return self.current_epoch

    def remaining_epochs_until(self, epochs: int) -> Iterator[int]:
        """The epochs that are not over yet, up to ``epochs``, exclusively.

        An epoch that is left by ``break``, ``return`` or an error stays the current one for a checkpoint that is made
        then, and is over as soon as another loop over epochs begins. If a state is taken within the loop, to go back to
        an older checkpoint, what comes next is the epoch of that: in this turn if a loop over a loader begins in it,
        otherwise (after ``continue`` or ``break``) in the next one.

        Args:
            epochs: how many there are from the beginning of the training.

        Raises:
            ConfigError: a loop over epochs is under way already.
        """
        if self._in_loop:
            raise ConfigError(
                "a loop over epochs begins in another one",
                found=f"epoch {self._finished} is under way",
                todo="end the outer loop first",
            )
        if self._left:
            self._finished, self._left = self._finished + 1, False
        self._taken = False
        while self._finished < epochs:
            self._in_loop, self.turn = True, self.turn + 1
            ended = False
            try:
                yield self._finished
                ended = True
            finally:
                self._in_loop, self._left = False, not (ended or self._taken)
            if not self._taken:
                self._finished += 1
            self._taken = False

    def name_for(self, kind: str, name: str | None) -> str:
        """The name of a new member.

        Args:
            kind: such as "loader".
            name: its own; without one, it is named by the order in which members of its kind are made.

        Raises:
            ConfigError: there is a member of this name; or it has no name, and is made within an epoch: in a job that
                goes on it would be the first one of its kind, and take that one's place.
        """
        if name is None and self._in_loop:
            raise ConfigError(
                f"a {_KINDS.get(kind, kind)} without a name is made within the loop over epochs",
                expected="the same order in a job that goes on, which does not go through epochs that are over",
                found=f"epoch {self._finished} is under way",
                todo="make it before the loop; or give it a `name` that says its epoch",
            )
        if name is None:
            return next(each for number in count() if (each := f"{kind}-{number}") not in self._members)
        if name in self._members and name not in self._again:
            raise ConfigError(
                "two members of a training have the same name",
                found=repr(name),
                todo="give the second one another `name`",
            )
        return name

    def join(self, name: str, member: ProgressMember) -> None:
        """Register a member, which takes its place at once if a checkpoint has been restored before.

        One that cannot take it is none: the next one of this name may.
        """
        saved = self._waiting.get(name) or self._again.get(name)
        if saved is not None:
            member.load_state_dict(saved)
        self._waiting.pop(name, None)
        self._again.pop(name, None)
        self._members[name] = member
        if self._in_loop:
            self._within.add(name)

    def forget(self, name: str) -> None:
        """Leave a member out of checkpoints from now on."""
        self._members.pop(name, None)
        self._within.discard(name)

    def state_dict(self) -> dict[str, Any]:
        """Small values, the same on every rank."""
        members = {name: member.state_dict() for name, member in self._members.items()}
        return {"version": _VERSION, "epoch": self._finished, "members": dict(self._waiting) | members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where a checkpoint was made. Members that do not exist yet take their places when they are made.

        Raises:
            RestoreError: it is of a later version of the library.
        """
        if state["version"] != _VERSION:
            raise RestoreError(
                "the place in the data is written in a way that this version does not know",
                expected=f"version {_VERSION}",
                found=repr(state["version"]),
                todo="use the version of deeppart that has saved it",
            )
        self._finished, self._left, self._taken = state["epoch"], False, self._in_loop
        self._waiting, self._again = {}, {name: state["members"].get(name) for name in self._within}
        for name in [each for each in self._within if self._again[each] is None]:  # it was made later than the state
            getattr(self._members[name], "start_over", lambda: None)()
        for name, saved in state["members"].items():
            if name in self._members:
                self._members[name].load_state_dict(saved)
            else:
                self._waiting[name] = saved


#: That of the process.
progress = Progress()
