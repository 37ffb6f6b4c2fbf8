"""Checks the arguments of the public calls before they are used; errors suggest what was meant."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

from deeppart.config.record import Config
from deeppart.errors import CheckpointError, ConfigError

#: Largest step number that a step directory's name can hold.
LAST_STEP = 10**18


def check_step(step: Any, call: str) -> int:
    """A step as a plain int."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"{call}: step must be a whole number, not {_what(step)}{_hint(step)}") from None
    if isinstance(step, bool) or not 0 <= number < LAST_STEP:
        raise ValueError(f"{call}: step must be a whole number from 0 to {LAST_STEP - 1}, not {step!r}")
    return number


def check_state(state: Any, what: str) -> None:
    """Check that a call was given a state."""
    if isinstance(state, (str, os.PathLike)):
        name = os.fspath(state)
        place = "it is filled in place; " if what == "restore" else ""
        otherwise = f", or deeppart.load({name!r}) for a state of its own" if what == "restore" else ""
        raise TypeError(
            f"{what}(state{', step' * (what != 'prepare')}): the state comes first, and {place}"
            f"{name!r} looks like a directory: Checkpointer(persistent_dir={name!r}).{what}(state){otherwise}"
        )


def refuse_in_fork(process: int, rank: int) -> None:
    """Check that a call comes from the process that created the checkpointer."""
    if process != os.getpid():
        raise CheckpointError(
            f"called in a process that was forked from rank {rank}, such as a worker of a data loader",
            expected=f"a call in process {process}, which made the checkpointer",
            found=f"process {os.getpid()}",
            todo="hand over to the training process what is to be saved, and call it there",
        )


def _what(value: Any) -> str:
    return f"{value!r}" if isinstance(value, (str, bytes, float)) else f"a {type(value).__name__}"


def _hint(value: Any) -> str:
    if isinstance(value, str) and value.strip().isdecimal():
        return f": int({value!r})"
    if isinstance(value, float) and value.is_integer():
        return f": int({value!r})"
    if isinstance(value, (Mapping, list, tuple)) or hasattr(value, "state_dict"):
        return ": the state comes first, then the step"
    return ""


def resolve_config(config: Any, settings: dict[str, Any]) -> Config:
    """The configuration of a new :class:`deeppart.Checkpointer`."""
    if config is not None and not isinstance(config, Config):
        raise _no_config(config)
    if config is not None and settings:
        raise TypeError(f"either a config or single settings, not both: {', '.join(settings)}")
    return Config(**settings) if config is None else config


def _no_config(config: Any) -> ConfigError:
    todo = "Checkpointer(deeppart.Config(...)), or settings by name: Checkpointer(persistent_dir=...)"
    if isinstance(config, (str, os.PathLike)):
        todo = f"a directory has a name: Checkpointer(persistent_dir={os.fspath(config)!r})"
    elif isinstance(config, Mapping):
        todo = "Checkpointer(**settings), or Checkpointer(deeppart.Config(**settings))"
    elif hasattr(config, "Get_size") or hasattr(config, "receive_into"):
        todo = "a communicator comes second, or by name: Checkpointer(comm=comm)"
    elif hasattr(config, "state_dict"):
        todo = "the state is given to checkpoint(state, step) and restore(state), not to the Checkpointer"
    return ConfigError(
        "a Checkpointer is made with a deeppart.Config, or with settings by name",
        expected="a deeppart.Config",
        found=f"{_what(config)}",
        todo=todo,
    )
