"""Objects in a state that are neither containers nor tensors nor values.

Some provide their own state: those with ``state_dict()`` and ``load_state_dict()``, and random number generators. The
others are saved as plain data, according to their *form*:

======================= ========================= ============================ =======================================
form                    object                    about                        data
======================= ========================= ============================ =======================================
``deque``               collections.deque         maxlen                       list of its items
``namespace``           argparse.Namespace                                     dict of its attributes
``simple_namespace``    types.SimpleNamespace                                  dict of its attributes
``dataclass``           of a dataclass            module, qualified name,      dict of its attributes
                                                  names of the fields
``registered``          of a registered type      the name                     what its ``to`` returned
======================= ========================= ============================ =======================================

In the tree both are a branch of kind "object", whose only child is the state or the data, at the same path. Data are
always new containers; their items are live.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType, MethodType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeGuard, TypeVar

import numpy as np
import torch
from torch.optim.swa_utils import SWALR

from deeppart.errors import ConfigError, CorruptFileError, DeeppartError, StateError, UnsupportedLeafError
from deeppart.state.paths import Path, readable
from deeppart.state.values import CONTAINERS, class_names, is_value_type

T = TypeVar("T")
To = Callable[[Any], Any]
Into = Callable[[Any, Any], None]
#: Optimizers whose state_dict() only has the whole state after it was consolidated.
_SHARDED = "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer"
#: Names of SWALR's strategies from torch 2.10 on, and the functions that earlier releases have in the state.
_ANNEALING = {"cos": "_cosine_anneal", "linear": "_linear_anneal"}
_FUNCTION, _STRATEGY = "anneal_func", "_anneal_strategy"
DEQUE, NAMESPACE, SIMPLE, DATACLASS, REGISTERED = "deque", "namespace", "simple_namespace", "dataclass", "registered"
#: Number of items in ``about``, by form.
ABOUT = {DEQUE: 1, NAMESPACE: 0, SIMPLE: 0, DATACLASS: 3, REGISTERED: 1}
_NAMESPACES: dict[type, str] = {argparse.Namespace: NAMESPACE, SimpleNamespace: SIMPLE}
_SPACE_TYPES: dict[str, type] = {form: kind for kind, form in _NAMESPACES.items()}
_SLOTS = MemberDescriptorType
#: The dataclasses of this module describe which part of a tensor or object a rank has.
_MEGATRON = "megatron.core.dist_checkpointing.mapping"


def register(
    kind: type[T],
    to: Callable[[T], Any] | None = None,
    from_: Callable[[Any], T] | None = None,
    *,
    name: str | None = None,
    into: Callable[[T, Any], None] | None = None,
) -> type[T]:
    """Say how objects of a type are saved: as which plain data, and how they are made from it again.

    Files hold the name and the data, never code. To be called by every process that saves, restores or loads the state,
    before it does so; for example next to the class. A restore of a name that is not registered is an error; ``load``
    then returns the plain data.

    Args:
        kind: the type. Only objects of exactly this class are affected; a subclass is registered separately.
        to: ``to(obj)`` returns something that can be in a state: dicts, lists, tuples, tensors, small values, other
            registered objects. Called at every checkpoint, and when a state is restored into the object. Tensors are
            filled in place if they have the saved shapes.
        from_: ``from_(data)`` returns an object of ``kind``.
        name: its name in files; None for the module and the qualified name of the class.
        into: ``into(obj, data)`` puts saved data into an object of the live state. Without it, the object returned by
            ``from_`` replaces the live one.

    For a dataclass or an enum, ``to`` and ``from_`` may be left out: it can be saved without being registered, but then
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


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered type.

    Attributes:
        kind: the type.
        name: its name in files.
        to: object -> plain data; None for a dataclass or an enum that was registered without functions.
        make: plain data -> object.
        into: puts plain data into an existing object; None if a new one replaces it.
    """

    kind: type
    name: str
    to: To | None = None
    make: To | None = None
    into: Into | None = None


#: Held while types are registered. Both tables are replaced as a whole under it and never changed, so they can be read
#: without the lock.
_LOCK = threading.Lock()
_by_type: dict[type, Registered] = {}
_by_name: dict[str, Registered] = {}


def add(made: Registered) -> None:
    """Register a type."""
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
    """The registration of a type, if it has functions."""
    found = _by_type.get(kind)
    return None if found is None or found.to is None else found


def registered_as(name: str) -> Registered | None:
    """The registration with a name, if it has functions."""
    found = _by_name.get(name)
    return None if found is None or found.make is None else found


def known_classes() -> list[type]:
    """All registered types, with or without functions."""
    return list(_by_type)


# --- objects in a state -----------------------------------------------------------------------------------------------


def is_object(item: Any) -> bool:
    """True for a storable item that is neither a value nor a container nor a tensor or array."""
    return has_state(item) or form_of(item) is not None


def object_form(item: Any) -> ObjectForm | None:
    """The form of an object; None if it provides its own state."""
    return form_of(item) if registered(type(item)) is not None or not has_state(item) else None


def object_state(item: Any, form: ObjectForm | None, path: Path) -> Any:
    """The data or state of an object, as it is in the tree."""
    if form is None:
        return state_dict_of(item, lambda: readable(path))
    return data_of(item, form, lambda: f"path {readable(path)}")


# --- objects that provide their own state -----------------------------------------------------------------------------


def has_state(item: Any) -> bool:
    """True if an object has ``state_dict()`` and ``load_state_dict()``, or is a random number generator."""
    if callable(getattr(item, "state_dict", None)) and callable(getattr(item, "load_state_dict", None)):
        return True
    return is_generator(item)


def is_generator(item: Any) -> bool:
    """True for random number generators of exactly the known types: attributes of a subclass would be lost. numpy's
    bit generators are all subclasses, and are saved completely by their ``state``.
    """
    exactly = type(item) in (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    return exactly or isinstance(item, np.random.BitGenerator)


def is_optimizer(item: Any) -> TypeGuard[torch.optim.Optimizer]:
    """True for optimizers like torch's, with groups of parameters and a state for each. Other optimizers, such as
    wrappers of one, are objects with a ``state_dict()`` like any other.
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
    """``item.load_state_dict(state)``; raises its exceptions unchanged."""
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
        if names:  # otherwise the caller's function, which is refused like any other
            return {key: value for key, value in state.items() if key != _FUNCTION} | {_STRATEGY: names[0]}
    return state


def _has_function(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get(_FUNCTION), (FunctionType, MethodType))


# --- objects that are saved as plain data -----------------------------------------------------------------------------


class ObjectForm(NamedTuple):
    """How an object is saved as data, without the data.

    Attributes:
        kind: a form of the table above.
        about: its other properties, as in the table above.
    """

    kind: str
    about: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.kind == DEQUE:
            return "deque" if self.about[0] is None else f"deque(maxlen={self.about[0]})"
        if self.kind == DATACLASS:
            return f"dataclass {self.about[0]}.{self.about[1]}"
        return f"registered {self.about[0]!r}" if self.kind == REGISTERED else self.kind.replace("_", " ")

    def fits(self, other: ObjectForm) -> bool:
        """True if an object of this form can take the data of another form: its class may have moved since."""
        if self.kind == DATACLASS == other.kind:
            return bool(self.about[1] == other.about[1])
        return self == other


def is_stored(kind: type) -> bool:
    """True if objects of a type can be stored without being registered and without a ``state_dict()``."""
    plain = is_value_type(kind) or kind in CONTAINERS or kind is deque or kind in _NAMESPACES
    known = (torch.Tensor, torch.Generator, np.ndarray, np.random.Generator, np.random.BitGenerator, random.Random)
    return plain or issubclass(kind, known) or dataclasses.is_dataclass(kind)


def form_of(item: Any) -> ObjectForm | None:
    """The form of an object; None if it has none.

    Only objects of exactly these types have one: a subclass may have more state.
    """
    kind = type(item)
    if (known := registered(kind)) is not None:
        return ObjectForm(REGISTERED, (known.name,))
    if kind is deque:
        return ObjectForm(DEQUE, (item.maxlen,))
    if kind in _NAMESPACES:
        return ObjectForm(_NAMESPACES[kind])
    if issubclass(kind, SavedRecord):
        return ObjectForm(DATACLASS, kind.saved_class)
    if hasattr(kind, "__dataclass_fields__"):
        return ObjectForm(DATACLASS, (kind.__module__, kind.__qualname__, field_names(kind)))
    return None


def data_of(item: Any, form: ObjectForm, where: Callable[[], str]) -> Any:
    """The data of an object."""
    if form.kind == DEQUE:
        return list(item)
    if form.kind == REGISTERED:
        known = registered(type(item))
        assert known is not None and known.to is not None
        return _called(known.to, "to", known.name, where, item)
    if form.kind == DATACLASS and not isinstance(item, SavedRecord):
        return _attributes(item, where)
    return dict(vars(item))


def put(item: Any, form: ObjectForm, data: Any, where: Callable[[], str]) -> Any:
    """Put data into a live object of the same form; returns it, or a new object that replaces it."""
    if form.kind == DEQUE:
        item.clear()
        item.extend(data)
        return item
    if form.kind == REGISTERED:
        known = registered(type(item))
        assert known is not None
        if known.into is None:
            return make(form, data, None, where)
        _called(known.into, "into", known.name, where, item, data)
        return item
    if form.kind == DATACLASS and not isinstance(item, SavedRecord):
        if not is_frozen(type(item)):
            _set_attributes(item, data)
            return item
        before = _attributes(item, where)
        same = before.keys() == data.keys() and all(before[name] is data[name] for name in before)
        return item if same else make(form, data, type(item), where)
    vars(item).clear()
    vars(item).update(data)
    return item


def remade(item: Any, form: ObjectForm, data: Any, where: Callable[[], str]) -> Any:
    """A new object of the class of a live one, with other data."""
    return make(form, data, type(item) if form.kind == DATACLASS else None, where)


def make(form: ObjectForm, data: Any, kind: type | None, where: Callable[[], str]) -> Any:
    """A new object from its form and data."""
    if form.kind == REGISTERED:
        known = registered_as(form.about[0])
        if known is None or known.make is None:
            return data
        made = _called(known.make, "from_", known.name, where, data)
        if type(made) is not known.kind:
            raise StateError(
                f"from_ of the registered type {known.name!r} returned an object of another type",
                expected=f"a {known.kind.__qualname__}",
                found=f"a {type(made).__qualname__}",
                where=where(),
            )
        return made
    items: Any = data
    if type(data) is not (list if form.kind == DEQUE else dict) or not _are_names(form, data):
        raise CorruptFileError(f"the saved data of a {form} do not make one", found=type(data).__name__, where=where())
    if form.kind == DEQUE:
        return deque(data, form.about[0])
    if form.kind == DATACLASS and (kind is None or issubclass(kind, SavedRecord)):
        module, name, fields = form.about
        return make_record(module, name, fields, items)
    if kind is not None:
        made = object.__new__(kind)
        _set_attributes(made, items)
        return made
    space = _SPACE_TYPES[form.kind]()
    vars(space).update(data)
    return space


def _are_names(form: ObjectForm, data: Any) -> bool:
    return form.kind == DEQUE or set(map(type, data)) <= {str}


def replaces(item: Any, form: ObjectForm) -> bool:
    """True if a changed object replaces the live one instead of changing it."""
    if form.kind == REGISTERED:
        known = registered(type(item))
        return known is not None and known.into is None
    return form.kind == DATACLASS and not isinstance(item, SavedRecord) and is_frozen(type(item))


# --- dataclasses ------------------------------------------------------------------------------------------------------


def field_names(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))


def is_frozen(kind: Any) -> bool:
    """True if objects of a dataclass are immutable."""
    return bool(kind.__dataclass_params__.frozen)


def takes(kind: Any, name: str) -> bool:
    """True if objects of a dataclass can have an attribute of this name."""
    return kind.__dictoffset__ != 0 or name in _members(kind)[0]


@functools.lru_cache(maxsize=256)
def _members(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The slots of a class, and the names of its cached computed properties."""
    slots: dict[str, Any] = {}
    cached = set()
    for each in kind.__mro__:
        for name, member in vars(each).items():
            if isinstance(member, _SLOTS):
                slots.setdefault(name, member)
            if isinstance(member, functools.cached_property):
                cached.add(name)
    return slots, frozenset(cached)


def _attributes(item: Any, where: Callable[[], str]) -> dict[str, Any]:
    """All instance attributes of a dataclass object. Runs none of its code."""
    kind: Any = type(item)
    if kind.__module__ == _MEGATRON:  # saved as values, its offsets would stay those of the layout that saved it
        raise UnsupportedLeafError(
            f"the state holds a {_MEGATRON}.{kind.__qualname__}",
            expected="tensors that describe this rank's shards by torch's protocol for checkpoints",
            where=where(),
            todo="save and load sharded state dicts of Megatron-core with deeppart.interop.megatron",
        )
    slots, cached = _members(kind)
    own = getattr(item, "__dict__", {})
    found = {name: value for name, value in own.items() if name not in cached}
    for name, slot in slots.items():
        try:
            found[name] = slot.__get__(item, kind)
        except AttributeError:  # not set
            continue
    names = field_names(kind)
    behind = [
        name for name in names if name not in {**found, **slots} and hasattr(getattr(kind, name, None), "__set__")
    ]
    if kind.__new__ is not object.__new__ or behind:  # a dict with fields, say
        raise UnsupportedLeafError(
            f"the state holds a dataclass {kind.__module__}.{kind.__qualname__}, which has more state than attributes",
            expected="a dataclass whose fields are attributes, made by object.__new__",
            found=f"fields that are properties: {', '.join(behind)}" if behind else f"{kind.__new__!r:.80}",
            where=where(),
            todo="tell deeppart.register() how to save it; or give it state_dict() and load_state_dict()",
        )
    return found


def _set_attributes(item: Any, data: dict[str, Any]) -> None:
    """Give a dataclass object exactly these attributes; runs none of its code."""
    kind: Any = type(item)
    slots, _ = _members(kind)
    own = getattr(item, "__dict__", {})
    for name in [name for name in own if name not in data]:
        del own[name]
    for name, slot in slots.items():
        if name in data:
            slot.__set__(item, data[name])
    own.update((name, value) for name, value in data.items() if name not in slots)


def _called(function: Callable[..., Any], what: str, name: str, where: Callable[[], str], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except DeeppartError:
        raise
    except Exception as error:
        raise StateError(
            f"{what} of the registered type {name!r} failed",
            found=f"{type(error).__name__}: {error}",
            where=where(),
            todo="see what the function that deeppart.register() was given needs",
        ) from error


# --- stand-ins --------------------------------------------------------------------------------------------------------


class SavedRecord(SimpleNamespace):
    """An object of a dataclass, as ``load`` returns it: its attributes, in a class with the name of the saved one.

    Attributes:
        saved_class: module and qualified name of the class, and the names of its fields.

    Example:
        >>> import dataclasses
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     settings = dataclasses.make_dataclass("Settings", ["rate"])(rate=0.5)
        ...     pending = checkpointer.checkpoint({"settings": settings}, step=1)
        >>> deeppart.load("ckpt")["settings"]
        Settings(rate=0.5)
    """

    saved_class: ClassVar[tuple[str, str, tuple[str, ...]]] = ("", "", ())

    def __reduce__(self) -> tuple[Any, ...]:
        return make_record, (*type(self).saved_class, vars(self))


def make_record(module: str, name: str, fields: tuple[str, ...], attributes: dict[str, Any]) -> SavedRecord:
    """A record with these attributes, of a class with this name."""
    made = _record_class(module, name, fields)()
    vars(made).update(attributes)
    return made


@functools.lru_cache(maxsize=256)
def _record_class(module: str, name: str, fields: tuple[str, ...]) -> type[SavedRecord]:
    """One class for all records of a dataclass."""
    return type(
        name.rpartition(".")[2], (SavedRecord,), {"saved_class": (module, name, fields), "__module__": __name__}
    )
