"""Objects that are neither containers nor values, and whose data are plain: how they are taken apart and made again.

======================= ========================= ============================ =======================================
form                    object                    about                        data
======================= ========================= ============================ =======================================
``deque``               collections.deque         maxlen                       list of its items
``namespace``           argparse.Namespace                                     dict of its attributes
``simple_namespace``    types.SimpleNamespace                                  dict of its attributes
``dataclass``           of a dataclass            module, qualified name,      dict of its attributes
                                                  names of the fields
``registered``          of a registered type      the name                     what its ``to`` gave
======================= ========================= ============================ =======================================

In the tree such an object is a branch of kind "object", like one that has a ``state_dict()``: its data are its only
child and stand at its path. Data are always containers that nobody else has; what is in them is live.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
from collections import deque
from collections.abc import Callable
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from deeppart.errors import CorruptFileError, DeeppartError, StateError, UnsupportedLeafError
from deeppart.state.tree.columns import CONTAINERS
from deeppart.state.tree.registry import registered, registered_as
from deeppart.state.tree.stand_ins import SavedRecord, make_record
from deeppart.state.tree.values import is_value_type

DEQUE, NAMESPACE, SIMPLE, DATACLASS, REGISTERED = "deque", "namespace", "simple_namespace", "dataclass", "registered"
#: Number of items in ``about``.
ABOUT = {DEQUE: 1, NAMESPACE: 0, SIMPLE: 0, DATACLASS: 3, REGISTERED: 1}
_NAMESPACES: dict[type, str] = {argparse.Namespace: NAMESPACE, SimpleNamespace: SIMPLE}
_SPACE_TYPES: dict[str, type] = {form: kind for kind, form in _NAMESPACES.items()}
_SLOTS = MemberDescriptorType
#: Its dataclasses say which part of a tensor or object a rank has.
_MEGATRON = "megatron.core.dist_checkpointing.mapping"


class Form(NamedTuple):
    """What an object is, without its data.

    Attributes:
        kind: of the table above.
        about: what else there is to it.
    """

    kind: str
    about: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.kind == DEQUE:
            return "deque" if self.about[0] is None else f"deque(maxlen={self.about[0]})"
        if self.kind == DATACLASS:
            return f"dataclass {self.about[0]}.{self.about[1]}"
        return f"registered {self.about[0]!r}" if self.kind == REGISTERED else self.kind.replace("_", " ")

    def fits(self, other: Form) -> bool:
        """True if an object of this form can take what one of another had: a class may have moved to another module."""
        if self.kind == DATACLASS == other.kind:
            return bool(self.about[1] == other.about[1])
        return self == other


def is_stored(kind: type) -> bool:
    """True if objects of a type are stored without being registered, and not by their own ``state_dict()``."""
    plain = is_value_type(kind) or kind in CONTAINERS or kind is deque or kind in _NAMESPACES
    known = (torch.Tensor, torch.Generator, np.ndarray, np.random.Generator, np.random.BitGenerator, random.Random)
    return plain or issubclass(kind, known) or dataclasses.is_dataclass(kind)


def form_of(item: Any) -> Form | None:
    """The form of an object; None if it has none.

    A subclass of a type with a form may have a state of its own, and has none: exactly these types have.
    """
    kind = type(item)
    if (known := registered(kind)) is not None:
        return Form(REGISTERED, (known.name,))
    if kind is deque:
        return Form(DEQUE, (item.maxlen,))
    if kind in _NAMESPACES:
        return Form(_NAMESPACES[kind])
    if issubclass(kind, SavedRecord):
        return Form(DATACLASS, kind.saved_class)
    if hasattr(kind, "__dataclass_fields__"):
        return Form(DATACLASS, (kind.__module__, kind.__qualname__, field_names(kind)))
    return None


def data_of(item: Any, form: Form, where: Callable[[], str]) -> Any:
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


def put(item: Any, form: Form, data: Any, where: Callable[[], str]) -> Any:
    """Give a live object the data of another one of its form; returns it, or the object to put in its place."""
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


def remade(item: Any, form: Form, data: Any, where: Callable[[], str]) -> Any:
    """A new object like a live one, with other data."""
    return make(form, data, type(item) if form.kind == DATACLASS else None, where)


def make(form: Form, data: Any, kind: type | None, where: Callable[[], str]) -> Any:
    """A new object."""
    if form.kind == REGISTERED:
        known = registered_as(form.about[0])
        if known is None or known.make is None:
            return data
        made = _called(known.make, "from_", known.name, where, data)
        if type(made) is not known.kind:
            raise StateError(
                f"from_ of the registered type {known.name!r} has made something else",
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


def _are_names(form: Form, data: Any) -> bool:
    return form.kind == DEQUE or set(map(type, data)) <= {str}


def replaces(item: Any, form: Form) -> bool:
    """True if another object takes the place of a live one whose data change."""
    if form.kind == REGISTERED:
        known = registered(type(item))
        return known is not None and known.into is None
    return form.kind == DATACLASS and not isinstance(item, SavedRecord) and is_frozen(type(item))


# --- dataclasses ------------------------------------------------------------------------------------------------------


def field_names(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))


def is_frozen(kind: Any) -> bool:
    """True if objects of a dataclass are not to change."""
    return bool(kind.__dataclass_params__.frozen)


def takes(kind: Any, name: str) -> bool:
    """True if objects of a dataclass can have an attribute."""
    return kind.__dictoffset__ != 0 or name in _members(kind)[0]


@functools.lru_cache(maxsize=256)
def _members(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The slots of a class, and the names under which it keeps what it computes from the rest."""
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
    """All attributes that an object of a dataclass has of its own. Runs none of its code."""
    kind: Any = type(item)
    if kind.__module__ == _MEGATRON:  # taken for values, its offsets would be those of the layout that saved it
        raise UnsupportedLeafError(
            f"the state holds a {_MEGATRON}.{kind.__qualname__}",
            expected="tensors that tell by torch's protocol for checkpoints what this rank has of them",
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
            f"the state holds a dataclass {kind.__module__}.{kind.__qualname__}, which has more to it than attributes",
            expected="a dataclass whose fields are attributes, made by object.__new__",
            found=f"fields that are properties: {', '.join(behind)}" if behind else f"{kind.__new__!r:.80}",
            where=where(),
            todo="tell deeppart.register() how to save it; or give it state_dict() and load_state_dict()",
        )
    return found


def _set_attributes(item: Any, data: dict[str, Any]) -> None:
    """Give an object of a dataclass these attributes and no others; runs none of its code."""
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
