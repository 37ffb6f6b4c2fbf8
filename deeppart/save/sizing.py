"""The size of this rank's share of a state that is not saved yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deeppart.comm.base import Comm
from deeppart.config import Config
from deeppart.save.agreed import Call
from deeppart.save.saver import Saver
from deeppart.state.capture.staging import Staging


@dataclass(frozen=True, slots=True)
class ShareSize:
    """The memory that a share takes.

    Attributes:
        nbytes: its length.
        pinned: true if it is copied from a device.
        leaves: of the state, that have bytes.
    """

    nbytes: int
    pinned: bool
    leaves: int


def size_share(comm: Comm, config: Config, state: Any) -> ShareSize:
    """Compare a state across ranks and share it out as a checkpoint would (collective), and forget all of it.

    Nothing of what is found goes into the first checkpoint's account of what was compared when, and the user is told
    nothing of it: between the two, the state may change. So that compares all of it once more.
    """
    saver = Saver(comm, config, Staging(), lambda turn, step, diverged: None, quiet=True)
    agreed = None
    try:
        agreed = saver.agree(Call(0, 0, frozenset(), prepares=True), saver.flatten(state), busy=False)
        leaves = 0 if agreed is None else len(agreed.layout.types)
        return ShareSize(saver.share_bytes, saver.pinned, leaves)
    finally:
        saver.let_go(agreed)
        saver.close()
