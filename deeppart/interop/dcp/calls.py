"""What ``dcp.async_save`` was called with, as its stager sees it.

``stage()`` is given the state alone; newer releases of torch (2.13 is one, 2.4 is not) tell the writer of the
``checkpoint_id`` only afterwards, in another thread. But whoever copies only its share must know the step and the
planner now. They are arguments of a public function by their public names; so they are read there, and compared when
DCP says them.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NamedTuple

_MODULE, _FUNCTION = "torch.distributed.checkpoint.state_dict_saver", "async_save"


class AsyncSave(NamedTuple):
    """A call of ``dcp.async_save``.

    Attributes:
        checkpoint_id, planner, no_dist, use_collectives: as given.
        in_process: the save is to be made by another process.
    """

    checkpoint_id: Any = None
    planner: Any = None
    in_process: bool = False
    no_dist: bool = False
    use_collectives: bool = True


def calling_async_save() -> AsyncSave | None:
    """The call that this one is a part of; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _FUNCTION and frame.f_globals.get("__name__") == _MODULE:
            found = frame.f_locals
            kind = getattr(found.get("async_checkpointer_type"), "value", None)
            return AsyncSave(
                found.get("checkpoint_id"),
                found.get("planner"),
                kind == "process",
                bool(found.get("no_dist", False)),
                bool(found.get("use_collectives", True)),
            )
        frame = frame.f_back
    return None
