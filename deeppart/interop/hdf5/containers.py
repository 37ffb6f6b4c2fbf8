"""Keys, containers and small values of an archive of ``deeppart export``, from its groups and attributes.

The other way round than :mod:`deeppart.offline.export.hdf5` and :mod:`deeppart.offline.export.archive`.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from deeppart.errors import CorruptFileError, DeeppartError
from deeppart.part.format import short
from deeppart.part.json_text import parse_json
from deeppart.state.tree.composites import COMPOSITES, assemble
from deeppart.state.tree.objects import ABOUT, DEQUE, Form, make
from deeppart.state.tree.runs import TABLE_MAKERS, decode_leaf_value
from deeppart.state.tree.values import decode_value, is_unicode

Attribute = str | int | None
_NUMBERS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "complex": complex}


@dataclass(frozen=True, slots=True)
class Refused:
    """Stands where something cannot be taken, until it is known whether anybody wants it.

    Attributes:
        error: why.
    """

    error: DeeppartError


def first_refused(state: Any) -> Refused | None:
    """The first in a state, if any is left."""
    left = [state]
    while left:
        item = left.pop()
        if isinstance(item, Refused):
            return item
        if isinstance(item, dict):
            left += list(item.values())[::-1]
        elif isinstance(item, (list, tuple)):
            left += list(item)[::-1]
    return None


def key_of(said: Attribute, name: str, kind: Attribute, where: str) -> Any:
    """The key of what has a name in a group."""
    if said is not None:
        key = decode_value(parse_json(str(said).encode()), where)
        hash(key)
        return key
    return int(name) if kind in ("list", "tuple") else name


def in_order(names: list[bytes], said: Attribute) -> list[bytes]:
    """The names in a group, as its attribute ``order`` has them if it has one."""
    if said is None:
        return names
    ordered = [str(name).encode() for name in parse_json(str(said).encode())]
    if sorted(ordered) != sorted(names):
        raise ValueError("the order of a container is one of other names")
    return ordered


def container_of(kind: str, name: Attribute, form: Attribute, items: dict[Any, Any], where: str) -> Any:
    """A container, a tensor that is made of others, or an object."""
    if (refused := first_refused(list(items.values()))) is not None and (kind not in TABLE_MAKERS or form):
        return refused
    if kind in ("list", "tuple"):
        if sorted(items) != list(range(len(items))):
            raise ValueError(f"items {short(list(items))} of a {kind}")
        made: Any = [items[place] for place in range(len(items))]
        made = made if kind == "list" else tuple(made)
    elif kind == "namedtuple":
        made = _named_tuple(str(name), items)
    elif kind in COMPOSITES:
        made = assemble(kind, items)
    elif kind in TABLE_MAKERS:
        made = TABLE_MAKERS[kind](items.items())
    else:
        raise ValueError(f"a container of kind {short(kind)}")
    return made if form is None else _object_of(str(form), made, where)


def _named_tuple(name: str, items: dict[Any, Any]) -> Any:
    names = [name, *items]
    if not all(type(each) is str and each.isidentifier() and not keyword.iskeyword(each) for each in names[:1]):
        raise ValueError(f"no class can be called {short(name)}")
    return namedtuple(name, list(items), rename=True)(*items.values())


def _object_of(form: str, data: Any, where: str) -> Any:
    """An object without a ``state_dict()``, as ``deeppart.load`` gives it."""
    kind, *about = [tuple(each) if type(each) is list else each for each in parse_json(form.encode())]
    names = [] if kind == DEQUE else [text for each in about for text in (each if type(each) is tuple else (each,))]
    if kind not in ABOUT or len(about) != ABOUT[kind]:
        raise ValueError(f"no form of an object: {short(form)}")
    if not all(type(text) is str and is_unicode(text) and "\0" not in text for text in names):
        raise ValueError(f"an object without a name: {short(form)}")
    if kind == DEQUE and about[0] is not None and (type(about[0]) is not int or about[0] < 0):
        raise ValueError(f"a deque of {short(about[0])}")
    return make(Form(kind, tuple(about)), data, None, lambda: where)


def value_of(
    read: Callable[[h5py.h5d.DatasetID], Any], dataset: h5py.h5d.DatasetID, said: dict[str, Attribute], where: str
) -> Any:
    """A small value."""
    kind = str(said["type"])
    if dataset.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        found: Any = None
        if kind != "NoneType":
            raise CorruptFileError("a value of an archive is missing", expected=kind, where=where)
        return found
    content = read(dataset)
    if said["encoding"] == "json":
        found = decode_leaf_value(parse_json(content.encode()), where)
    elif said["items"] is not None:
        found = list(map(_NUMBERS[str(said["items"])], content.tolist()))
        found = tuple(found) if kind == "tuple" else found
    elif kind in _NUMBERS:
        found = _NUMBERS[kind](content)
    elif kind == "bytes":
        found = bytes(content)
    elif kind == "str":
        found = str(content)
    elif kind.startswith("numpy.") and isinstance(content, np.generic):
        found = content
    else:
        raise CorruptFileError("a value of an archive is of no kind that is known", found=short(kind), where=where)
    return found if said["form"] is None else _object_of(str(said["form"]), found, where)
