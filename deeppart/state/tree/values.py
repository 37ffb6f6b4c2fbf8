"""Small values as JSON: everything in a state that is not an array, and the keys of its dicts.

The encoding is exact and executes nothing when read. A JSON scalar stands for itself; what JSON cannot hold is a list
``[tag, ...]``; docs/format.md (small values) lists the tags.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import enum
import io
import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID, SafeUUID

import numpy as np
import torch
from torch.torch_version import TorchVersion

from deeppart.errors import CorruptFileError, UnsupportedLeafError
from deeppart.part import short

#: JSON-like value: None, bool, int, float, str, or a tagged list.
Encoded = Any
_INT64_LIMIT = 1 << 63
_SURROGATES = "surrogatepass"
_PLAIN = frozenset({type(None), bool})
_NUMPY_KINDS = frozenset("biufcSUmM")
#: ``dtype.str`` of these kinds: a few digits, and the unit of a time.
_NUMPY_DTYPE = re.compile(r"[<>|][biufcSU][0-9]{1,9}|[<>][mM]8(\[[0-9]{0,9}[A-Za-z]{1,2}\])?", re.ASCII)
#: What decoding raises where a file holds something else; RuntimeError also covers RecursionError.
_UNDECODABLE = (
    *(KeyError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, IndexError),
    *(struct.error, binascii.Error, UnsupportedLeafError),
)
#: By the name that a file holds. An attribute of torch would do as well, but some import what they name.
_DTYPES = {str(item).removeprefix("torch."): item for item in vars(torch).values() if isinstance(item, torch.dtype)}
_VALUE_TYPES = _PLAIN | {str, int, float, complex, bytes, torch.dtype, torch.device, torch.Size}
#: Encodes or decodes what is inside a value.
Inner = Callable[[Any], Any]
#: Types of which JSON has all values but some texts, floats and large integers.
JSON_SCALARS = frozenset({str, int, float, bool, type(None)})
_PATHS: dict[str, Callable[[str], Any]] = {
    "posix": PosixPath,
    "pure_posix": PurePosixPath,
    "pure_windows": PureWindowsPath,
}
_PATH_NAMES: dict[Any, str] = {kind: name for name, kind in _PATHS.items()}
#: Values that change, and stay the objects that they are in a restore.
MUTABLE = frozenset({bytearray, io.BytesIO, set})


def is_value(value: object) -> bool:
    """True if this is one of the small values that :func:`encode_value` takes (tuples are containers, not values)."""
    return is_value_type(type(value))


def is_value_type(kind: type) -> bool:
    """True if objects of this type are small values."""
    return kind in _VALUE_TYPES or is_kind(kind) or (issubclass(kind, np.generic) and kind.__module__ == np.__name__)


def encode_value(value: Any, where: str) -> Encoded:
    """Encode one small value."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str:
        return (
            value
            if is_unicode(value)
            else ["str", base64.b64encode(value.encode("utf-8", _SURROGATES)).decode("ascii")]
        )
    if kind is int:
        return value if -_INT64_LIMIT <= value < _INT64_LIMIT else ["int", format(value, "x")]
    if kind is float:
        return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]
    if kind is complex:
        return ["complex", struct.pack(">dd", value.real, value.imag).hex()]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode("ascii")]
    if kind is torch.dtype:
        return ["dtype", str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(value)]
    if kind is torch.Size:
        return ["size", list(value)]
    if is_value_type(kind) and isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS:
        return ["numpy", value.dtype.str, value.tobytes().hex()]
    encode = encoder_of(kind)
    if encode is not None:
        try:
            return encode(value, lambda item: encode_key(item, where))
        except UnsupportedLeafError as error:
            error.where = error.where or f"path {where}"
            raise
    raise UnsupportedLeafError(
        f"the state holds a {kind.__module__}.{kind.__qualname__}, which cannot be stored exactly",
        expected="tensors, numpy arrays and scalars, numbers, texts, bytes, None, dates, paths, enums, in dicts, "
        "lists, tuples, sets, deques, namespaces, dataclasses, objects with state_dict() and load_state_dict(), or "
        "of a type that deeppart.register() was told of",
        where=f"path {where}",
        todo=conversion(value),
    )


def encode_key(key: Any, where: str) -> Encoded:
    """Encode one dict key, or what is inside a value: any small value or a tuple of them."""
    kind = type(key)
    if kind is tuple:
        return ["tuple", [encode_key(item, where) for item in key]]
    if kind is io.BytesIO:
        raise UnsupportedLeafError(
            "the state holds an io.BytesIO as a key or within a value", where=f"path {where}", todo="use its content"
        )
    return encode_value(key, where)


def is_extended(encoded: Encoded) -> bool:
    """True if an encoded value or key is one that readers before structure version 5 do not know."""
    if type(encoded) is not list:
        return False
    return encoded[0] in DECODERS or (encoded[0] == "tuple" and any(map(is_extended, encoded[1])))


def decode_value(encoded: Encoded, where: str) -> Any:
    """Inverse of :func:`encode_value` and :func:`encode_key`."""
    try:
        return _decode_list(encoded, where) if isinstance(encoded, list) else _plain(encoded)
    except _UNDECODABLE as error:
        found = f"{short(encoded)}: {type(error).__name__}: {error}"[:300]
        raise CorruptFileError("a stored value cannot be decoded", found=found, where=where) from error


def _plain(encoded: Encoded) -> Any:
    """A value that JSON has itself; nothing else stands for itself."""
    kind = type(encoded)
    plain = kind in _PLAIN or (kind is str and is_unicode(encoded)) or (kind is float and math.isfinite(encoded))
    if not plain and not (kind is int and -_INT64_LIMIT <= encoded < _INT64_LIMIT):
        raise ValueError("no value that stands for itself")
    return encoded


def _decode_list(encoded: list[Any], where: str) -> Any:
    tag, *arguments = encoded
    if tag in DECODERS:
        value = DECODERS[tag](arguments, lambda item: decode_value(item, where))
    else:
        value = _DECODERS[tag](*arguments)
    # What is written otherwise than the library writes it was not written by it.
    if tag != "numpy" and (encode_key if tag == "tuple" else encode_value)(value, where) != encoded:
        raise ValueError("not as this library writes it")
    return value


def same_value(one: Any, other: Any) -> bool:
    """True if two small values are one and the same, to the last bit: -0.0 is not 0.0, True is not 1."""
    return type(one) is type(other) and json.dumps(encode_value(one, "")) == json.dumps(encode_value(other, ""))


def describe_value(value: Any) -> str:
    """A small value in at most 80 characters, whatever it is."""
    if type(value) is int and value.bit_length() > 256:  # Python refuses to print those of thousands of digits
        return f"an int of {value.bit_length()} bits"
    if type(value) is io.BytesIO:
        return f"io.BytesIO of {len(value.getbuffer())} bytes, at {value.tell()}"
    return f"{value!r:.80}"


def is_unicode(text: str) -> bool:
    """True unless a text has lone surrogates: readers of JSON may join two of them into one character."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _decode_numpy(dtype_text: str, data: str) -> Any:
    dtype, octets = plain_dtype(dtype_text), bytes.fromhex(data)
    # An empty text of numpy has no bytes by its dtype, and one zero character by its memory.
    if len(octets) != dtype.itemsize and (dtype.itemsize or len(octets) > 4 or any(octets)):
        raise ValueError(f"{len(octets)} bytes of a {dtype}")
    if dtype.kind in "SU":  # an item of an array would lose the zeros that end it
        order = "big" if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big") else "little"
        octets = octets[: dtype.itemsize]
        text = octets if dtype.kind == "S" else octets.decode(f"utf-32-{order[0]}e", "surrogatepass")
        return dtype.type(text)
    return np.frombuffer(octets, dtype=dtype, count=1)[0]


def plain_dtype(text: str) -> np.dtype[Any]:
    """The numpy dtype that a file names, of a plain kind.

    numpy would understand far more, Python source of tuples among it: only what is written as ``dtype.str`` gets there.
    """
    if _NUMPY_DTYPE.fullmatch(text) is None:
        raise ValueError(f"numpy dtype {short(text)}")
    dtype = np.dtype(text)
    if dtype.str != text:
        raise ValueError(f"numpy dtype {short(text)}")
    return dtype


def _decode_size(items: list[int]) -> torch.Size:
    if type(items) is not list or not all(type(item) is int and abs(item) < _INT64_LIMIT for item in items):
        raise ValueError("not a list of lengths")
    return torch.Size(items)


def _decode_device(text: str) -> torch.device:
    if type(text) is not str:  # a number would make torch look for accelerators
        raise ValueError("not the name of a device")
    return torch.device(text)


def _decode_complex(data: str) -> complex:
    return complex(*struct.unpack(">dd", bytes.fromhex(data)))


_DECODERS: dict[str, Any] = {
    "int": lambda text: int(text, 16),
    "str": lambda text: base64.b64decode(text, validate=True).decode("utf-8", _SURROGATES),
    "float": lambda data: struct.unpack(">d", bytes.fromhex(data))[0],
    "complex": _decode_complex,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "tuple": lambda items: tuple([decode_value(item, "a key") for item in items]),
    "dtype": lambda name: _DTYPES[name],
    "device": _decode_device,
    "size": _decode_size,
    "numpy": _decode_numpy,
}


# --- values of the standard library -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavedMember:
    """A member of an enum, as ``load`` gives it.

    Attributes:
        module, enum: of its class: the module in which it is, and its qualified name.
        name: of the member; None for flags that have none together.
        value: of the member, if that is a small value or a tuple of them; else None.
        has_value: true if ``value`` is known.

    Example:
        >>> import enum
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt") as checkpointer:
        ...     pending = checkpointer.checkpoint({"phase": enum.Enum("Phase", "WARMUP TRAIN").TRAIN}, step=1)
        >>> deeppart.load("ckpt")["phase"].name
        'TRAIN'
    """

    module: str
    enum: str
    name: str | None
    value: Any = None
    has_value: bool = True

    def __repr__(self) -> str:
        value = f": {self.value!r}" if self.has_value else ""
        return f"<{self.enum}.{self.name}{value}>"

    def __str__(self) -> str:
        return f"{self.enum.rpartition('.')[2]}.{self.value if self.name is None else self.name}"


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
    return _PATHS[kind](_checked_text(inner(text)))


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
    return datetime.timezone(offset, *[_checked_text(inner(name)) for name in arguments[3:]])


def _to_fraction(arguments: list[Any], inner: Inner) -> Any:
    numerator, denominator = map(inner, arguments)
    if denominator == 0:
        raise ValueError("a fraction with denominator 0")
    return Fraction(numerator, denominator)


def _to_decimal(arguments: list[Any], inner: Inner) -> Any:
    (text,) = arguments
    try:
        return Decimal(_checked_text(text))
    except ArithmeticError as error:
        raise ValueError("no decimal number") from error


def _to_uuid(arguments: list[Any], inner: Inner) -> Any:
    text, safe = arguments
    return UUID(hex=_checked_text(text), is_safe=SafeUUID[safe])


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
        decoded = kind(items if set(map(type, items)) <= JSON_SCALARS else map(inner, items))
        if len(decoded) != len(items):
            raise ValueError("items of a set are repeated")
        return decoded

    return decode


def _to_member(arguments: list[Any], inner: Inner) -> Any:
    module, name, member, *value = arguments
    if not all(type(each) is str and "\0" not in each for each in (module, name)) or len(value) > 1:
        raise ValueError("an enum without a name")
    if member is not None:
        _checked_text(member)
    decoded = inner(value[0]) if value else None
    hash(decoded)
    return SavedMember(module, name, member, decoded, bool(value))


def _checked_text(value: Any) -> str:
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
    "torch_version": lambda arguments, inner: TorchVersion(*[_checked_text(inner(each)) for each in arguments]),
    "bytearray": _to_bytearray,
    "bytesio": _to_stream,
    "set": _to_items(set),
    "frozenset": _to_items(frozenset),
    "enum": _to_member,
}


def class_names(value: object) -> set[str]:
    """Names of its class and of all that this derives from."""
    return {f"{each.__module__}.{each.__qualname__}" for each in type(value).__mro__}


# --- conversions for what cannot be stored ----------------------------------------------------------------------------

_A_COPY = "it is a copy: restore does not change x"
#: Names of types -> what to do with an ``x`` of one of them, or of one that derives from it. The first row that fits
#: counts.
CONVERSIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    # Configurations of other libraries.
    (
        ("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig"),
        f"save OmegaConf.to_container(x); {_A_COPY}",
    ),
    (
        ("transformers.configuration_utils.PretrainedConfig", "transformers.configuration_utils.PreTrainedConfig"),
        f"save x.to_dict(); {_A_COPY}",
    ),
    # Types of people's own that derive from what can be stored.
    (("pathlib.PurePath", "pathlib._local.PurePath"), "save str(x)"),
    (("decimal.Decimal", "fractions.Fraction", "uuid.UUID", "numpy.dtype"), "save str(x)"),
    (("argparse.Namespace", "types.SimpleNamespace"), f"save dict(vars(x)); {_A_COPY}"),
    (("builtins.set",), f"save set(x); {_A_COPY}"),
    (("builtins.frozenset",), "save frozenset(x)"),
    (("collections.deque",), f"save list(x); {_A_COPY}"),
    (("builtins.generator",), "save list(x)"),
    (("builtins.dict_keys", "builtins.dict_values", "builtins.dict_items"), "save list(x)"),
    (("collections.ChainMap", "collections.UserDict", "builtins.mappingproxy"), f"save dict(x); {_A_COPY}"),
    (("builtins.bytearray", "builtins.memoryview"), f"save bytes(x); {_A_COPY}"),
    (("_io.BytesIO",), f"save x.getvalue(); {_A_COPY}"),
    (
        ("zoneinfo.ZoneInfo",),
        "save x.key; or of the time x.astimezone(datetime.timezone.utc): a file that names a zone would decide what is "
        "read",
    ),
    (("datetime.datetime",), "save x.isoformat(), or x.timestamp()"),
    (("datetime.date", "datetime.time"), "save x.isoformat()"),
    (("datetime.timedelta",), "save x.total_seconds()"),
    (("numpy.random._generator.Generator",), "save x.bit_generator"),
    (("numpy.random.mtrand.RandomState",), "save x.get_state(), and give it to x.set_state() after restore"),
    (
        ("numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"),
        "save x.data and np.ma.getmaskarray(x), and set x.mask to the latter after restore",
    ),
    (("torch.masked.maskedtensor.core.MaskedTensor",), "save x.get_data() and x.get_mask()"),
    (("random.SystemRandom",), "leave it out: it has no state"),
    (("random.Random",), "save x.getstate(), and give it to x.setstate() after restore"),
    (
        ("builtins.function", "builtins.method", "builtins.builtin_function_or_method", "functools.partial"),
        "leave it out: a function is code, and the script has it",
    ),
    (("builtins.type",), "leave it out: a class is code, and the script has it; or save an object of it"),
    *(((f"builtins.{name}",), f"save {name}(x); {_A_COPY}") for name in ("dict", "list")),
    *(((f"builtins.{name}",), f"save {name}(x)") for name in ("tuple", "str", "bytes", "int", "float", "complex")),
)


def known_conversion(value: object) -> str | None:
    """A conversion for a value that cannot be stored, from the table; the value is called ``x`` there."""
    names = class_names(value)
    return next((todo for known, todo in CONVERSIONS if not names.isdisjoint(known)), None)


def conversion(value: object) -> str:
    """The same, or what may do for values of any class."""
    if (known := known_conversion(value)) is not None:
        return known
    kind = type(value)
    if callable(getattr(kind, "state_dict", None)):
        return "save x.state_dict(), or give the object load_state_dict() too"
    return "convert the value; or tell deeppart.register() how, or give the object state_dict() and load_state_dict()"
