r"""The bytes of a manifest: one ASCII line that seals a JSON document (docs/format.md).

    deeppart-manifest 4 xxh3-128=<32 hex digits> bytes=<n>[ blake2b=<64 hex digits>]\n
    <n bytes of JSON: ASCII, keys sorted, no spaces>

Invariants
----------
* The digest is checked before the JSON is parsed, every field before a :class:`~deeppart.model.Manifest` exists.
* ``decode_manifest(encode_manifest(m)) == m``; encoding proves that before it returns.
* File names in a manifest are exactly those this library gives: no path component ever comes out of a manifest. The
  parts are files of their own, or all of them sections of node files, each in that of its node; that is version 4, and
  others are written in version 3, which earlier versions of the library read.

Only bytes here; writing the file, and thereby committing, is the storage levels' business.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any, Final

import xxhash

from deeppart._gc import collection_paused
from deeppart.errors import CorruptFileError, FormatError, NewerFormatError
from deeppart.model import Attempt, ComparedEarlier, Manifest, PartRecord
from deeppart.part import format as fmt
from deeppart.part.format import short
from deeppart.part.json_text import parse_json
from deeppart.part.node_file import parse_section_path, section_file
from deeppart.part.signing import MANIFEST, Signing

#: The newest that is read.
MANIFEST_VERSION: Final = 4
#: The version of those whose parts are sections of node files, and of others.
SECTIONS_VERSION: Final = 4
FILES_VERSION: Final = 3
#: The first that may be signed.
SIGNED_VERSION: Final = 3
NEWLINE: Final = b"\n"
#: Longest manifest a reader accepts, in bytes; check a file's size against it before reading the file.
MAX_MANIFEST_BYTES: Final = 1024**3
MAX_HEAD_BYTES: Final = 256

_HEAD = re.compile(
    rb"(deeppart-manifest ([1-9][0-9]{0,8}) xxh3-128=([0-9a-f]{32}) bytes=([1-9][0-9]{0,10}))"
    rb"(?: blake2b=([0-9a-f]{64}))?\n"
)
_CREATED = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|\+00:00)", re.ASCII)
_MAX_LIBRARY_CHARS = 200
_TODO = "use another copy of the manifest, or an earlier step; `deeppart verify` tells which are sound"

_FIELDS: Final = {"attempt", "compared", "created", "library", "parts", "structure"}
_ATTEMPT_FIELDS: Final = {"lineage", "session", "sequence", "step", "world_size"}
_PART_FIELDS: Final = {
    "rank",
    "file",
    "nbytes",
    "raw_bytes",
    "digest",
    "index_digest",
    "node_index_digest",
    "referenced_bytes",
}
#: Version -> fields that it does not have.
_LATER_PART_FIELDS: Final = {1: {"node_index_digest", "referenced_bytes"}}
_LATER_FIELDS: Final = {1: {"compared"}, 2: {"compared"}}
#: Leaf numbers, and how many leaves, are below this.
_MOST_LEAVES: Final = 1 << 32


def encode_manifest(manifest: Manifest, signing: Signing | None = None) -> bytes:
    """Return the bytes of the manifest file.

    What was encoded is decoded again and compared, so that a structure JSON cannot hold (tuples, integer keys) is
    found now and not at the restore. Holds the GIL. Measured: 4 ms for 16 ranks and 1,564 leaves, 0.9 s for 65,536
    ranks and 100,000 leaves (20 MB).
    """
    attempt = manifest.attempt
    document = {
        "attempt": {name: getattr(attempt, name) for name in _ATTEMPT_FIELDS},
        "compared": _comparisons_document(manifest.compared),
        "created": manifest.created,
        "library": manifest.library,
        "parts": [{name: getattr(part, name) for name in _PART_FIELDS} for part in manifest.parts],
        "structure": manifest.structure,
    }
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(
            "a manifest cannot be written: its structure document is not JSON-like",
            found=str(error),
            where=f"step {attempt.step}",
        ) from error
    body = text.encode("ascii")
    version = SECTIONS_VERSION if any("/" in part.file for part in manifest.parts) else FILES_VERSION
    head = f"deeppart-manifest {version} xxh3-128={xxhash.xxh3_128_hexdigest(body)} bytes={len(body)}"
    if signing is not None:
        head += f" blake2b={signing.tag(MANIFEST, head.encode('ascii'), NEWLINE, body).hex()}"
    data = head.encode("ascii") + NEWLINE + body
    try:
        where = f"manifest of step {attempt.step}, being written"
        comes_back = decode_manifest(data, where=where, signing=signing) == manifest
    except RecursionError as error:
        raise FormatError(
            "a manifest cannot be written: its structure document is nested too deeply", where=f"step {attempt.step}"
        ) from error
    except CorruptFileError as error:
        raise FormatError(
            f"a manifest cannot be written: {error.summary}",
            expected=error.expected,
            found=error.found,
            where=error.where,
        ) from error
    if not comes_back:
        raise FormatError(
            "a manifest cannot be written: its structure document does not come back from JSON as it was",
            expected="dicts with string keys, lists, strings, finite numbers, booleans and None",
            where=f"step {attempt.step}",
        )
    return data


def decode_manifest(data: bytes | memoryview, *, where: str, signing: Signing | None = None) -> Manifest:
    """Check the bytes of a manifest file and return what they say."""
    version, body, tag = _sealed_body(data, where, signing)
    try:
        with collection_paused():
            document = parse_json(body)
    except (ValueError, RecursionError) as error:
        # ValueError also covers bad UTF-8, numbers of thousands of digits, NaN, Infinity and keys that are repeated
        found = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _bad("the manifest does not hold a JSON document that can be read", where, found=found) from error
    top = _object(document, _FIELDS - _LATER_FIELDS.get(version, set()), "manifest", where)
    identity = _object(top["attempt"], _ATTEMPT_FIELDS, "attempt", where)
    attempt = Attempt(**identity)
    wrong = fmt.bad_attempt(attempt, 0)
    if wrong is not None:
        raise _bad("the manifest names an impossible checkpoint", where, found=wrong)
    created, library, structure = top["created"], top["library"], top["structure"]
    if not isinstance(created, str) or _CREATED.fullmatch(created) is None:
        raise _bad("the manifest's time is malformed", where, expected="UTC time, ISO 8601", found=short(created))
    if not isinstance(library, str) or not library.isprintable() or not 0 < len(library) <= _MAX_LIBRARY_CHARS:
        raise _bad("the manifest's library name is malformed", where, found=short(library))
    if not isinstance(structure, dict):
        raise _bad("the manifest's structure is not an object", where, found=short(structure))
    parts = _parts(top["parts"], attempt.world_size, version, where)
    comparisons = _comparisons(top.get("compared"), where)
    return Manifest(attempt, created, library, parts, structure, comparisons, signed=tag is not None)


def _sealed_body(data: bytes | memoryview, where: str, signing: Signing | None) -> tuple[int, bytes, bytes | None]:
    """Return the format version, the JSON behind the first line, whose length and digest hold, and the signature."""
    if len(data) > MAX_MANIFEST_BYTES:
        limit = f"at most {MAX_MANIFEST_BYTES} bytes"
        raise _bad("the manifest is too long", where, expected=limit, found=f"{len(data)} bytes")
    line_end = bytes(data[:MAX_HEAD_BYTES]).find(b"\n") + 1
    line = bytes(data[:line_end])
    head = _HEAD.fullmatch(line)
    if head is None:
        found = short(bytes(data[:MAX_HEAD_BYTES]))
        raise _bad(
            "not a deeppart manifest", where, expected="deeppart-manifest VERSION xxh3-128=... bytes=...", found=found
        )
    body = bytes(data[line_end:])
    if len(body) != int(head[4]):
        raise _bad(
            "the manifest has another length than its first line says: it is truncated, or bytes were appended",
            where,
            expected=f"{int(head[4])} bytes behind the first line",
            found=f"{len(body)} bytes",
        )
    digest = xxhash.xxh3_128_hexdigest(body)
    if digest != head[3].decode("ascii"):
        raise _bad("the digest of the manifest does not hold", where, expected=head[3].decode("ascii"), found=digest)
    version = int(head[2])
    if version > MANIFEST_VERSION:
        raise NewerFormatError(
            f"this manifest has format version {version}; this deeppart reads up to version {MANIFEST_VERSION}",
            expected=f"manifest version {MANIFEST_VERSION}",
            found=f"manifest version {version}",
            where=where,
            todo="read the checkpoint with a newer deeppart",
        )
    tag = None if head[5] is None else bytes.fromhex(head[5].decode("ascii"))
    if tag is not None and version < SIGNED_VERSION:
        raise _bad(f"a manifest of version {version} cannot be signed", where)
    if signing is not None:
        signing.check(tag, MANIFEST, head[1], NEWLINE, body, what="the manifest", where=where)
    return version, body, tag


def _comparisons_document(compared: tuple[ComparedEarlier, ...] | None) -> list[Any] | None:
    if compared is None:
        return None
    return [[group.step, [list(each) for each in group.ranges]] for group in compared]


def _comparisons(value: object, where: str) -> tuple[ComparedEarlier, ...] | None:
    """Check which leaves were compared when; steps ascend, and so do the leaves of each."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise _bad("the manifest's list of comparisons is not a list", where, found=short(value))
    groups: list[ComparedEarlier] = []
    for group in value:
        if not isinstance(group, list) or len(group) != 2 or not isinstance(group[1], list) or not group[1]:
            raise _bad("the manifest's list of comparisons is malformed", where, found=short(group))
        step, ranges = group
        before = groups[-1].step if groups else None
        least = 0 if before is None else before + 1
        if (step is not None or groups) and (type(step) is not int or not least <= step <= fmt.MAX_COUNTER):
            raise _bad("the manifest's list of comparisons names an impossible step", where, found=short(step))
        groups.append(ComparedEarlier(step, _leaf_ranges(ranges, where)))
    together = sorted(each for group in groups for each in group.ranges)
    for (first, count), (following, _) in pairwise(together):
        if following < first + count:
            raise _bad("the manifest's list of comparisons names a leaf twice", where, found=f"leaf {following}")
    return tuple(groups)


def _leaf_ranges(items: list[object], where: str) -> tuple[tuple[int, int], ...]:
    """Check (first leaf, how many) pairs: ascending, and apart."""
    ranges: list[tuple[int, int]] = []
    for item in items:
        good = isinstance(item, list) and len(item) == 2 and all(type(each) is int for each in item)
        least = 0 if not ranges else sum(ranges[-1]) + 1
        if not good or not least <= item[0] < _MOST_LEAVES or not 1 <= item[1] < _MOST_LEAVES:  # type: ignore[index]
            raise _bad(
                "the manifest's list of comparisons names impossible leaves",
                where,
                expected=f"first leaf, from {least} on, and how many",
                found=short(item),
            )
        ranges.append((item[0], item[1]))  # type: ignore[index]
    return tuple(ranges)


def _parts(items: object, world_size: int, version: int, where: str) -> tuple[PartRecord, ...]:
    """Check the list of parts: one for each rank, in rank order."""
    if not isinstance(items, list) or len(items) != world_size:
        found = f"{len(items)} parts" if isinstance(items, list) else short(items)
        raise _bad("the manifest does not list one part per rank", where, expected=f"{world_size} parts", found=found)
    fields = _PART_FIELDS - _LATER_PART_FIELDS.get(version, set())
    files = _names(items, world_size, where) if version >= SECTIONS_VERSION else {}
    return tuple(
        _part(item, rank, files.get(rank, fmt.part_file_name(rank, world_size)), fields, where)
        for rank, item in enumerate(items)
    )


def _names(items: list[object], world_size: int, where: str) -> dict[int, str]:
    """The name that each part must have, as a section of a node file; and check that these share out the ranks.

    Every rank is in one, and the rank that a node file is named after is in that file: so that is its lowest.
    """
    firsts: list[int | None] = []
    for rank, item in enumerate(items):
        name = item.get("file") if isinstance(item, dict) else None
        place = parse_section_path(name) if isinstance(name, str) else None
        firsts.append(None if place is None or (place.rank, place.world_size) != (rank, world_size) else place.first)
        first = firsts[-1]
        if first is None or firsts[first] != first:
            raise _bad(
                f"part {rank} of the manifest has another file name",
                where,
                expected=f"a section of rank {rank} in the node file of its node",
                found=short(name),
            )
    return {rank: section_file(first, rank, world_size) for rank, first in enumerate(firsts) if first is not None}


def _part(item: object, rank: int, name: str, names: set[str], where: str) -> PartRecord:
    """Check one part; by its place in the list it has to be that of ``rank``, so none is missing or there twice."""
    what = f"part {rank}"
    fields = _object(item, names, what, where)
    if type(fields["rank"]) is not int or fields["rank"] != rank:
        raise _bad(f"{what} of the manifest has another rank", where, expected=str(rank), found=short(fields["rank"]))
    if fields["file"] != name:
        raise _bad(f"{what} of the manifest has another file name", where, expected=name, found=short(fields["file"]))
    limits = (
        ("nbytes", fmt.MIN_FILE_BYTES, fmt.MAX_FILE_BYTES),
        ("raw_bytes", 0, fmt.MAX_RAW_BYTES),
        ("referenced_bytes", 0, fmt.MAX_RAW_BYTES),
    )
    for key, least, most in limits:
        if key not in names:
            continue
        value = fields[key]
        if type(value) is not int or not least <= value <= most:  # `type`, because True is an int to isinstance
            limit = f"an integer from {least} to {most}"
            raise _bad(f"{what} of the manifest has an impossible {key}", where, expected=limit, found=short(value))
    for key in sorted({"digest", "index_digest", "node_index_digest"} & names):
        if not fmt.is_hex32(fields[key]) and (key, fields[key]) != ("node_index_digest", ""):
            expected = "32 lower-case hex digits"
            raise _bad(
                f"{what} of the manifest has a malformed {key}", where, expected=expected, found=short(fields[key])
            )
    return PartRecord(**fields)


def _object(value: object, fields: set[str], what: str, where: str) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object with exactly these fields."""
    if not isinstance(value, dict):
        raise _bad(f"{what} of the manifest is not an object", where, found=short(value))
    if value.keys() != fields:
        missing, unknown = sorted(fields - value.keys()), sorted(value.keys() - fields)
        found = f"missing {missing}, unknown {short(', '.join(unknown))}"
        raise _bad(f"{what} of the manifest has other fields", where, expected=str(sorted(fields)), found=found)
    return value


def _bad(summary: str, where: str, *, expected: str | None = None, found: str | None = None) -> CorruptFileError:
    return CorruptFileError(summary, expected=expected, found=found, where=where, todo=_TODO)
