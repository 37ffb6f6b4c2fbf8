"""Types of the caller's own, and how they become plain data and are made of it again: what was registered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deeppart.errors import ConfigError

To = Callable[[Any], Any]
Into = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class Registered:
    """A type that was registered.

    Attributes:
        kind: the type.
        name: by which files call it.
        to: object -> plain data; None if it is a dataclass or an enum, of which only the class was to be known.
        make: plain data -> object.
        into: puts plain data into an object that there is; None if another one takes its place.
    """

    kind: type
    name: str
    to: To | None = None
    make: To | None = None
    into: Into | None = None


#: Held while types are registered. Both tables are replaced as a whole under it, and never changed: who reads one
#: takes it as it is, without the lock.
_LOCK = threading.Lock()
_by_type: dict[type, Registered] = {}
_by_name: dict[str, Registered] = {}


def add(made: Registered) -> None:
    """Take in a type."""
    global _by_type, _by_name
    with _LOCK:
        before = _by_type.get(made.kind) or _by_name.get(made.name)
        if before is not None:
            raise ConfigError(
                "a type or its name was registered twice",
                expected="one call of deeppart.register() for each type, with a name of its own",
                found=f"{made.kind.__module__}.{made.kind.__qualname__} as {made.name!r}, after "
                f"{before.kind.__module__}.{before.kind.__qualname__} as {before.name!r}",
                todo="register it where it is defined; or give it another name=",
            )
        _by_type, _by_name = {**_by_type, made.kind: made}, {**_by_name, made.name: made}


def registered(kind: type) -> Registered | None:
    """What was registered for a type, if it says how objects of it are saved."""
    found = _by_type.get(kind)
    return None if found is None or found.to is None else found


def registered_as(name: str) -> Registered | None:
    """What was registered by a name, if it says how objects are made."""
    found = _by_name.get(name)
    return None if found is None or found.make is None else found


def known_classes() -> list[type]:
    """The types that were registered, with or without functions."""
    return list(_by_type)
