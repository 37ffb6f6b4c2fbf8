"""Edits of documents: one field gets another value; a piece goes, or comes twice or elsewhere; or one that knows what
stands where. All follows from random numbers.
"""

from __future__ import annotations

import random
from typing import Any

from deeppart.state.tensors.composites import COMPOSITES, KEYS
from tests.fuzz.images import TWICE, ManifestImage
from tests.fuzz.odd_values import NUMBERS, TAGGED, TEXTS, odd_value

# --- any of JSON ------------------------------------------------------------------------------------------------------


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


def edit_manifest(manifest: ManifestImage, rng: random.Random) -> None:
    """One edit of what is not the structure document, or of anything."""
    if rng.random() < 0.1:
        manifest.version = rng.choice((0, 1, 5, 7, 10**8))
    else:
        manifest.document = edit_json(manifest.document, rng)


# --- the structure document, by what its places mean ------------------------------------------------------------------

DTYPES = tuple(
    text for text in TEXTS if text[:1] in "<>|=,(if" or text[:4] in ("floa", "bflo", "comp", "uint", "qint", "bool")
)
SHAPES: tuple[Any, ...] = (
    [1 << 62], [1 << 61, 8], [1 << 61] * 100, [1 << 31, 1 << 31], [0, 1 << 40, 1 << 40], [0, 1 << 62], [1] * 65,
    [1] * 64, [], [0], [-1], [2.0], ["3"], [True], "33", None, 5, {"0": 1}, [[1]], [1 << 20], [1 << 40], [5], [2, 2],
    [16],
)  # fmt: skip


def edit_structure(structure: dict[str, Any], rng: random.Random) -> None:
    """One edit of a structure document that knows what stands where."""
    leaves = structure["leaves"]
    kind = rng.randrange(10)
    if structure["boxes"] and rng.random() < 0.3:
        _edit_division(rng.choice(structure["boxes"]), rng)
    elif kind < 6 and leaves:
        edit_leaf(rng.choice(leaves), rng, len(leaves))
    elif kind == 6:
        structure[rng.choice(("rank0", "rank_local", "boxes", "per_rank"))] = odd_value(rng)
    elif kind == 7 and leaves:
        structure["per_rank"] = [rng.randrange(-1, len(leaves) + 1) for _ in range(rng.randrange(3))]
    else:
        _edit_node(rng.choice(_nodes(structure["tree"])), rng)


def _edit_division(division: list[Any], rng: random.Random) -> None:
    """Other cuts or boxes of a tensor."""
    kind, at = rng.randrange(5), rng.randrange(len(division)) if division else 0
    if not division or kind == 0:
        division.insert(at, rng.choice((0, 1, 2, [0, 1], [0, 1, 2], "boxes", odd_value(rng))))
    elif kind == 1:
        del division[at]
    elif kind == 2 and type(division[at]) is list:
        division[at].append(rng.choice((0, 3, 4, rng.choice(NUMBERS))))
    else:
        division[at] = rng.choice((0, 1, 2, 3, 5, [0, 2], [0, 3], rng.choice(NUMBERS), odd_value(rng)))


def edit_leaf(leaf: list[Any], rng: random.Random, count: int) -> None:
    """Another type, shape or tie of a leaf: ``[kind, dtype, shape, tie]`` or the first three of these; or other content
    of a value.
    """
    kind = rng.randrange(6)
    if len(leaf) < 3:
        leaf[rng.random() < 0.95 :] = [rng.choice((*TAGGED, rng.choice(TEXTS), rng.choice(NUMBERS), odd_value(rng)))]
    elif kind < 2:
        leaf[1] = rng.choice(DTYPES)
        if rng.random() < 0.6:
            leaf[0] = "torch" if leaf[1][:1].isalpha() and rng.random() < 0.9 else "numpy"
    elif kind < 4:
        shape = list(leaf[2]) if isinstance(leaf[2], list) else [1]
        odd = rng.choice(SHAPES)
        leaf[2] = rng.choice(
            (odd, odd, [*shape, 1], shape[1:], [*shape, rng.choice(NUMBERS)], [2 * n for n in shape if type(n) is int])
        )
    elif kind == 4:
        shape = leaf[2] if isinstance(leaf[2], list) else []
        strides: list[Any] = [rng.choice((0, 1, 2, 5, 1 << 30, (1 << 62) - 1, -1, 1 << 61)) for _ in shape]
        leaf[3:] = [[rng.randrange(count), rng.choice((0, 0, 4, 8, 2, 1 << 40, -4)), strides]]
    else:
        leaf[0] = rng.choice(("torch", "numpy", "value", "cuda", 5))


def _nodes(tree: Any) -> list[list[Any]]:
    """Every node of a tree that is a list."""
    found: list[list[Any]] = []
    rest = [tree]
    while rest and len(found) < 5000:
        node = rest.pop()
        if isinstance(node, list) and node:
            found.append(node)
            rest += node[3] if len(node) > 3 and isinstance(node[3], list) else []
    return found or [["list", None, None, []]]


_KINDS = (0, 1, "r", "dict", "odict", "counter", "list", "tuple", "namedtuple", "object", "deque", *COMPOSITES, "z")


def _edit_node(node: list[Any], rng: random.Random) -> None:
    kind = rng.randrange(8)
    if kind == 0:
        node[0] = rng.choice((*_KINDS, 5, ["a"]))
    elif kind == 1:
        node[:] = rng.choice(
            (_around("list", node), _around("tuple", node), ["object", "\ud800", None, [list(node)]], _deep(node, rng))
        )
    elif kind == 2:
        name, second = rng.choice(("P", "class", "a b", "\u00e9")), rng.choice(("x", "_y", "fi", "\ufb01", "for"))
        node[:] = ["namedtuple", name, ["x", second], [list(node), ["list", None, None, []]]]
    elif len(node) > 3 and isinstance(node[2], list) and isinstance(node[3], list):
        if kind == 3:
            node[1] = rng.choice(
                ({"": {"version": 2}}, {"": 5}, [["", {}]], "ab", {"": {"a": [1]}}, {"": {"a": ["int", "1"]}})
            )
        elif node[2] and kind < 6:
            at = rng.randrange(len(node[2]))
            node[2][at] = rng.choice((*TAGGED, rng.choice(TEXTS), 1, True, 1.0, None, node[2][0], odd_value(rng)))
        elif kind == 6:
            node[0] = rng.choice((*sorted(COMPOSITES), "dict", "odict", "counter"))
            node[2] = list(KEYS.get(node[0], node[2]))
        else:
            rng.choice((node[2], node[3])).append(rng.choice(("context", 0, 1, odd_value(rng))))
            rng.shuffle(node[3])
    elif len(node) > 3 and isinstance(node[3], list) and node[3]:
        other = (0, 1, 2, rng.randrange(30), -1, "0", True, 1.0, 1 << 70)
        node[3][rng.randrange(len(node[3]))] = rng.choice(other)


def _around(kind: str, node: list[Any]) -> list[Any]:
    return [kind, None, None, [list(node)]]


def _deep(node: list[Any], rng: random.Random) -> list[Any]:
    for _ in range(rng.choice((190, 199, 201, 300, 450))):
        node = _around(rng.choice(("list", "tuple")), node)
    return node


def edit_meta(meta: dict[str, Any], rng: random.Random) -> None:
    """One edit of what a part says of its rank's own leaves and values."""
    leaves = meta["leaves"]
    if leaves and rng.random() < 0.7:
        edit_leaf(leaves[rng.choice(sorted(leaves))], rng, 4)
    else:
        name = rng.choice(("0", "1", "2", "3", "-1", "01", " 1", "9" * 30, "x", "\u0663"))
        leaves[name] = rng.choice((["torch", "float32", [3]], ["numpy", "|u1", [4]], ["value", 5], 5, None))
