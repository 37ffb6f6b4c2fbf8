r"""Sealed documents: one ASCII line with the digest of the JSON after it (docs/format.md).

    deeppart-<kind> <version> xxh3-128=<32 hex digits> bytes=<n>[ blake2b=<64 hex digits>]\n
    <n bytes of JSON: ASCII, keys sorted, no spaces>

The digest is checked before the JSON is parsed. Encoded bytes are decoded again and compared before they are returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from deeppart._gc import collection_paused
from deeppart.errors import CorruptFileError, FormatError, short
from deeppart.part import format as fmt
from deeppart.part.fields import Field
from deeppart.part.json_text import parse_json
from deeppart.part.signing import Signing

_NEWLINE: Final = b"\n"
_MAX_LINE_BYTES: Final = 256
_LINE = re.compile(
    rb"(deeppart-([a-z]+) (0|[1-9][0-9]{0,8}) xxh3-128=([0-9a-f]{32}) bytes=([1-9][0-9]{0,10}))"
    rb"(?: blake2b=([0-9a-f]{64}))?\n"
)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A kind of sealed document.

    Attributes:
        kind: the word in the first line.
        name: name of the document in messages, with its article.
        most_bytes: maximum length of the file.
        purpose: purpose of the signature; None if documents of this kind are not signed.
        todo: advice for a damaged document.
    """

    kind: str
    name: str
    most_bytes: int
    purpose: bytes | None
    todo: str

    def encode(
        self, document: Any, value: object, read: Callable[[bytes, str], object], signing: Signing | None
    ) -> bytes:
        """Return the bytes of a file. Raises unless ``read`` returns ``value`` from them: JSON has no tuples."""
        try:
            text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"{self.name} cannot be written: it is not JSON-like", found=str(error)) from error
        body = text.encode("ascii")
        line = f"deeppart-{self.kind} {fmt.FORMAT_VERSION} xxh3-128={xxhash.xxh3_128_hexdigest(body)} bytes={len(body)}"
        if signing is not None and self.purpose is not None:
            line += f" blake2b={signing.tag(self.purpose, line.encode('ascii'), _NEWLINE, body).hex()}"
        data = line.encode("ascii") + _NEWLINE + body
        try:
            comes_back = read(data, f"{self.name}, being written") == value
        except RecursionError as error:
            raise FormatError(f"{self.name} cannot be written: it is nested too deeply") from error
        except CorruptFileError as error:  # the same text in another type: no file is damaged
            summary = f"{self.name} cannot be written: {error.summary}"
            raise FormatError(summary, expected=error.expected, found=error.found, where=error.where) from error
        if not comes_back:
            raise FormatError(
                f"{self.name} cannot be written: it does not come back from JSON as it was",
                expected="dicts with string keys, lists, strings, finite numbers, booleans and None",
            )
        return data

    def decode(self, data: bytes | memoryview, *, where: str, signing: Signing | None = None) -> tuple[Any, bool]:
        """Return the JSON document of a file, and whether the file is signed."""
        if len(data) > self.most_bytes:
            limit = f"at most {self.most_bytes} bytes"
            raise self.damaged("is too long", where, expected=limit, found=f"{len(data)} bytes")
        line_end = bytes(data[:_MAX_LINE_BYTES]).find(b"\n") + 1
        line = _LINE.fullmatch(bytes(data[:line_end]))
        if line is None or line[2].decode("ascii") != self.kind or (line[6] is not None and self.purpose is None):
            expected, found = f"deeppart-{self.kind} VERSION ...", short(bytes(data[:_MAX_LINE_BYTES]))
            raise self.damaged("does not begin as expected", where, expected=expected, found=found)
        body, nbytes, digest = bytes(data[line_end:]), int(line[5]), line[4].decode("ascii")
        if len(body) != nbytes:
            raise self.damaged(
                "has another length than its first line says: it is truncated, or bytes were appended",
                where,
                expected=f"{nbytes} bytes after the first line",
                found=f"{len(body)} bytes",
            )
        found = xxhash.xxh3_128_hexdigest(body)
        if found != digest:
            summary = f"the digest of {self.name} does not hold"
            raise CorruptFileError(summary, expected=digest, found=found, where=where, todo=self.todo)
        fmt.check_version(self.kind, int(line[3]), where)
        tag = None if line[6] is None else bytes.fromhex(line[6].decode("ascii"))
        if signing is not None and self.purpose is not None:
            signing.check(tag, self.purpose, line[1], _NEWLINE, body, what=self.name, where=where)
        try:
            with collection_paused():
                return parse_json(body), tag is not None
        except (ValueError, RecursionError) as error:
            # ValueError also for invalid UTF-8, numbers of thousands of digits, NaN, Infinity and repeated keys
            found = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise self.damaged("has no readable JSON document", where, found=found) from error

    def record(self, value: object, fields: Mapping[str, Field], what: str, where: str) -> dict[str, Any]:
        """Return ``value``, checked to be a JSON object with exactly these fields and allowed values."""
        if not isinstance(value, dict):
            raise self.damaged(f"has {what} that is not an object", where, found=short(value))
        if value.keys() != fields.keys():
            missing, unknown = sorted(fields.keys() - value.keys()), sorted(value.keys() - fields.keys())
            found = f"missing {missing}, unknown {short(', '.join(unknown))}"
            raise self.damaged(f"has {what} with other fields", where, expected=str(sorted(fields)), found=found)
        for name, field in fields.items():
            if not field.accepts(value[name]):
                found, summary = short(value[name]), f"has {what} with an impossible {name}"
                raise self.damaged(summary, where, expected=field.expected, found=found)
        return value

    def damaged(
        self, summary: str, where: str, *, expected: str | None = None, found: str | None = None
    ) -> CorruptFileError:
        """Return the error for a file that differs from what was written."""
        return CorruptFileError(f"{self.name} {summary}", expected=expected, found=found, where=where, todo=self.todo)
