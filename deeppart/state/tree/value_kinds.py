"""Small values of the standard library, sets and enums among them: their JSON form (docs/format.md, small values).

:mod:`deeppart.state.tree.values` encodes what is inside them. None of these kinds is known to structure documents
before version 5.
"""

from __future__ import annotations

import base64
import datetime
import enum
import io
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID, SafeUUID

from torch.torch_version import TorchVersion

from deeppart.errors import UnsupportedLeafError
from deeppart.state.tree.stand_ins import SavedMember

#: Encodes or decodes what is inside a value.
Inner = Callable[[Any], Any]

_PLAIN = frozenset({str, int, float, bool, type(None)})
_PATHS: dict[str, Callable[[str], Any]] = {
    "posix": PosixPath,
    "pure_posix": PurePosixPath,
    "pure_windows": PureWindowsPath,
}
_PATH_NAMES: dict[Any, str] = {kind: name for name, kind in _PATHS.items()}
_INT64_LIMIT = 1 << 63

# --- encoding ---------------------------------------------------------------------------------------------------------


def encoder_of(kind: type) -> Callable[[Any, Inner], list[Any]] | None:
    """What encodes values of a type, given what encodes a key; None if it is no type of this module."""
    found = _ENCODERS.get(kind)
    return _of_member if found is None and isinstance(kind, enum.EnumMeta) else found


def is_kind(kind: type) -> bool:
    """True for the types of this module."""
    return kind in _ENCODERS or isinstance(kind, enum.EnumMeta)


def _of_path(value: Any, inner: Inner) -> list[Any]:
    return ["path", _PATH_NAMES[type(value)], inner(str(value))]


def _of_date(value: datetime.date, inner: Inner) -> list[Any]:
    return ["date", value.year, value.month, value.day]


def _of_time(value: datetime.time, inner: Inner) -> list[Any]:
    return ["time", value.hour, value.minute, value.second, value.microsecond, value.fold, inner(value.tzinfo)]


def _of_datetime(value: datetime.datetime, inner: Inner) -> list[Any]:
    return ["datetime", value.year, value.month, value.day, *_of_time(value.timetz(), inner)[1:]]


def _of_timedelta(value: datetime.timedelta, inner: Inner) -> list[Any]:
    return ["timedelta", value.days, value.seconds, value.microseconds]


def _of_timezone(value: Any, inner: Inner) -> list[Any]:
    offset, *name = value.__getinitargs__()
    return ["timezone", *_of_timedelta(offset, inner)[1:], *map(inner, name)]


def _of_range(value: range, inner: Inner) -> list[Any]:
    return ["range", inner(value.start), inner(value.stop), inner(value.step)]


def _of_slice(value: slice, inner: Inner) -> list[Any]:
    return ["slice", inner(value.start), inner(value.stop), inner(value.step)]


def _of_stream(value: io.BytesIO, inner: Inner) -> list[Any]:
    if value.closed or vars(value):
        raise UnsupportedLeafError(
            "the state holds an io.BytesIO that is closed" if value.closed else "an io.BytesIO has attributes",
            expected="an open io.BytesIO without attributes of its own",
            found="" if value.closed else ", ".join(map(str, vars(value))),
            todo="save x.getvalue() before it is closed, and the attributes beside it",
        )
    return ["bytesio", base64.b64encode(value.getbuffer()).decode("ascii"), value.tell()]


def _of_set(value: set[Any] | frozenset[Any], inner: Inner) -> list[Any]:
    return ["set" if type(value) is set else "frozenset", encode_items(value, inner)]


def encode_items(items: Iterable[Any], inner: Inner) -> list[Any]:
    """The items of a set, in an order that depends on nothing but what they are."""
    kinds = set(map(type, items))
    if kinds in ({str}, {int}) or (kinds == {float} and all(map(math.isfinite, items))):
        ordered = sorted(items)
        return ordered if _are_plain(ordered, [ordered[0], ordered[-1]]) else list(map(inner, ordered))
    if kinds == {tuple}:
        inside = list(chain.from_iterable(items))
        inner_kinds = set(map(type, inside))
        if inner_kinds in ({int}, {str}) or (
            inner_kinds == {int, str} and len({tuple(map(type, item)) for item in items}) == 1
        ):
            ordered = sorted(items)
            of_kinds: list[list[Any]] = [[each for each in inside if type(each) is kind] for kind in inner_kinds]
            plain = all(_are_plain(each, [min(each), max(each)]) for each in of_kinds)
            return [["tuple", list(item)] for item in ordered] if plain else list(map(inner, ordered))
    encoded = [(type(item).__name__, inner(item)) for item in items]
    return [each for _, _, each in sorted((name, json.dumps(each), each) for name, each in encoded)]


def _are_plain(items: list[Any], ends: list[Any]) -> bool:
    """True if items of one type stand for themselves in JSON; ``ends`` are the least and the greatest."""
    if type(ends[0]) is int:
        return bool(-_INT64_LIMIT <= ends[0] and ends[1] < _INT64_LIMIT)
    if type(ends[0]) is float:
        return True
    try:
        "\n".join(items).encode()
    except UnicodeEncodeError:
        return False
    return True


def _of_member(value: Any, inner: Inner) -> list[Any]:
    if type(value) is SavedMember:
        entry = [value.module, value.enum, value.name]
        return ["enum", *entry, *([inner(value.value)] if value.has_value else [])]
    kind = type(value)
    entry = [kind.__module__, kind.__qualname__, value.name]
    try:
        hash(value.value)
        return ["enum", *entry, inner(value.value)]
    except (UnsupportedLeafError, TypeError):  # its name is enough
        return ["enum", *entry]


_ENCODERS: dict[type, Callable[[Any, Inner], list[Any]]] = {
    **dict.fromkeys(_PATH_NAMES, _of_path),
    datetime.date: _of_date,
    datetime.time: _of_time,
    datetime.datetime: _of_datetime,
    datetime.timedelta: _of_timedelta,
    datetime.timezone: _of_timezone,
    Decimal: lambda value, inner: ["decimal", str(value)],
    Fraction: lambda value, inner: ["fraction", inner(value.numerator), inner(value.denominator)],
    UUID: lambda value, inner: ["uuid", value.hex, value.is_safe.name],
    range: _of_range,
    slice: _of_slice,
    type(Ellipsis): lambda value, inner: ["ellipsis"],
    TorchVersion: lambda value, inner: ["torch_version", inner(str.__str__(value))],
    bytearray: lambda value, inner: ["bytearray", base64.b64encode(value).decode("ascii")],
    io.BytesIO: _of_stream,
    set: _of_set,
    frozenset: _of_set,
    SavedMember: _of_member,
}
#: Values that change, and stay the objects that they are in a restore.
MUTABLE = frozenset({bytearray, io.BytesIO, set})


def put_in(live: Any, value: Any) -> Any:
    """Give a live value that can change what another one of its type has; returns it, or the other one where it cannot
    be resized because something else looks into its memory.
    """
    try:
        if type(live) is bytearray:
            live[:] = value
        elif type(live) is set:
            live.clear()
            live.update(value)
        else:
            position = value.tell()
            live.seek(0)
            live.truncate()
            live.write(value.getvalue())
            live.seek(position)
    except (BufferError, ValueError):
        return value
    return live


def fresh(value: Any) -> Any:
    """A copy of a value that can change; any other as it is."""
    if type(value) is io.BytesIO:
        copied = io.BytesIO(value.getvalue())
        copied.seek(value.tell())
        return copied
    return type(value)(value) if type(value) in MUTABLE else value


# --- decoding ---------------------------------------------------------------------------------------------------------


def _to_path(arguments: list[Any], inner: Inner) -> Any:
    kind, text = arguments
    return _PATHS[kind](_text(inner(text)))


def _to_datetime(arguments: list[Any], inner: Inner) -> Any:
    *date, hour, minute, second, micro, fold, zone = arguments
    numbers: list[Any] = [*_ints(date, 3), *_ints([hour, minute, second, micro], 4), inner(zone)]
    return datetime.datetime(*numbers, fold=fold)  # noqa: DTZ001  # without a time zone if it was saved so


def _to_time(arguments: list[Any], inner: Inner) -> Any:
    *clock, fold, zone = arguments
    numbers: list[Any] = [*_ints(clock, 4), inner(zone)]
    return datetime.time(*numbers, fold=fold)


def _to_timezone(arguments: list[Any], inner: Inner) -> Any:
    offset = datetime.timedelta(*_ints(arguments[:3], 3))
    return datetime.timezone(offset, *[_text(inner(name)) for name in arguments[3:]])


def _to_fraction(arguments: list[Any], inner: Inner) -> Any:
    numerator, denominator = map(inner, arguments)
    if denominator == 0:
        raise ValueError("a fraction with denominator 0")
    return Fraction(numerator, denominator)


def _to_decimal(arguments: list[Any], inner: Inner) -> Any:
    (text,) = arguments
    try:
        return Decimal(_text(text))
    except ArithmeticError as error:
        raise ValueError("no decimal number") from error


def _to_uuid(arguments: list[Any], inner: Inner) -> Any:
    text, safe = arguments
    return UUID(hex=_text(text), is_safe=SafeUUID[safe])


def _to_bytearray(arguments: list[Any], inner: Inner) -> Any:
    (data,) = arguments
    return bytearray(base64.b64decode(data, validate=True))


def _to_stream(arguments: list[Any], inner: Inner) -> Any:
    data, position = arguments
    made = io.BytesIO(base64.b64decode(data, validate=True))
    made.seek(*_ints([position], 1))
    return made


def _to_items(kind: type) -> Callable[[list[Any], Inner], Any]:
    def decode(arguments: list[Any], inner: Inner) -> Any:
        (items,) = arguments
        if type(items) is not list:
            raise TypeError("no list of items")
        decoded = kind(items if set(map(type, items)) <= _PLAIN else map(inner, items))
        if len(decoded) != len(items):
            raise ValueError("items of a set are repeated")
        return decoded

    return decode


def _to_member(arguments: list[Any], inner: Inner) -> Any:
    module, name, member, *value = arguments
    if not all(type(each) is str and "\0" not in each for each in (module, name)) or len(value) > 1:
        raise ValueError("an enum without a name")
    if member is not None:
        _text(member)
    decoded = inner(value[0]) if value else None
    hash(decoded)
    return SavedMember(module, name, member, decoded, bool(value))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _ints(values: list[Any], count: int) -> list[int]:
    if len(values) != count or not all(type(value) is int for value in values):
        raise ValueError(f"not {count} integers")
    return values


#: Tag -> what decodes what follows it, given what decodes a value inside.
DECODERS: dict[str, Callable[[list[Any], Inner], Any]] = {
    "path": _to_path,
    "date": lambda arguments, inner: datetime.date(*_ints(arguments, 3)),
    "time": _to_time,
    "datetime": _to_datetime,
    "timedelta": lambda arguments, inner: datetime.timedelta(*_ints(arguments, 3)),
    "timezone": _to_timezone,
    "decimal": _to_decimal,
    "fraction": _to_fraction,
    "uuid": _to_uuid,
    "range": lambda arguments, inner: range(*_ints([inner(each) for each in arguments], 3)),
    "slice": lambda arguments, inner: slice(*[inner(each) for each in arguments]),
    "ellipsis": lambda arguments, inner: ...,
    "torch_version": lambda arguments, inner: TorchVersion(*[_text(inner(each)) for each in arguments]),
    "bytearray": _to_bytearray,
    "bytesio": _to_stream,
    "set": _to_items(set),
    "frozenset": _to_items(frozenset),
    "enum": _to_member,
}
