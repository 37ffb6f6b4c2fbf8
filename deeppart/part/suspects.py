"""The bytes of a suspect record: a sealed document (:mod:`deeppart.part.sealed`, docs/format.md).

A record states that at one checkpoint of one session leaves that counted as replicated were found to differ between
ranks, and since when they may have differed. It changes no checkpoint; readers of checkpoints use it for warnings.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from deeppart.model import SuspectLeaf, Suspicion
from deeppart.part import format as fmt
from deeppart.part.fields import HEX32, Field, list_of, number
from deeppart.part.sealed import Sealed

_RECORD: Final = Sealed(
    "suspect",
    "the record of suspect steps",
    64 << 20,
    None,
    "treat every step of that session as suspect; remove the file when none is left",
)


def _is_text(value: object) -> bool:
    """True for text that can be printed. JSON can contain lone surrogates, which cannot be encoded."""
    return isinstance(value, str) and value == value.encode(errors="replace").decode()


_TEXT: Final = Field("text that can be printed", _is_text)
_FIELDS: Final = {
    "lineage": HEX32,
    "session": HEX32,
    "sequence": fmt.COUNTER,
    "step": fmt.COUNTER,
    "steps": Field("a list of steps", lambda value: isinstance(value, list) and all(map(fmt.COUNTER.accepts, value))),
    "leaves": list_of(1, fmt.MAX_COUNTER, "leaves"),
}


def encode_suspicion(suspicion: Suspicion) -> bytes:
    """Return the bytes of the record."""
    return _RECORD.encode(asdict(suspicion), suspicion, lambda data, where: decode_suspicion(data, where=where), None)


def decode_suspicion(data: bytes, *, where: str) -> Suspicion:
    """Check the bytes of a record and return its content."""
    document, _ = _RECORD.decode(data, where=where)
    top = _RECORD.record(document, _FIELDS, "a document", where)
    before = number(0, top["sequence"] - 1)  # the last full comparison was earlier
    allowed = {"path": _TEXT, "ranks": _TEXT, "after": before, "after_step": fmt.COUNTER}
    leaves = tuple(SuspectLeaf(**_RECORD.record(item, allowed, "a leaf", where)) for item in top["leaves"])
    return Suspicion(**top | {"steps": tuple(top["steps"]), "leaves": leaves})
