"""Asking the caller's objects for their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deeppart.errors import DeeppartError, StateError
from deeppart.state.tree.conversions import class_names

#: Optimizers that give their whole state only where it was gathered before.
_SHARDED = "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer"


def state_dict_of(item: Any, where: Callable[[], str]) -> Any:
    """``item.state_dict()``.

    Args:
        where: gives the path of the object, for the error.

    Raises:
        StateError: it raised something.
    """
    try:
        return item.state_dict()
    except DeeppartError:
        raise
    except Exception as error:
        todo = "see what state_dict() of it needs; or leave the object out of the state"
        if _SHARDED in class_names(item):
            todo = (
                "put its `optim`, the optimizer of this rank's share, into the state instead, and say that it is per "
                f'rank: replicated={{"{where()}/*": "none"}}'
            )
        raise StateError(
            f"state_dict() of a {type(item).__qualname__} in the state failed",
            found=f"{type(error).__name__}: {error}",
            where=f"path {where()}",
            todo=todo,
        ) from error
