r"""The bytes of a suspect record: one ASCII line that seals a JSON document (docs/format.md).

    deeppart-suspect 1 xxh3-128=<32 hex digits> bytes=<n>\n
    <n bytes of JSON: ASCII, keys sorted, no spaces>

A record says that at one checkpoint of one session ranks turned out to hold leaves with other bytes that had counted as
replicated, and since when that may have been so. It changes no checkpoint: it is for whoever reads one.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import xxhash

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError
from deeppart.model import SuspectLeaf, Suspicion
from deeppart.part import format as fmt
from deeppart.part.format import short

SUSPECT_VERSION: Final = 1
#: Longest record a reader accepts, in bytes.
MAX_SUSPECT_BYTES: Final = 64 << 20
_HEAD = re.compile(rb"deeppart-suspect ([1-9][0-9]{0,8}) xxh3-128=([0-9a-f]{32}) bytes=([1-9][0-9]{0,10})\n")
_MAX_HEAD_BYTES: Final = 128
_FIELDS: Final = {"lineage", "session", "sequence", "step", "steps", "leaves"}
_LEAF_FIELDS: Final = {"path", "ranks", "after", "after_step"}
_TODO = "treat every step of that session as suspect; remove the file when none is left"


def encode_suspicion(suspicion: Suspicion) -> bytes:
    """Return the bytes of the record."""
    document = {
        "lineage": suspicion.lineage,
        "session": suspicion.session,
        "sequence": suspicion.sequence,
        "step": suspicion.step,
        "steps": list(suspicion.steps),
        "leaves": [{name: getattr(leaf, name) for name in sorted(_LEAF_FIELDS)} for leaf in suspicion.leaves],
    }
    body = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    head = f"deeppart-suspect {SUSPECT_VERSION} xxh3-128={xxhash.xxh3_128_hexdigest(body)} bytes={len(body)}\n"
    data = head.encode("ascii") + body
    try:
        comes_back = decode_suspicion(data, where="record of suspect steps, being written") == suspicion
    except CorruptFileError as error:
        raise FormatError(
            f"a record of suspect steps cannot be written: {error.summary}",
            expected=error.expected,
            found=error.found,
            where=error.where,
        ) from error
    if not comes_back:
        raise FormatError("a record of suspect steps does not come back from JSON as it was")
    return data


def decode_suspicion(data: bytes, *, where: str) -> Suspicion:
    """Check the bytes of a record and return what they say."""
    try:
        document = json.loads(_sealed_body(data, where))
    except (ValueError, RecursionError) as error:
        raise _bad("does not hold a JSON document that can be read", where, str(error)) from error
    top = _object(document, _FIELDS, where)
    for name in ("lineage", "session"):
        if not fmt.is_hex32(top[name]):
            raise _bad(f"has a malformed {name}", where, short(top[name]))
    for name in ("sequence", "step"):
        _check_count(top[name], name, where)
    if not isinstance(top["steps"], list) or not isinstance(top["leaves"], list) or not top["leaves"]:
        raise _bad("lists no steps or leaves", where, short(top["leaves"]))
    for step in top["steps"]:
        _check_count(step, "step", where)
    leaves = tuple(_leaf(item, top["sequence"], where) for item in top["leaves"])
    return Suspicion(top["lineage"], top["session"], top["sequence"], top["step"], tuple(top["steps"]), leaves)


def _leaf(item: object, before: int, where: str) -> SuspectLeaf:
    fields = _object(item, _LEAF_FIELDS, where)
    for name in ("path", "ranks"):
        if not _is_text(fields[name]):
            raise _bad(f"has a malformed {name}", where, short(fields[name]))
    for name in ("after", "after_step"):
        _check_count(fields[name], name, where)
    if fields["after"] >= before:
        raise _bad("names a leaf that was compared later", where, short(fields["after"]))
    return SuspectLeaf(**fields)


def _is_text(value: object) -> bool:
    """True if it is text that can be printed; half a surrogate pair, which JSON can contain, cannot be."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sealed_body(data: bytes, where: str) -> bytes:
    """The JSON behind the first line, whose length and digest hold."""
    if len(data) > MAX_SUSPECT_BYTES:
        raise _bad("is too long", where, f"{len(data)} bytes")
    line_end = data[:_MAX_HEAD_BYTES].find(b"\n") + 1
    head = _HEAD.fullmatch(data[:line_end])
    if head is None:
        raise _bad("does not begin as one", where, short(data[:_MAX_HEAD_BYTES]))
    body = data[line_end:]
    if len(body) != int(head[3]) or xxhash.xxh3_128_hexdigest(body).encode() != head[2]:
        raise _bad("has another length or digest than its first line says", where, f"{len(body)} bytes")
    if int(head[1]) > SUSPECT_VERSION:
        raise NewerFormatError(
            "a record of suspect steps has a newer format",
            expected=f"version {SUSPECT_VERSION}",
            found=f"version {int(head[1])}",
            where=where,
            todo="read it with a newer deeppart",
        )
    return body


def _object(value: object, fields: set[str], where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != fields:
        raise _bad("has other fields", where, short(value))
    return value


def _check_count(value: object, name: str, where: str) -> None:
    if type(value) is not int or not 0 <= value <= fmt.MAX_COUNTER:
        raise _bad(f"has an impossible {name}", where, short(value))


def _bad(summary: str, where: str, found: str) -> CorruptFileError:
    return CorruptFileError(f"a record of suspect steps {summary}", found=found, where=where, todo=_TODO)
