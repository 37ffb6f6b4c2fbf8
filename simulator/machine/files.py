"""Machines as TOML files: presets, and files of the user.

A file has a table for each record of :mod:`deeppart_simulator.machine.record`, with a key for each field;
``[codec.float32]`` and so on for codecs, ``[groups.rack]`` and so on for nodes that fail together. Numbers may have
units. With ``base = "PRESET"`` a file contains only the differences from a preset.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from deeppart.errors import ConfigError
from deeppart.model import meant_todo

from .record import (
    Codec,
    Failures,
    Group,
    Kind,
    Local,
    Machine,
    Memory,
    Network,
    Persistent,
    Price,
    Restart,
    Serialize,
    Words,
)

#: Name of a table -> its record; then the keys outside of tables.
TABLES: Mapping[str, type[Any]] = {
    "memory": Memory,
    "local": Local,
    "network": Network,
    "persistent": Persistent,
    "serialize": Serialize,
    "failures": Failures,
    "restart": Restart,
    "price": Price,
}
PLAIN = ("name", "source", "nodes", "ranks_per_node", "cores", "encode_threads", "interference")
#: Dtypes that a codec may have, by torch's names.
CODEC_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex128", "complex64",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
#: Reserved names of groups, with another meaning in traces and results; and the pattern of valid names.
_TAKEN = ("process", "node", "group", "system", "preemption")
_GROUP_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_PRESETS = "deeppart_simulator.machine.presets"
#: Limit for the size of a machine file, which usually has two kilobytes.
_MOST_BYTES = 1 << 20


def preset_names() -> tuple[str, ...]:
    """The names of the presets."""
    files = resources.files(_PRESETS).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def read_machine(name: str) -> Machine:
    """Read a preset by name, or a file by path."""
    if name in preset_names():
        return _machine(_preset(name), f"preset {name}")
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            "there is no such machine",
            expected="a TOML file, or one of " + ", ".join(preset_names()),
            found=repr(name),
            where="--machine",
            todo=meant_todo(
                name,
                preset_names(),
                "--machine list shows the presets; deeppart-sim calibrate writes a file for this machine",
            ),
        )
    try:
        with path.open("rb") as file:
            document = tomllib.loads(file.read(_MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not TOML, not UTF-8, or too long a number
        raise ConfigError(
            "cannot read the machine file", found=str(error), where=str(path), todo="correct the file"
        ) from error
    base = document.pop("base", None)
    if base is not None:
        if base not in preset_names():
            todo = meant_todo(str(base), preset_names(), "correct the key")
            raise _refusal("base", base, "one of " + ", ".join(preset_names()), str(path), todo)
        document = _merged(_preset(base), document)
    return _machine(document, str(path))


def machine_toml(machine: Machine) -> str:
    """The machine as the text of a file that :func:`read_machine` reads back."""
    lines = [f"{key} = {_literal(getattr(machine, key))}" for key in PLAIN]
    tables = [(name, getattr(machine, name)) for name in TABLES]
    tables += [(f"groups.{kind}", group) for kind, group in machine.failures.groups.items()]
    tables += [(f"codec.{dtype}", codec) for dtype, codec in machine.codecs.items()]
    for name, record in tables:
        known = [(key, getattr(record, key)) for key in keys_of(type(record))]
        said = [f"{key} = {_literal(value)}" for key, value in known if _is_said(key, value, name)]
        lines += ["", f"[{name}]", *said] if said else []
    return "\n".join(lines) + "\n"


def _is_said(key: str, value: Any, table: str) -> bool:
    """Whether to write a key: unlimited bandwidths and unknown values are left out, but not "never" of failures."""
    happens = table == "failures" or (table.startswith("groups.") and key == "mtbf")
    return happens or not (value == "" or (isinstance(value, float) and math.isinf(value)))


def _literal(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, float) and math.isinf(value):
        return '"never"'
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _preset(name: str) -> dict[str, Any]:
    text = resources.files(_PRESETS).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    base = document.pop("base", None)
    return document if base is None else _merged(_preset(base), document)


def _merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """``change`` over ``base``, table by table."""
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _machine(document: dict[str, Any], where: str) -> Machine:
    known = {*PLAIN, *TABLES, "groups", "codec"}
    _check_keys(document, known, "", where)
    plain = {key: document[key] for key in ("name", "source") if key in document}
    for key, value in {"name": Path(where).stem, **plain}.items():
        if not isinstance(value, str) or not value.isprintable():
            raise _refusal(key, value, "a text of one line, without control characters", where)
        plain[key] = value
    numbers = _values(Machine, {key: document[key] for key in PLAIN[2:] if key in document}, "", where, PLAIN[2:])
    tables = {}
    for name, record in TABLES.items():
        tables[name] = _record(record, document.get(name, {}), name, where)
    if not tables["price"].currency and math.isfinite(tables["price"].node_hour):
        raise _refusal("price.currency", "nothing", 'a currency, such as "USD", beside the price', where, "add the key")
    tables["failures"] = replace(tables["failures"], groups=_named(Group, "groups", "NAME", document, where))
    for name in tables["failures"].groups:
        if name in _TAKEN or not _GROUP_NAME.fullmatch(name):
            expected = "[groups.NAME] with a word in small letters, such as rack, but none of " + ", ".join(_TAKEN)
            raise _refusal(f"groups.{name}", name, expected, where, "choose another name")
    codecs = _named(Codec, "codec", "DTYPE", document, where)
    _check_keys(codecs, set(CODEC_DTYPES), "codec.", where)
    return Machine(**plain, **numbers, **tables, codecs=codecs)


def _named(record: type[Any], table: str, word: str, document: dict[str, Any], where: str) -> Mapping[str, Any]:
    """Read tables with names, such as [codec.DTYPE]."""
    found = document.get(table, {})
    if not isinstance(found, dict):
        raise _refusal(table, found, f"tables named [{table}.{word}]", where)
    return {name: _record(record, each, f"{table}.{name}", where) for name, each in found.items()}


def keys_of(record: type[Any]) -> tuple[str, ...]:
    """The keys of a table, without fields that are tables themselves."""
    return tuple(each.name for each in fields(record) if "kind" in each.metadata)


def _record(record: type[Any], table: object, name: str, where: str) -> Any:
    if not isinstance(table, dict):
        raise _refusal(name, table, f"a table [{name}]", where)
    names = keys_of(record)
    _check_keys(table, set(names), f"{name}.", where)
    return record(**_values(record, table, f"{name}.", where, names))


def _values(
    record: type[Any], table: dict[str, Any], prefix: str, where: str, names: tuple[str, ...]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in fields(record):
        if each.name not in names:
            continue
        if each.name in table:
            values[each.name] = _value(each, table[each.name], prefix, where)
        elif each.default is MISSING:
            kind: Kind = each.metadata["kind"]
            raise _refusal(prefix + each.name, "nothing", kind.words, where, "add the key")
    return values


def _value(each: Field[Any], value: object, prefix: str, where: str) -> Any:
    kind: Kind | Words = each.metadata["kind"]
    if isinstance(kind, Words):
        if isinstance(value, str) and value in kind.allowed:
            return value
        todo = meant_todo(str(value), kind.allowed, "correct the key")
        raise _refusal(prefix + each.name, value, "one of " + ", ".join(kind.allowed), where, todo)
    try:
        number = kind.read(value)
    except (ValueError, OverflowError):
        raise _refusal(prefix + each.name, value, kind.words, where) from None
    if kind.text:
        return number
    too_small = number < kind.least or (kind.above and number == kind.least)
    if math.isnan(number) or too_small or number > kind.most or (math.isinf(number) and not kind.endless):
        raise _refusal(prefix + each.name, value, kind.words, where)
    return number


def _check_keys(table: Mapping[str, Any], known: set[str], prefix: str, where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(
                f"unknown key {prefix + key!r} in a machine file",
                expected="one of " + ", ".join(sorted(known)),
                where=where,
                todo=meant_todo(key, known, "remove the key; docs/simulator.md has them all"),
            )


def _refusal(key: str, value: object, expected: str, where: str, todo: str | None = None) -> ConfigError:
    found = value if value == "nothing" else repr(value)
    return ConfigError(
        f"impossible value for {key}", expected=expected, found=str(found), where=where, todo=todo or "correct the key"
    )
