"""The records that the steps of a save hand to each other while training waits: flatten, agree, capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from deeppart.save.transfer import Staged
from deeppart.state.capture.lazy import DeferredCopy
from deeppart.state.compare.divergence import Divergence
from deeppart.state.compare.state_layout import StateLayout
from deeppart.state.compare.turns import TrailingSlices
from deeppart.state.tree.flat import FlatState


@dataclass(frozen=True, slots=True)
class Call:
    """A call of ``checkpoint()`` or ``prepare()``, as the ranks compare it.

    Attributes:
        step: the user's number.
        turn: how many checkpoints this session has begun before.
        due: the levels that it goes to.
        prepares: nothing is going to be saved.
    """

    step: int
    turn: int
    due: frozenset[str]
    prepares: bool = False

    @property
    def name(self) -> str:
        """The call as messages show it."""
        return "prepare()" if self.prepares else f"checkpoint(step={self.step})"


@dataclass(frozen=True, slots=True)
class Agreed:
    """A state that all ranks are about to save.

    Attributes:
        call: the call.
        flat: the state, cut where the ranks' structures differ.
        layout: how its leaves are treated.
        rank0: how many arrays and values are rank 0's alone; this rank's own follow them in number.
        owned: leaves that only an optimizer changes, by number: the tensors that are copied after the call.
        trailing: slices that are read after the call, to be compared at the next one.
        diverged: leaves that were found to have come to differ between ranks.
        extended: true if readers before structure version 5 do not know something in the state of some rank.
    """

    call: Call
    flat: FlatState
    layout: StateLayout
    rank0: tuple[int, int]
    owned: Mapping[int, torch.Tensor]
    trailing: TrailingSlices | None
    diverged: tuple[Divergence, ...]
    extended: bool


@dataclass(frozen=True, slots=True)
class CapturedShare:
    """This rank's share in staging memory.

    Attributes:
        staged: the share.
        own_bytes: of them, how many are this rank's own.
        deferred: copies that are still to be made.
    """

    staged: Staged
    own_bytes: int
    deferred: DeferredCopy | None
