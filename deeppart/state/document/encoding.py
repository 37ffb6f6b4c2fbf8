"""Writing the structure document: a live tree, leaf types and values as JSON.

It names no Python type to import: containers and objects are of known kinds, a namedtuple or dataclass is described by
its name and its fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.state.document.structure import DICTS, Alias
from deeppart.state.tree.composites import COMPOSITES, branch_name
from deeppart.state.tree.flat import Apart, ArrayLeaf, Node, ShardedLeaf, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import Path, id_key
from deeppart.state.tree.runs import LEAST_ITEMS
from deeppart.state.tree.values import Encoded, encode_key, encode_value

#: 5 has objects without a state_dict(), and more kinds of values and dicts; what has none is written as 4 if it has
#: sharded tensors or those that are made of others, otherwise as 3: older libraries read that.
STRUCTURE_VERSION, _WITHOUT_FORMS, _WITHOUT_SHARDS = 5, 4, 3
#: Code of a tensor that is made of others.
COMPOSITE_CODE = "x"
#: Code of an object without a state_dict().
FORM_CODE = "w"
#: Code of each kind of branch.
CODES = {
    "dict": "d",
    "odict": "o",
    "counter": "c",
    "defaultdict": "f",
    "list": "l",
    "tuple": "t",
    "namedtuple": "n",
    "object": "s",
}


def encode_tree(root: Node, first: tuple[int, int] = (0, 0)) -> Any:
    """The JSON form of a live tree."""
    if isinstance(root, ArrayLeaf):
        return ["a", root.index + first[0]]
    if isinstance(root, ValueLeaf):
        return ["v", root.index + first[1]]
    if isinstance(root, ShardedLeaf):
        return ["h", root.index]
    if isinstance(root, Apart):
        return ["r"] if root.mine or root.node is None else encode_tree(root.node, first)
    if isinstance(root, UnmadeLeaf):
        raise TypeError("a tensor without memory is in no state that is saved")
    if root.kind in COMPOSITES:
        children = [encode_tree(child, first) for child in root.children]
        return [COMPOSITE_CODE, root.kind, branch_name(root.kind, root.container), list(root.keys), children]
    code = CODES[root.kind]
    if root.kind in ("list", "tuple"):
        return [code, _encode_items(root.children, first)]
    children = [encode_tree(child, first) for child in root.children]
    if root.kind in DICTS:
        place = {id_key(key): i for i, key in enumerate(root.keys) if children[i] != ["r"]}
        order = [place[id_key(key)] for key in root.container if id_key(key) in place]
        encoded = [encode_key(root.keys[i], "a dict key") for i in order]
        return [code, encoded, [children[i] for i in order], _encode_metadata(root.container)]
    if root.kind == "namedtuple":
        return [code, type(root.container).__name__, list(root.keys), children]
    if root.form is not None:
        return [FORM_CODE, root.form.kind, [_encode_about(each) for each in root.form.about], children[0]]
    if root.kind == "object":
        kind = type(root.container)
        return [code, f"{kind.__module__}.{kind.__qualname__}", children[0]]
    raise AssertionError(root.kind)


def _encode_about(item: Any) -> Any:
    return list(item) if type(item) is tuple else item


def _encode_items(children: list[Node], first: tuple[int, int]) -> list[Any]:
    """The items of a list or tuple; many values in a row, which follow each other in number too, as one entry."""
    encoded: list[Any] = []
    place = 0
    while place < len(children):
        child, start = children[place], place
        while place < len(children) and isinstance(children[place], ValueLeaf):
            place += 1
        if isinstance(child, ValueLeaf) and place - start >= LEAST_ITEMS:
            encoded.append(["v", child.index + first[1], place - start])
        elif isinstance(child, ValueLeaf):
            encoded += [encode_tree(value, first) for value in children[start:place]]
        else:
            encoded.append(encode_tree(child, first))
            place += 1
    return encoded


def _encode_metadata(container: Any) -> Any:
    """``state_dict()._metadata`` ({module path: {"version": n}}), which torch uses to load older layouts."""
    metadata = getattr(container, "_metadata", None)
    if not isinstance(metadata, dict):
        return None
    encoded = {}
    for name, entry in metadata.items():
        if not isinstance(name, str) or not isinstance(entry, dict):
            return None
        plain = {key: value for key, value in entry.items() if isinstance(key, str) and isinstance(value, (int, str))}
        encoded[name] = {key: encode_value(value, name) for key, value in plain.items()}
    return encoded


def encode_structure(
    tree: Any,
    types: list[LeafType],
    per_rank: npt.NDArray[np.bool_],
    aliases: dict[int, Alias],
    values: list[Encoded],
    per_rank_values: npt.NDArray[np.bool_],
    rank0: list[Any],
    has_apart: bool,
    sharded: Sequence[LeafType] = (),
    has_composites: bool = False,
    extended: bool = False,
) -> dict[str, Any]:
    """The structure document; ``tree`` comes from :func:`encode_tree`, ``rank0`` from :func:`encode_path`."""
    leaves = []
    for index, (kind, own) in enumerate(zip(types, per_rank.tolist(), strict=True)):
        entry: list[Any] = [kind.kind, kind.dtype, list(kind.shape), int(own)]
        if index in aliases:
            alias = aliases[index]
            entry.append([alias.owner, alias.offset, list(alias.strides)])
        leaves.append(entry)
    shared = [None if own else value for value, own in zip(values, per_rank_values.tolist(), strict=True)]
    with_shards = {"sharded": [encode_type(kind) for kind in sharded]} if sharded else {}
    return {
        "version": STRUCTURE_VERSION if extended else _WITHOUT_FORMS if sharded or has_composites else _WITHOUT_SHARDS,
        **with_shards,
        "tree": tree,
        "leaves": leaves,
        "values": shared,
        "per_rank_values": np.flatnonzero(per_rank_values).tolist(),
        "rank0": rank0,
        "apart": has_apart,
    }


def encode_type(kind: LeafType) -> list[Any]:
    """A leaf's type without its bytes."""
    return [kind.kind, kind.dtype, list(kind.shape)]


def encode_path(path: Path) -> list[Encoded]:
    """The keys of a path."""
    return [encode_key(key, "a dict key") for key in path]
