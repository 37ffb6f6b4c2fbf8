"""The bytes of a suspect record: a sealed document (:mod:`deeppart.part.sealed`, docs/format.md).

A record says that at one checkpoint of one session leaves that counted as replicated were found to differ between
ranks, and since when they may have. It changes no checkpoint: it informs readers of checkpoints.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from deeppart.errors import short
from deeppart.model import SuspectLeaf, Suspicion
from deeppart.part import format as fmt
from deeppart.part.sealed import Sealed

#: Longest record a reader accepts, in bytes.
MAX_SUSPECT_BYTES: Final = 64 << 20
_RECORD: Final = Sealed(
    "suspect",
    "the record of suspect steps",
    MAX_SUSPECT_BYTES,
    None,
    "treat every step of that session as suspect; remove the file when none is left",
)
_FIELDS: Final = frozenset({"lineage", "session", "sequence", "step", "steps", "leaves"})
_LEAF_FIELDS: Final = frozenset({"path", "ranks", "after", "after_step"})


def encode_suspicion(suspicion: Suspicion) -> bytes:
    """Return the bytes of the record."""
    return _RECORD.encode(asdict(suspicion), suspicion, lambda data, where: decode_suspicion(data, where=where), None)


def decode_suspicion(data: bytes, *, where: str) -> Suspicion:
    """Check the bytes of a record and return its content."""
    document, _ = _RECORD.decode(data, where=where)
    top = _RECORD.fields(document, _FIELDS, "a document", where)
    for name in ("lineage", "session"):
        if not fmt.is_hex32(top[name]):
            raise _RECORD.damaged(f"has a malformed {name}", where, found=short(top[name]))
    for name in ("sequence", "step"):
        _check_count(top[name], name, where)
    if not isinstance(top["steps"], list) or not isinstance(top["leaves"], list) or not top["leaves"]:
        raise _RECORD.damaged("lists no steps or leaves", where, found=short(top["leaves"]))
    for step in top["steps"]:
        _check_count(step, "step", where)
    leaves = tuple(_leaf(item, top["sequence"], where) for item in top["leaves"])
    return Suspicion(top["lineage"], top["session"], top["sequence"], top["step"], tuple(top["steps"]), leaves)


def _leaf(item: object, before: int, where: str) -> SuspectLeaf:
    fields = _RECORD.fields(item, _LEAF_FIELDS, "a leaf", where)
    for name in ("path", "ranks"):
        if not _is_text(fields[name]):
            raise _RECORD.damaged(f"has a malformed {name}", where, found=short(fields[name]))
    for name in ("after", "after_step"):
        _check_count(fields[name], name, where)
    if fields["after"] >= before:
        raise _RECORD.damaged("names a leaf that was compared later", where, found=short(fields["after"]))
    return SuspectLeaf(**fields)


def _is_text(value: object) -> bool:
    """True for text that can be printed; JSON can contain lone surrogates, which cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_count(value: object, name: str, where: str) -> None:
    if type(value) is not int or not 0 <= value <= fmt.MAX_COUNTER:
        raise _RECORD.damaged(f"has an impossible {name}", where, found=short(value))
