"""Registering types of the caller's own."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, TypeVar

from deeppart.errors import ConfigError
from deeppart.state.tree.forms import is_stored
from deeppart.state.tree.registry import Registered, add

T = TypeVar("T")


def register(
    kind: type[T],
    to: Callable[[T], Any] | None = None,
    from_: Callable[[Any], T] | None = None,
    *,
    name: str | None = None,
    into: Callable[[T, Any], None] | None = None,
) -> type[T]:
    """Say how objects of a type are saved: as which plain data, and how they are made of it again.

    Files hold the name and the data, never code. To be called by every process that saves, restores or loads the state,
    before it does; for example beside the class. A restore of a name that is not registered is an error. ``load`` gives
    the plain data then.

    Args:
        kind: the type. It counts for objects of exactly this class; a subclass is registered for itself.
        to: ``to(obj)`` gives what can be in a state: dicts, lists, tuples, tensors, small values, other registered
            objects. Called at every checkpoint, and when a state is restored into the object. Tensors are filled in
            place if they have the shapes that were saved.
        from_: ``from_(data)`` gives an object of ``kind``.
        name: how files call it; None for the module and the qualified name of the class.
        into: ``into(obj, data)`` puts what was saved into an object of the live state. Without it the object that
            ``from_`` has made takes its place.

    Of a dataclass or an enum, ``to`` and ``from_`` may be left out: it is saved as it is without being registered, but
    ``load`` makes objects of the class, and ``restore`` can make some where the live state has none.

    Returns:
        ``kind``, so that it can be a decorator of a dataclass or an enum.

    Raises:
        ConfigError: the type or the name was registered before, or the type is one that deeppart stores by itself.

    Example:
        >>> import deeppart
        >>> class Meter:
        ...     def __init__(self, total=0.0, count=0):
        ...         self.total, self.count = total, count
        >>> _ = deeppart.register(Meter, lambda m: [m.total, m.count], lambda data: Meter(*data), name="Meter")
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"loss": Meter(2.5, 2)}, step=1)
        >>> deeppart.load("ckpt")["loss"].total
        2.5
    """
    _check(kind, to, from_, into, name)
    add(Registered(kind, f"{kind.__module__}.{kind.__qualname__}" if name is None else name, to, from_, into))
    return kind


def _check(kind: type, to: object, from_: object, into: object, name: object) -> None:
    if not isinstance(kind, type):
        raise ConfigError("only a type can be registered", found=f"{kind!r:.80}")
    own_kind = isinstance(kind, enum.EnumMeta) or dataclasses.is_dataclass(kind)
    what = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(kind, enum.EnumMeta) and to is not None:
        raise ConfigError(
            "an enum is registered without functions", found=what, todo="its members are saved by name and value"
        )
    if is_stored(kind) and not own_kind:
        raise ConfigError("a type was registered that deeppart stores by itself", found=what, todo="leave the call out")
    if to is None and from_ is None and into is None and name is None and own_kind:
        return
    if not (callable(to) and callable(from_)) or not (into is None or callable(into)):
        raise ConfigError(
            "a type is registered with two functions: to(obj) and from_(data)",
            expected="to and from_; both may be left out, with name, of a dataclass or an enum",
            found=f"{what}: to={to!r:.80}, from_={from_!r:.80}, into={into!r:.80}",
        )
    if name is not None and (type(name) is not str or not name or not name.isprintable()):
        raise ConfigError("a registered name is no text that can be shown", found=f"{what}: name={name!r:.80}")
