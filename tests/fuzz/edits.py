"""Edits: one field gets another value; a piece goes, or comes twice or elsewhere. All follows from random numbers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import zstandard

from deeppart.state.tree.composites import COMPOSITES, KEYS
from tests.fuzz.images import TWICE, ManifestImage, NodeFileImage, PartImage, Row
from tests.fuzz.odd_values import NUMBERS, TAGGED, TEXTS, odd_value

# --- documents --------------------------------------------------------------------------------------------------------


def edit_json(document: Any, rng: random.Random) -> Any:
    """One edit somewhere in a document; what is given may be changed."""
    places = list(_places(document))
    if not places:
        return odd_value(rng)
    holder, key = rng.choice(places)
    edit = rng.choice((_replace, _replace, _nudge, _nudge, _remove, _twice, _swap, _move, _wrap, _rename))
    edit(holder, key, places, rng)
    return document


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of everything in a document."""
    found: list[tuple[Any, Any]] = []
    rest = [document]
    while rest and len(found) < 20_000:
        holder = rest.pop()
        if isinstance(holder, (dict, list)):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            found += [(holder, key) for key in keys]
            rest += [holder[key] for key in keys]
    return found


def _replace(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    holder[key] = odd_value(rng)


def _nudge(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    value = holder[key]
    if type(value) is int:
        holder[key] = rng.choice(
            (value + 1, value - 1, value * 2, -value, value ^ (1 << rng.randrange(63)), value << 32)
        )
    elif type(value) is str and value:
        at = rng.randrange(len(value))
        other = rng.choice("0aAzfé\0/.~ \ud800")
        holder[key] = rng.choice((value[:at] + other + value[at + 1 :], value[:at], value + value, value[at:] + other))
    elif type(value) is bool:
        holder[key] = not value
    else:
        holder[key] = odd_value(rng)


def _remove(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    del holder[key]


def _twice(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), holder[key])
    else:
        holder[rng.choice((TWICE, rng.choice(TEXTS)))] = holder[key]


def _swap(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _move(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    """A copy of something else in the document, so that nothing contains itself."""
    source, name = rng.choice(places)
    holder[key] = _copy(source[name])


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _wrap(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    value = holder[key]
    holder[key] = rng.choice(
        ([value], {"a": value}, ["l", [value]], ["tuple", [value]], ["s", "x", value], [value, value])
    )


def _rename(holder: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice((*TEXTS, "0", "1", "2", "99"))] = holder.pop(key)
    else:
        holder[key] = odd_value(rng)


# --- parts ------------------------------------------------------------------------------------------------------------


def edit_part(part: PartImage, rng: random.Random) -> None:
    """One edit of anything in a part but its document."""
    edits: list[Callable[[], None]] = [
        lambda: _field(part.head, rng, ("version", "length", "sequence", "step", "rank", "world_size")),
        lambda: _head_bytes(part.head, rng),
        lambda: _rows(part.spans, rng, ("leaf", "table", "start", "length", "raw_offset")),
        lambda: _rows(part.spans, rng, ("leaf", "table", "start", "length", "raw_offset")),
        lambda: _shift_spans(part.spans, rng),
        lambda: _rows(part.chunks, rng, ("offset", "encoded_length", "raw_length", "codec", "flags", "base")),
        lambda: _chunk(part.chunks, rng),
        lambda: _chunk(part.chunks, rng),
        lambda: _rows(part.bases, rng, ("nbytes", "step")),
        lambda: _claims(part, rng),
    ]
    rng.choice(edits)()


def _number(value: int | None, rng: random.Random) -> int:
    value = value or 0
    return rng.choice(
        (rng.choice(NUMBERS), value + 1, value - 1, value * 2, value ^ (1 << rng.randrange(64)), value + 64)
    )


def _field(row: Row, rng: random.Random, names: tuple[str, ...]) -> None:
    name = rng.choice(names)
    row[name] = _number(row[name], rng)


def _head_bytes(head: Row, rng: random.Random) -> None:
    name = rng.choice(("magic", "lineage", "session"))
    data = bytearray(head[name])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    head[name] = bytes(data)


def _rows(rows: list[Row], rng: random.Random, names: tuple[str, ...]) -> None:
    if not rows:
        return
    at = rng.randrange(len(rows))
    kind = rng.randrange(8)
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows.insert(rng.randrange(len(rows) + 1), dict(rows[at]))
    elif kind == 2:
        other = rng.randrange(len(rows))
        rows[at], rows[other] = rows[other], rows[at]
    else:
        _field(rows[at], rng, names)


def _shift_spans(spans: list[Row], rng: random.Random) -> None:
    """Two neighbours exchange bytes, or leaves, and still fill the raw stream."""
    if len(spans) < 2:
        return
    at = rng.randrange(len(spans) - 1)
    one, other = spans[at], spans[at + 1]
    if rng.random() < 0.3:
        one["table"] ^= 1
        return
    if rng.random() < 0.4:
        name = rng.choice(("leaf", "table", "start"))
        one[name], other[name] = other[name], one[name]
        return
    count = min(rng.choice((1, 2, 4, 8, 64)), other["length"] - 1)
    one["length"] += count
    other["length"] -= count
    other["raw_offset"] += count
    if rng.random() < 0.5:
        other["start"] += count


def _claims(part: PartImage, rng: random.Random) -> None:
    """A length or count that is not what follows."""
    name = rng.choice(("raw_bytes", "index_offset", "index_length", "file_length", "counts", "counts"))
    if name == "counts":
        part.counts[rng.randrange(4)] = _number(rng.choice((len(part.chunks), len(part.spans), 1)), rng)
    else:
        setattr(part, name, _number(rng.choice((4096, 5000)), rng))


def _chunk(chunks: list[Row], rng: random.Random) -> None:
    """Other encoded bytes, whose digest holds."""
    if not chunks:
        return
    row = rng.choice(chunks)
    kind = rng.randrange(6)
    data = bytearray(row["encoded"])
    if kind == 0 and data:
        for _ in range(rng.choice((1, 1, 4))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 1:
        data = bytearray(data[: rng.randrange(len(data) + 1)])
    elif kind == 2:
        data += rng.choice((b"\0", b"\xff" * 9, zstandard.compress(b"more"), bytes(data[:20])))
    elif kind == 3:
        data = bytearray(odd_frame(row["raw_length"], rng))
        row["codec"] = 1
    elif kind == 4:
        data = bytearray(odd_planes(row["raw_length"], rng))
        row["codec"] = 2
    else:
        row["codec"] = rng.choice((0, 1, 2, 3, 65535))
    row["encoded"] = bytes(data)
    row["raw_digest"] = None


def odd_frame(raw_length: int, rng: random.Random) -> bytes:
    """A Zstandard frame (RFC 8878) that is not what it should be, or not what it says."""
    raw = bytes(min(raw_length, 64 << 20))
    good = zstandard.compress(raw)
    magic = b"\x28\xb5\x2f\xfd"
    size = struct.pack("<Q", rng.choice((raw_length, raw_length + 1, 1 << 40, (1 << 64) - 1, 0)))
    return rng.choice(
        (
            zstandard.ZstdCompressor(write_content_size=False).compress(raw),
            good + good,
            good + b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip",
            b"\x50\x2a\x4d\x18" + struct.pack("<I", raw_length & 0xFFFFFFFF) + raw[:100],
            magic + b"\xe0" + size + b"\x01\0\0",  # one segment, eight bytes of content size; a last block, raw, empty
            magic + b"\xe0" + size + struct.pack("<I", 1 | 1 << 1 | (128 << 10) << 3)[:3] + b"\0",  # one byte repeated
            magic + b"\xc0\xf8" + size + b"\x01\0\0",  # a window of 2^41 bytes
            magic + b"\xc3\x00" + b"\x01\0\0\0" + size + b"\x01\0\0",  # a dictionary
            good[: len(good) // 2],
            zstandard.ZstdCompressor(write_checksum=True).compress(raw)[:-1] + b"\0",
            magic,
            b"",
        )
    )


def odd_planes(raw_length: int, rng: random.Random) -> bytes:
    """A chunk of planes with a head that may be wrong."""
    layout, planes = rng.choice(
        ((1, 2), (2, 4), (3, 8), (4, 2), (5, 3), (6, 4), (7, 4), (8, 8), (0, 0), (9, 2), (5, 255))
    )
    head = struct.pack("<BBH", layout, planes, rng.choice((0, 0, 0, 1)))
    body = b""
    for _ in range(min(planes, 8)):
        stored = rng.choice((raw_length // 4, raw_length // 2, 0, 1, 0xFFFFFFFF, 9))
        data = rng.choice((bytes(min(stored, raw_length)), zstandard.compress(bytes(raw_length // 4)), b""))
        head += struct.pack("<B3xI", rng.choice((0, 1, 2, 3, 4)), rng.choice((stored, len(data))))
        body += data
    return head + body + bytes(rng.choice((0, raw_length % 4)))


# --- bytes ------------------------------------------------------------------------------------------------------------


def edit_bytes(data: bytes, rng: random.Random) -> bytes:
    """What storage may do to a file, or somebody who knows nothing of its digests."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 3, 10))):
        at = (
            rng.randrange(len(changed) + 1)
            if rng.random() < 0.5
            else rng.choice((0, len(changed))) + rng.randrange(-200, 200)
        )
        at = max(0, min(at, len(changed) - 1))
        kind = rng.randrange(7)
        if kind < 3 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del changed[at : at + rng.choice((1, 8, 64, 1000, 1 << 30))]
        elif kind == 4:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 8, 64))))
        elif kind == 5 and changed:
            length = rng.choice((1, 8, 16, 80))
            start = rng.randrange(len(changed))
            changed[at : at + length] = changed[start : start + length]
        else:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS) & ((1 << 64) - 1))
    return bytes(changed)


def edit_manifest(manifest: ManifestImage, rng: random.Random) -> None:
    """One edit of what is not the structure document, or of anything."""
    if rng.random() < 0.1:
        manifest.version = rng.choice((0, 1, 2, 3, 4, 10**8))
    else:
        manifest.document = edit_json(manifest.document, rng)


# --- node files -------------------------------------------------------------------------------------------------------


def edit_node_file(node: NodeFileImage, rng: random.Random) -> None:
    """One edit of the table, of what says where it lies, or of the order of the sections."""
    kind = rng.randrange(10)
    large = (0, 1, 4096, 1 << 20, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - (1 << 20))
    row = rng.choice(node.rows) if node.rows else None
    if kind < 4 and row is not None:
        name = rng.choice(("rank", "reserved", "offset", "nbytes"))
        row[name] = rng.choice((*large, rng.randrange(1 << 21), rng.randrange(4)))
    elif kind == 4 and row is not None:
        row["index_digest"] = rng.randbytes(16)
    elif kind == 5:
        setattr(node, rng.choice(("version", "world_size")), rng.choice((0, 1, 2, 3, (1 << 32) - 1, 1 << 24)))
    elif kind < 8:
        name = rng.choice(("count", "table_offset", "table_length", "file_length"))
        setattr(node, name, rng.choice((*large, rng.randrange(1 << 21))))
    elif kind == 8 and len(node.parts) > 1:
        node.parts[0], node.parts[1] = node.parts[1], node.parts[0]
    elif node.rows:
        at = rng.randrange(len(node.rows))
        if rng.random() < 0.5:
            del node.rows[at], node.parts[at]
        else:
            node.rows.append(dict(node.rows[at]))
            node.parts.append(node.parts[at])


# --- the structure document, by what its places mean ------------------------------------------------------------------

DTYPES = tuple(
    text for text in TEXTS if text[:1] in "<>|=,(if" or text[:4] in ("floa", "bflo", "comp", "uint", "qint", "bool")
)
SHAPES: tuple[Any, ...] = (
    *([1 << 62], [1 << 61, 8], [1 << 61] * 100, [1 << 31, 1 << 31], [0, 1 << 40, 1 << 40], [0, 1 << 62], [1] * 65),
    *(
        [1] * 64,
        [],
        [0],
        [-1],
        [2.0],
        ["3"],
        [True],
        "33",
        None,
        5,
        {"0": 1},
        [[1]],
        [1 << 20],
        [1 << 40],
        [5],
        [2, 2],
        [16],
    ),
)


def edit_structure(structure: dict[str, Any], rng: random.Random) -> None:
    """One edit of a structure document that knows what stands where."""
    leaves, values, tree = structure["leaves"], structure["values"], structure["tree"]
    kind = rng.randrange(10)
    if kind < 4 and leaves:
        edit_leaf(rng.choice(leaves), rng, len(leaves))
    elif kind < 6 and values:
        values[rng.randrange(len(values))] = rng.choice(
            (*TAGGED, rng.choice(TEXTS), rng.choice(NUMBERS), odd_value(rng))
        )
    elif kind == 6:
        structure[rng.choice(("version", "per_rank_values"))] = odd_value(rng)
    elif kind == 7 and values:
        structure["per_rank_values"] = [rng.randrange(-1, len(values) + 1) for _ in range(rng.randrange(3))]
    else:
        _edit_node(rng.choice(_nodes(tree)), rng)


def edit_leaf(leaf: list[Any], rng: random.Random, count: int) -> None:
    """Another type, shape, table or tie of a leaf: ``[kind, dtype, shape, own, tie]`` or the first three of these."""
    kind = rng.randrange(6)
    if kind < 2:
        leaf[1] = rng.choice(DTYPES)
        if rng.random() < 0.6:
            leaf[0] = "torch" if leaf[1][:1].isalpha() and rng.random() < 0.9 else "numpy"
    elif kind < 4:
        shape = list(leaf[2]) if isinstance(leaf[2], list) else [1]
        odd = rng.choice(SHAPES)
        leaf[2] = rng.choice(
            (odd, odd, [*shape, 1], shape[1:], [*shape, rng.choice(NUMBERS)], [2 * n for n in shape if type(n) is int])
        )
    elif len(leaf) > 3 and kind == 4:
        leaf[3] = rng.choice((1, 0, 1, 0, odd_value(rng)))
    elif len(leaf) > 3:
        shape = leaf[2] if isinstance(leaf[2], list) else []
        strides: list[Any] = [rng.choice((0, 1, 2, 5, 1 << 30, (1 << 62) - 1, -1, 1 << 61)) for _ in shape]
        leaf[4:] = [[rng.randrange(count), rng.choice((0, 0, 4, 8, 2, 1 << 40, -4)), strides]]
    else:
        leaf[0] = rng.choice(("torch", "numpy", "cuda", 5))


def _nodes(tree: Any) -> list[list[Any]]:
    """Every node of a tree that is a list."""
    found: list[list[Any]] = []
    rest = [tree]
    while rest and len(found) < 5000:
        node = rest.pop()
        if isinstance(node, list) and node:
            found.append(node)
            children = node[2] if node[0] in ("d", "o", "c") and len(node) > 2 else node[-1]
            rest += children if isinstance(children, list) and node[0] != "s" else [children]
    return found or [["l", []]]


def _edit_node(node: list[Any], rng: random.Random) -> None:
    kind = rng.randrange(8)
    if kind == 0:
        node[0] = rng.choice(("a", "v", "d", "o", "c", "l", "t", "n", "s", "x", "z", 5, ["a"]))
    elif kind == 1:
        node[:] = rng.choice(
            (["l", [list(node)]], ["t", [list(node)]], ["s", "\ud800", list(node)], _deep(list(node), rng))
        )
    elif kind == 2:
        node[:] = [
            "n",
            rng.choice(("P", "class", "a b", "\u00e9")),
            ["x", rng.choice(("x", "_y", "fi", "\ufb01", "for"))],
        ] + [[list(node), ["l", []]]]
    elif node[0] in ("d", "o", "c") and len(node) > 3 and isinstance(node[1], list):
        if kind == 3:
            node[3] = rng.choice(
                ({"": {"version": 2}}, {"": 5}, [["", {}]], "ab", {"": {"a": [1]}}, {"": {"a": ["int", "1"]}})
            )
        elif node[1] and kind < 6:
            at = rng.randrange(len(node[1]))
            node[1][at] = rng.choice((*TAGGED, rng.choice(TEXTS), 1, True, 1.0, None, node[1][0], odd_value(rng)))
        else:
            node[0] = rng.choice("doc")
    elif node[0] == "x" and len(node) > 4 and isinstance(node[3], list) and isinstance(node[4], list):
        if kind < 5:
            node[1] = rng.choice((*sorted(COMPOSITES), odd_value(rng)))
            node[3] = list(KEYS.get(node[1], node[3])) if isinstance(node[1], str) and rng.random() < 0.8 else node[3]
        elif kind == 5:
            rng.shuffle(node[4])
        else:
            rng.choice((node[3], node[4])).append(rng.choice(("context", ["v", 0], ["a", 0], odd_value(rng))))
    elif node[0] in ("a", "v") and len(node) > 1:
        node[1] = rng.choice((0, 1, 2, rng.randrange(30), -1, "0", True, 1.0, 1 << 70))


def _deep(node: list[Any], rng: random.Random) -> list[Any]:
    for _ in range(rng.choice((190, 199, 201, 300, 450))):
        node = [rng.choice("lt"), [node]]
    return node


def edit_meta(meta: dict[str, Any], rng: random.Random) -> None:
    """One edit of what a part says of its rank's own leaves and values."""
    leaves, values = meta["leaves"], meta["values"]
    kind = rng.randrange(6)
    if leaves and kind < 3:
        edit_leaf(leaves[rng.choice(sorted(leaves))], rng, 4)
    elif values and kind == 3:
        values[rng.choice(sorted(values))] = rng.choice((*TAGGED, odd_value(rng)))
    else:
        name = rng.choice(("0", "1", "2", "3", "-1", "01", " 1", "9" * 30, "x", "\u0663"))
        rng.choice((leaves, values))[name] = rng.choice((["torch", "float32", [3]], ["numpy", "|u1", [4]], 5, None))
