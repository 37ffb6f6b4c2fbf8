"""Asking the caller's objects for their state, and giving it back to them.

Random number generators have other names for that than ``state_dict()``; and torch's SWALR, before torch 2.10, gives a
function, of which a file gets the name.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeGuard

import numpy as np
import torch
from torch.optim.swa_utils import SWALR

from deeppart.errors import DeeppartError, StateError
from deeppart.state.tree.conversions import class_names

#: Optimizers that give their whole state only where it was gathered before.
_SHARDED = "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer"
#: SWALR's strategies as torch calls them from 2.10 on, and the functions that earlier ones have in their state.
_ANNEALING = {"cos": "_cosine_anneal", "linear": "_linear_anneal"}
_FUNCTION, _STRATEGY = "anneal_func", "_anneal_strategy"


def has_state(item: Any) -> bool:
    """True if an object gives its state and takes it back."""
    if callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None)):
        return True
    return is_generator(item)


def is_generator(item: Any) -> bool:
    """True for random number generators. What a subclass adds would be lost: of numpy's bit generators, all are
    subclasses, and their ``state`` is all of them.
    """
    exactly = type(item) in (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    return exactly or isinstance(item, np.random.BitGenerator)


def is_optimizer(item: Any) -> TypeGuard[torch.optim.Optimizer]:
    """True for optimizers built like torch's: groups of parameters, and a state for each. What else is called an
    optimizer, such as one that wraps another, is an object with a ``state_dict()`` like any other.
    """
    if not isinstance(item, torch.optim.Optimizer):
        return False
    groups, state = getattr(item, "param_groups", None), getattr(item, "state", None)
    return isinstance(groups, list) and all("params" in group for group in groups) and isinstance(state, dict)


def state_dict_of(item: Any, where: Callable[[], str]) -> Any:
    """``item.state_dict()``."""
    try:
        return _state(item)
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


def load_state_dict_of(item: Any, state: Any) -> None:
    """``item.load_state_dict(state)``; raises whatever that raises."""
    if isinstance(item, torch.Generator):
        item.set_state(state)
    elif isinstance(item, np.random.Generator):
        item.bit_generator.state = state
    elif isinstance(item, np.random.BitGenerator):
        item.state = state
    elif isinstance(item, np.random.RandomState):
        item.set_state(state)
    elif isinstance(item, random.Random):
        item.setstate(state)
    elif isinstance(item, SWALR) and _has_function(item.state_dict()):
        rest = {key: value for key, value in state.items() if key != _STRATEGY}
        item.load_state_dict({**rest, _FUNCTION: getattr(item, _ANNEALING[state[_STRATEGY]])})
    else:
        item.load_state_dict(state)


def _state(item: Any) -> Any:
    if isinstance(item, torch.Generator):
        return item.get_state()
    if isinstance(item, np.random.Generator):
        return item.bit_generator.state
    if isinstance(item, np.random.BitGenerator):
        return item.state
    if isinstance(item, np.random.RandomState):
        return item.get_state(legacy=False)
    if isinstance(item, random.Random):
        return item.getstate()
    state = item.state_dict()
    if isinstance(item, SWALR) and _has_function(state):
        names = [name for name, function in _ANNEALING.items() if getattr(item, function) == state[_FUNCTION]]
        if names:  # otherwise it is of the caller's own, and refused as other functions are
            return {key: value for key, value in state.items() if key != _FUNCTION} | {_STRATEGY: names[0]}
    return state


def _has_function(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get(_FUNCTION), (FunctionType, MethodType))
