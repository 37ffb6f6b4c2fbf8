"""Small values as JSON: everything in a state that is not an array, and the keys of its dicts.

A JSON scalar encodes itself; every other value is a list ``[tag, ...]``, defined by one table (:data:`_KINDS`) with the
types, encoder and decoder of each tag. The encoding is exact, depends only on the value, and executes nothing when
read. docs/format.md (small values) lists the tags.

Lists, tuples and dicts of nothing but small values can be values, too (:mod:`deeppart.state.tree.value_containers`).
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
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID, SafeUUID

import numpy as np
import torch
from torch.torch_version import TorchVersion

from deeppart.errors import CorruptFileError, UnsupportedLeafError, short

#: JSON-like value: None, bool, int, float, str, or a tagged list.
Encoded = Any
#: Encodes or decodes the items inside a value.
Inner = Callable[[Any], Any]
_INT64_LIMIT = 1 << 63
_SURROGATES = "surrogatepass"
_NUMPY_KINDS = frozenset("biufcSUmM")
#: ``dtype.str`` of plain numpy dtypes: a few digits, or the unit of a time.
_NUMPY_DTYPE = re.compile(r"[<>|][biufcSU][0-9]{1,9}|[<>][mM]8(\[[0-9]{0,9}[A-Za-z]{1,2}\])?", re.ASCII)
#: Exceptions of decoding invalid input; RuntimeError also covers RecursionError.
_UNDECODABLE = (
    *(KeyError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, IndexError),
    *(struct.error, binascii.Error, UnsupportedLeafError),
)
#: torch dtypes by their name in files. Not by getattr: some attributes of torch import modules.
_DTYPES = {str(item).removeprefix("torch."): item for item in vars(torch).values() if isinstance(item, torch.dtype)}
#: Types whose values JSON has, except some texts, floats and large integers.
_SCALARS = frozenset({str, int, float, bool, type(None)})
#: Mutable values, which a restore changes in place.
MUTABLE = frozenset({bytearray, io.BytesIO, set})
#: Nested lists, tuples and dicts in one value, at most.
MOST_LEVELS = 16
SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
TABLES: dict[type, str] = {dict: "dict", OrderedDict: "odict", Counter: "counter", defaultdict: "defaultdict"}
CONTAINERS = frozenset(SEQUENCES) | frozenset(TABLES)
TABLE_MAKERS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "odict": OrderedDict,
    "counter": lambda items: Counter(dict(items)),
    "defaultdict": lambda items: defaultdict(None, items),  # the default factory is code, and is not saved
}


@dataclass(frozen=True, slots=True)
class SavedMember:
    """A member of an enum, as ``load`` returns it.

    Attributes:
        module, enum: module and qualified name of its class.
        name: its name; None for a combination of flags without a name.
        value: its value, if that is a small value or a tuple of them; else None.
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


def is_value(value: object) -> bool:
    """True for a small value other than a list, tuple or dict."""
    return is_value_type(type(value))


def is_value_type(kind: type) -> bool:
    """True if objects of this type are small values."""
    return kind in _SCALARS or _kind_of(kind) is not None


def encode_value(value: Any, where: str) -> Encoded:
    """Encode a small value, or a container of nothing but small values.

    The result does not change when the container does.
    """
    try:
        return _encode(value)
    except UnsupportedLeafError as error:
        if not error.where:
            error.where = f"path {where}{_inside(value)}"
        raise


def encode_key(key: Any, where: str) -> Encoded:
    """Encode a dict key: a small value, or a tuple of them, that does not compare by identity."""
    try:
        return _encode_key(key)
    except UnsupportedLeafError as error:
        error.where = error.where or f"path {where}"
        raise


def _encode(value: Any) -> Encoded:
    kind = type(value)
    if kind in _SCALARS and _stand_for_themselves((value,)):
        return value
    if kind in SEQUENCES:
        return [SEQUENCES[kind], _encode_items(value, _encode)]
    if kind in TABLES:
        return [TABLES[kind], _encode_items(value, _encode_key), _encode_items(value.values(), _encode)]
    found = _kind_of(kind)
    if found is None:
        raise _unsupported(value)
    return [found.tag, *found.encode(value, _encode_key)]


def _encode_key(key: Any, room: int = MOST_LEVELS) -> Encoded:
    if type(key) is tuple:
        if room == 0:
            raise UnsupportedLeafError(
                f"the state holds more than {MOST_LEVELS} tuples inside each other", todo="use another key"
            )
        return ["tuple", _encode_items(key, lambda each: _encode_key(each, room - 1))]
    if type(key) is io.BytesIO:
        raise UnsupportedLeafError("the state holds an io.BytesIO as a key or within a value", todo="use its content")
    return _encode(key)


def _encode_items(items: Collection[Any], inner: Inner) -> list[Encoded]:
    return list(items) if _stand_for_themselves(items) else list(map(inner, items))


def _stand_for_themselves(items: Collection[Any]) -> bool:
    """True if all items are scalars that encode themselves. A fast path for many items."""
    kinds = set(map(type, items))
    if not kinds <= _SCALARS:
        return False
    for kind in kinds & {int, float, str}:
        mine: Any = items if len(kinds) == 1 else [each for each in items if type(each) is kind]
        if kind is int and not (-_INT64_LIMIT <= min(mine) and max(mine) < _INT64_LIMIT):
            return False
        if kind is float and not all(map(math.isfinite, mine)):
            return False
        if kind is str and not is_unicode("\n".join(mine)):
            return False
    return True


def _inside(value: Any) -> str:
    """Where in a container the item is that cannot be stored."""
    if type(value) not in CONTAINERS:
        return ""
    items = value.values() if isinstance(value, dict) else value
    for encode, each in ((_encode_key, value if isinstance(value, dict) else ()), (_encode, items)):
        for place, item in enumerate(each):
            try:
                encode(item)
            except UnsupportedLeafError:
                what = ", a dict key" if encode is _encode_key else ""
                return f"{what}, item {place}{_inside(item)}"
    return ""


def _unsupported(value: Any) -> UnsupportedLeafError:
    kind = type(value)
    return UnsupportedLeafError(
        f"the state holds a {kind.__module__}.{kind.__qualname__}, which cannot be stored exactly",
        expected="tensors, numpy arrays and scalars, numbers, texts, bytes, None, dates, paths, enums, in dicts, "
        "lists, tuples, sets, deques, namespaces, dataclasses, objects with state_dict() and load_state_dict(), or "
        "of a type that was given to deeppart.register()",
        todo=conversion(value),
    )


def decode_value(encoded: Encoded, where: str) -> Any:
    """Inverse of ``encode_value``."""
    try:
        return _decode(encoded, MOST_LEVELS)
    except _UNDECODABLE as error:
        found = f"{short(encoded)}: {type(error).__name__}: {error}"[:300]
        raise CorruptFileError("a stored value cannot be decoded", found=found, where=where) from error


def decode_key(encoded: Encoded, where: str) -> Any:
    """Inverse of :func:`encode_key`."""
    key = decode_value(encoded, where)
    try:
        hash(key)
    except TypeError as error:
        raise CorruptFileError("a stored dict key is not hashable", found=short(encoded), where=where) from error
    return key


def _decode(encoded: Encoded, room: int) -> Any:
    """``room``: how many more levels of lists and dicts are allowed."""
    if type(encoded) is not list:
        if not _stand_for_themselves((encoded,)):
            raise ValueError("a JSON value that does not encode itself")
        return encoded
    tag, *arguments = encoded
    if tag == "tuple":
        (items,) = arguments
        return tuple(_decode_items(items, room))
    if room <= 0:
        raise ValueError(f"more than {MOST_LEVELS} lists and dicts inside each other")
    if tag == "list":
        (items,) = arguments
        return _decode_items(items, room - 1)
    if tag in TABLE_MAKERS:
        keys, items = (_decode_items(each, room - 1) for each in arguments)
        made = TABLE_MAKERS[tag](zip(keys, items, strict=True))
        if len(made) != len(keys):
            raise ValueError("dict keys are repeated")
        return made
    kind = _BY_TAG[tag]
    value = kind.decode(arguments, lambda each: _decode(each, room))
    # Only this library's own encoding of the value is accepted.
    if kind.is_exact and _encode(value) != encoded:
        raise ValueError("not as this library writes it")
    return value


def _decode_items(items: Any, room: int) -> list[Any]:
    if type(items) is not list:
        raise TypeError("no list of items")
    return items if _stand_for_themselves(items) else [_decode(each, room) for each in items]


def same_value(one: Any, other: Any) -> bool:
    """True if two values are identical to the last bit: -0.0 is not 0.0, True is not 1; dicts in one order."""
    return type(one) is type(other) and json.dumps(encode_value(one, "")) == json.dumps(encode_value(other, ""))


def describe_value(value: Any) -> str:
    """A small value in at most 80 characters."""
    if type(value) is int and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    if type(value) is io.BytesIO:
        return f"io.BytesIO of {len(value.getbuffer())} bytes, at {value.tell()}"
    return f"{text_of(value):.80}"


def text_of(value: Any) -> str:
    """A small value as text: its repr, or as in files if it has an int that is too large for Python to print."""
    try:
        return repr(value)
    except ValueError:
        return json.dumps(encode_value(value, ""))


def is_unicode(text: str) -> bool:
    """True unless a text has lone surrogates, of which JSON readers may join two into one character."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def plain_dtype(text: str) -> np.dtype[Any]:
    """The plain numpy dtype that a file names.

    Only the form of ``dtype.str`` is accepted: numpy would also parse other texts, such as Python source of tuples.
    """
    if _NUMPY_DTYPE.fullmatch(text) is None:
        raise ValueError(f"numpy dtype {short(text)}")
    dtype = np.dtype(text)
    if dtype.str != text:
        raise ValueError(f"numpy dtype {short(text)}")
    return dtype


def put_in(live: Any, value: Any) -> Any:
    """Copy the content of ``value`` into a live mutable value of the same type and return it; or return ``value``
    itself, if the live one cannot be resized because its memory is exported.
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
    """A copy of a mutable value; any other value itself."""
    if type(value) is io.BytesIO:
        copied = io.BytesIO(value.getvalue())
        copied.seek(value.tell())
        return copied
    return type(value)(value) if type(value) in MUTABLE else value


# --- the table --------------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A kind of value.

    Attributes:
        tag: its name in files.
        types: exactly these types.
        encode: value and encoder of inner values -> the items after the tag.
        decode: the items after the tag and decoder of inner values -> value.
        is_exact: true if a value has only one encoding.
    """

    tag: str
    types: tuple[type, ...]
    encode: Callable[[Any, Inner], Iterable[Any]]
    decode: Callable[[list[Any], Inner], Any]
    is_exact: bool = True


def _base64(data: Any) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _ints(values: Sequence[Any], count: int) -> list[int]:
    if len(values) != count or not all(type(value) is int for value in values):
        raise ValueError(f"not {count} integers")
    return list(values)


def _of_ints(tag: str, kind: Any, names: str) -> _Kind:
    """A kind of value that is made of integers, which are attributes of it."""
    attributes = names.split()
    return _Kind(
        tag,
        (kind,),
        lambda value, inner: [inner(getattr(value, name)) for name in attributes],
        lambda arguments, inner: kind(*_ints(list(map(inner, arguments)), len(attributes))),
    )


def _encode_numpy(value: Any, inner: Inner) -> list[Any]:
    if value.dtype.kind not in _NUMPY_KINDS:
        raise _unsupported(value)
    return [value.dtype.str, value.tobytes().hex()]


def _decode_numpy(arguments: list[Any], inner: Inner) -> Any:
    name, data = arguments
    dtype, octets = plain_dtype(name), bytes.fromhex(data)
    # numpy's empty text has no bytes by its dtype, and one zero character in memory.
    if len(octets) != dtype.itemsize and (dtype.itemsize or len(octets) > 4 or any(octets)):
        raise ValueError(f"{len(octets)} bytes of a {dtype}")
    if dtype.kind in "SU":  # as an item of an array it would lose trailing zeros
        order = "big" if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big") else "little"
        octets = octets[: dtype.itemsize]
        return dtype.type(octets if dtype.kind == "S" else octets.decode(f"utf-32-{order[0]}e", _SURROGATES))
    return np.frombuffer(octets, dtype=dtype, count=1)[0]


def _decode_size(arguments: list[Any], inner: Inner) -> torch.Size:
    (items,) = arguments
    if type(items) is not list or not all(type(item) is int and abs(item) < _INT64_LIMIT for item in items):
        raise ValueError("not a list of lengths")
    return torch.Size(items)


_PATHS = {PosixPath: "posix", PurePosixPath: "pure_posix", PureWindowsPath: "pure_windows"}


def _decode_path(arguments: list[Any], inner: Inner) -> Any:
    name, text = arguments
    return {name: kind for kind, name in _PATHS.items()}[name](_text(inner(text)))


def _encode_time(value: Any, inner: Inner) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, inner(value.tzinfo)]


def _decode_time(arguments: list[Any], inner: Inner) -> Any:
    *clock, fold, zone = arguments
    numbers: list[Any] = [*_ints(clock, 4), inner(zone)]
    return datetime.time(*numbers, fold=fold)


def _decode_datetime(arguments: list[Any], inner: Inner) -> Any:
    *numbers, fold, zone = arguments
    taken: list[Any] = [*_ints(numbers, 7), inner(zone)]
    return datetime.datetime(*taken, fold=fold)  # noqa: DTZ001  # no time zone if none was saved


def _encode_timezone(value: Any, inner: Inner) -> list[Any]:
    offset, *name = value.__getinitargs__()
    return [offset.days, offset.seconds, offset.microseconds, *map(inner, name)]


def _decode_timezone(arguments: list[Any], inner: Inner) -> Any:
    offset = datetime.timedelta(*_ints(arguments[:3], 3))
    return datetime.timezone(offset, *[_text(inner(name)) for name in arguments[3:]])


def _decode_decimal(arguments: list[Any], inner: Inner) -> Any:
    (text,) = arguments
    return Decimal(_text(text))


def _decode_uuid(arguments: list[Any], inner: Inner) -> Any:
    text, safe = arguments
    return UUID(hex=_text(text), is_safe=SafeUUID[safe])


def _encode_stream(value: io.BytesIO, inner: Inner) -> list[Any]:
    if value.closed or vars(value):
        raise UnsupportedLeafError(
            "the state holds an io.BytesIO that is closed" if value.closed else "an io.BytesIO has attributes",
            expected="an open io.BytesIO without attributes of its own",
            found="" if value.closed else ", ".join(map(str, vars(value))),
            todo="save x.getvalue() before it is closed, and the attributes beside it",
        )
    return [_base64(value.getbuffer()), value.tell()]


def _decode_stream(arguments: list[Any], inner: Inner) -> Any:
    data, position = arguments
    made = io.BytesIO(_from_base64(data))
    made.seek(*_ints([position], 1))
    return made


def _encode_set(value: Collection[Any], inner: Inner) -> list[Any]:
    """The items in an order that depends only on the items."""
    kinds = set(map(type, value))
    if len(kinds) == 1 and kinds <= {str, int, float} and _stand_for_themselves(value):
        return [sorted(value)]
    encoded = [(type(item).__name__, inner(item)) for item in value]
    return [[each for _, _, each in sorted((name, json.dumps(each), each) for name, each in encoded)]]


def _decode_set(kind: type) -> Callable[[list[Any], Inner], Any]:
    def decode(arguments: list[Any], inner: Inner) -> Any:
        (items,) = arguments
        made = kind(_decode_items(items, MOST_LEVELS))
        if len(made) != len(items):
            raise ValueError("items of a set are repeated")
        return made

    return decode


def _encode_member(value: Any, inner: Inner) -> list[Any]:
    if type(value) is SavedMember:
        return [value.module, value.enum, value.name, *([inner(value.value)] if value.has_value else [])]
    entry = [type(value).__module__, type(value).__qualname__, value.name]
    try:
        hash(value.value)
        return [*entry, inner(value.value)]
    except (UnsupportedLeafError, TypeError):  # the name is sufficient
        return entry


def _decode_member(arguments: list[Any], inner: Inner) -> Any:
    module, name, member, *value = arguments
    if not all(type(each) is str and "\0" not in each for each in (module, name)) or len(value) > 1:
        raise ValueError("an enum without a name")
    if member is not None:
        _text(member)
    decoded = inner(value[0]) if value else None
    hash(decoded)
    return SavedMember(module, name, member, decoded, bool(value))


_MEMBER = _Kind("enum", (SavedMember,), _encode_member, _decode_member)
_NUMPY = _Kind(
    "numpy",
    (np.generic,),
    _encode_numpy,
    _decode_numpy,
    is_exact=False,  # long doubles have padding bytes
)
_KINDS: tuple[_Kind, ...] = (
    # Scalars that JSON does not have.
    _Kind(
        "str",
        (str,),
        lambda value, inner: [_base64(value.encode("utf-8", _SURROGATES))],
        lambda arguments, inner: _from_base64(*arguments).decode("utf-8", _SURROGATES),
    ),
    _Kind(
        "int", (int,), lambda value, inner: [format(value, "x")], lambda arguments, inner: int(_text(*arguments), 16)
    ),
    _Kind(
        "float",
        (float,),
        lambda value, inner: [struct.pack(">d", value).hex()],
        lambda arguments, inner: struct.unpack(">d", bytes.fromhex(*arguments))[0],
    ),
    _Kind(
        "complex",
        (complex,),
        lambda value, inner: [struct.pack(">dd", value.real, value.imag).hex()],
        lambda arguments, inner: complex(*struct.unpack(">dd", bytes.fromhex(*arguments))),
    ),
    _Kind("bytes", (bytes,), lambda value, inner: [_base64(value)], lambda arguments, inner: _from_base64(*arguments)),
    # Types of torch and numpy.
    _Kind(
        "dtype",
        (torch.dtype,),
        lambda value, inner: [str(value).removeprefix("torch.")],
        lambda arguments, inner: _DTYPES[_text(*arguments)],
    ),
    _Kind(
        "device",
        (torch.device,),
        lambda value, inner: [str(value)],
        lambda arguments, inner: torch.device(_text(*arguments)),  # a number would make torch search for accelerators
    ),
    _Kind("size", (torch.Size,), lambda value, inner: [list(value)], _decode_size),
    _Kind(
        "torch_version",
        (TorchVersion,),
        lambda value, inner: [inner(str.__str__(value))],
        lambda arguments, inner: TorchVersion(_text(inner(*arguments))),
    ),
    _NUMPY,
    # Types of the standard library.
    _Kind("path", tuple(_PATHS), lambda value, inner: [_PATHS[type(value)], inner(str(value))], _decode_path),
    _of_ints("date", datetime.date, "year month day"),
    _Kind("time", (datetime.time,), _encode_time, _decode_time),
    _Kind(
        "datetime",
        (datetime.datetime,),
        lambda value, inner: [value.year, value.month, value.day, *_encode_time(value, inner)],
        _decode_datetime,
    ),
    _of_ints("timedelta", datetime.timedelta, "days seconds microseconds"),
    _Kind("timezone", (datetime.timezone,), _encode_timezone, _decode_timezone),
    _Kind("decimal", (Decimal,), lambda value, inner: [str(value)], _decode_decimal),
    _of_ints("fraction", Fraction, "numerator denominator"),
    _Kind("uuid", (UUID,), lambda value, inner: [value.hex, value.is_safe.name], _decode_uuid),
    _of_ints("range", range, "start stop step"),
    _Kind(
        "slice",
        (slice,),
        lambda value, inner: [inner(value.start), inner(value.stop), inner(value.step)],
        lambda arguments, inner: slice(*map(inner, arguments)),
    ),
    _Kind("ellipsis", (type(Ellipsis),), lambda value, inner: [], lambda arguments, inner: ...),
    _Kind(
        "bytearray",
        (bytearray,),
        lambda value, inner: [_base64(value)],
        lambda arguments, inner: bytearray(_from_base64(*arguments)),
    ),
    _Kind("bytesio", (io.BytesIO,), _encode_stream, _decode_stream),
    _Kind("set", (set,), _encode_set, _decode_set(set)),
    _Kind("frozenset", (frozenset,), _encode_set, _decode_set(frozenset)),
    _MEMBER,
)
_BY_TAG = {kind.tag: kind for kind in _KINDS}
_BY_TYPE = {each: kind for kind in _KINDS for each in kind.types}


def _kind_of(kind: type) -> _Kind | None:
    if (found := _BY_TYPE.get(kind)) is not None:
        return found
    if isinstance(kind, enum.EnumMeta):
        return _MEMBER
    return _NUMPY if issubclass(kind, np.generic) and kind.__module__ == np.__name__ else None


def class_names(value: object) -> set[str]:
    """The names of an object's class and of all its base classes."""
    return {f"{each.__module__}.{each.__qualname__}" for each in type(value).__mro__}


# --- suggested conversions for values that cannot be stored -----------------------------------------------------------

_A_COPY = "it is a copy: restore does not change x"
#: Names of types -> what to do with an object ``x`` of one of them, or of a subclass. The first matching row counts.
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
    # Subclasses of storable types.
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
    """The suggested conversion of a value that cannot be stored, from the table; None if it has none."""
    names = class_names(value)
    return next((todo for known, todo in CONVERSIONS if not names.isdisjoint(known)), None)


def conversion(value: object) -> str:
    """The suggested conversion from the table, or a general one."""
    if (known := known_conversion(value)) is not None:
        return known
    kind = type(value)
    if callable(getattr(kind, "state_dict", None)):
        return "save x.state_dict(), or give the object load_state_dict() too"
    return "convert the value; or tell deeppart.register() how, or give the object state_dict() and load_state_dict()"
