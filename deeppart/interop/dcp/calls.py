"""What ``dcp.async_save`` was called with, as its stager sees it; and ``dcp.save``, as its writer does.

``stage()`` is given the state alone; newer releases of torch (2.13 is one, 2.4 is not) tell the writer of the
``checkpoint_id`` only afterwards, in another thread. But whoever copies only its share must know the step and the
planner now. They are arguments of a public function by their public names; so they are read there, and compared when
DCP says them.

A writer is told what a planner makes of a state, never the state. Whether it is a staged one must not depend on what a
planner of the caller leaves out or renames.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, NamedTuple

_MODULE = "torch.distributed.checkpoint.state_dict_saver"


class AsyncSave(NamedTuple):
    """A call of ``dcp.async_save``.

    Attributes:
        checkpoint_id, planner, no_dist, use_collectives: as given.
        in_process: the save is to be made by another process.
        process_group: as given.
    """

    checkpoint_id: Any = None
    planner: Any = None
    in_process: bool = False
    no_dist: bool = False
    use_collectives: bool = True
    process_group: Any = None


class Save(NamedTuple):
    """A call of ``dcp.save``.

    Attributes:
        keys: of the outermost dict of the state.
        process_group: as given.
    """

    keys: tuple[Any, ...] = ()
    process_group: Any = None


def calling_async_save() -> AsyncSave | None:
    """The call that this one is a part of; None if there is none."""
    found = _arguments_of("async_save")
    if found is None:
        return None
    kind = getattr(found.get("async_checkpointer_type"), "value", None)
    return AsyncSave(
        found.get("checkpoint_id"),
        found.get("planner"),
        kind == "process",
        bool(found.get("no_dist", False)),
        bool(found.get("use_collectives", True)),
        found.get("process_group"),
    )


def calling_save() -> Save | None:
    """The call of ``dcp.save`` that this one is a part of; None if there is none."""
    found = _arguments_of("save")
    if found is None:
        return None
    state = found.get("state_dict")
    return Save(tuple(state) if isinstance(state, Mapping) else (), found.get("process_group"))


def _arguments_of(function: str) -> Mapping[str, Any] | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_globals.get("__name__") == _MODULE:
            return frame.f_locals
        frame = frame.f_back
    return None
