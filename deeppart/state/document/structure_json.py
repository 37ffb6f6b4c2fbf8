"""The structure document as JSON: tree, leaf types and values, written and read.

It names no Python type to import: containers and objects have known kinds, and a namedtuple or dataclass is described
by its name and its fields. Everything from a file is checked before it is used.
"""

from __future__ import annotations

import functools
import itertools
import keyword
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.errors import CorruptFileError, short
from deeppart.model import Box, Division
from deeppart.part import MAX_LEAF_BYTES
from deeppart.state.document.structure import Structure
from deeppart.state.objects import ABOUT, DATACLASS, DEQUE, ObjectForm
from deeppart.state.paths import Path, component, exact, id_key
from deeppart.state.tensors import COMPOSITES, CONTEXT, JAGGED, KEYS, SUBCLASS, VALUES, LeafType
from deeppart.state.tree import (
    DEEPEST_NESTING,
    DICTS,
    LEAST_ITEMS,
    Alias,
    ArrayLeaf,
    Branch,
    Node,
    RankLocal,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    contiguous_strides,
)
from deeppart.state.values import Encoded, decode_key, decode_value, encode_key, encode_value, is_unicode

#: Code of a composite tensor.
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
_KINDS = {code: kind for kind, code in CODES.items()}
#: Number of items after the code of a node.
_NODE_ITEMS = {
    "a": 1,
    "v": 1,
    "r": 0,
    "d": 3,
    "o": 3,
    "c": 3,
    "f": 3,
    "l": 1,
    "t": 1,
    "n": 3,
    "s": 2,
    COMPOSITE_CODE: 4,
    FORM_CODE: 3,
}
#: Boxes of one global tensor, at most: the largest number of ranks.
MOST_BOXES = 1 << 24
#: Total characters of the paths of all leaves, at most.
MOST_PATH_CHARACTERS = 1 << 30
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


class Numbers(NamedTuple):
    """Maps the numbers of leaves in a live state to their numbers in a document.

    Attributes:
        arrays, values: numbers of arrays and small values.
        tensors: numbers of the sharded tensors.
    """

    arrays: Sequence[int] = range(1 << 62)
    values: Sequence[int] = range(1 << 62)
    tensors: Sequence[int] = ()

    @classmethod
    def after(cls, arrays: int, values: int) -> Numbers:
        """Consecutive numbers after so many arrays and values."""
        return cls(range(arrays, 1 << 62), range(values, 1 << 62))


_AS_THEY_ARE = Numbers()


def encode_tree(root: Node, numbers: Numbers = _AS_THEY_ARE) -> Any:
    """The JSON form of a tree."""
    if isinstance(root, ArrayLeaf):
        return ["a", numbers.arrays[root.index]]
    if isinstance(root, ValueLeaf):
        return ["v", numbers.values[root.index]]
    if isinstance(root, ShardedLeaf):
        return ["a", numbers.tensors[root.index]]
    if isinstance(root, RankLocal):
        return ["r"] if root.mine or root.node is None else encode_tree(root.node, numbers)
    if isinstance(root, UnmadeLeaf):
        raise TypeError("a tensor without memory is in no state that is saved")
    if root.kind in COMPOSITES:
        children = [encode_tree(child, numbers) for child in root.children]
        return [COMPOSITE_CODE, root.kind, root.name, list(root.keys), children]
    code = CODES[root.kind]
    if root.kind in ("list", "tuple"):
        return [code, _encode_items(root.children, numbers)]
    children = [encode_tree(child, numbers) for child in root.children]
    if root.kind in DICTS:
        position = {id_key(key): i for i, key in enumerate(root.keys) if children[i] != ["r"]}
        order = [position[id_key(key)] for key in root.ordered_keys if id_key(key) in position]
        encoded = [encode_key(root.keys[i], "a dict key") for i in order]
        return [
            code,
            encoded,
            [children[i] for i in order],
            _encode_metadata(root.metadata or getattr(root.container, "_metadata", None)),
        ]
    if root.kind == "namedtuple":
        return [code, root.name, list(root.keys), children]
    if root.form is not None:
        return [FORM_CODE, root.form.kind, [_encode_about(each) for each in root.form.about], children[0]]
    if root.kind == "object":
        return [code, root.name, children[0]]
    raise AssertionError(root.kind)


def _encode_about(item: Any) -> Any:
    return list(item) if type(item) is tuple else item


def _encode_items(children: Sequence[Node], numbers: Numbers) -> list[Any]:
    """The items of a list or tuple; a run of consecutively numbered values as one entry."""
    encoded: list[Any] = []
    position = 0
    while position < len(children):
        child, start = children[position], position
        while position < len(children) and isinstance(children[position], ValueLeaf):
            position += 1
        if isinstance(child, ValueLeaf) and position - start >= LEAST_ITEMS:
            encoded.append(["v", numbers.values[child.index], position - start])
        elif isinstance(child, ValueLeaf):
            encoded += [encode_tree(value, numbers) for value in children[start:position]]
        else:
            encoded.append(encode_tree(child, numbers))
            position += 1
    return encoded


def _encode_metadata(metadata: Any) -> Any:
    """``state_dict()._metadata`` ({module path: {"version": n}}), which torch uses to load older layouts."""
    if not isinstance(metadata, dict):
        return None
    encoded = {}
    for name, entry in metadata.items():
        if not isinstance(name, str) or not isinstance(entry, dict):
            return None
        plain = {key: value for key, value in entry.items() if isinstance(key, str) and isinstance(value, (int, str))}
        encoded[name] = {key: encode_value(value, name) for key, value in plain.items()}
    return encoded


class SavedTensor(NamedTuple):
    """A global tensor to be described.

    Attributes:
        kind: dtype and global shape.
        division: its division into boxes.
        owner: index among the global tensors of the one whose memory all of its shards share; None if there is none.
    """

    kind: LeafType
    division: Division
    owner: int | None = None


def encode_structure(
    tree: Any,
    types: list[LeafType],
    per_rank: npt.NDArray[np.bool_],
    aliases: dict[int, Alias],
    values: list[Encoded],
    per_rank_values: npt.NDArray[np.bool_],
    rank0: list[Any],
    has_rank_local: bool,
    tensors: Sequence[SavedTensor] = (),
) -> dict[str, Any]:
    """The structure document; ``tree`` comes from :func:`encode_tree`, ``rank0`` from :func:`encode_path`.

    ``tensors``, the global tensors, are the last leaves.
    """
    leaves = []
    for index, (kind, own) in enumerate(zip(types, per_rank.tolist(), strict=True)):
        entry: list[Any] = [kind.kind, kind.dtype, list(kind.shape), int(own)]
        if index in aliases:
            alias = aliases[index]
            entry.append([alias.owner, alias.offset, list(alias.strides)])
        leaves.append(entry)
    for tensor in tensors:
        entry = [tensor.kind.kind, tensor.kind.dtype, list(tensor.kind.shape), 0]
        if tensor.owner is not None:
            entry.append([len(types) + tensor.owner, 0, list(contiguous_strides(tensor.kind.shape))])
        leaves.append(entry)
    shared = [None if own else value for value, own in zip(values, per_rank_values.tolist(), strict=True)]
    return {
        "tree": tree,
        "leaves": leaves,
        "values": shared,
        "per_rank_values": np.flatnonzero(per_rank_values).tolist(),
        "rank0": rank0,
        "rank_local": has_rank_local,
        "boxes": [encode_division(tensor.division) for tensor in tensors],
    }


def encode_division(division: Division) -> list[Any]:
    """The division of a global tensor: for each dimension a list of the beginnings of its intervals, or their common
    length; or the text "boxes" and then the boxes one after the other.
    """
    if division.cuts is None:
        return ["boxes", *itertools.chain.from_iterable((*box.offset, *box.sizes) for box in division.listed)]
    return [cuts.step if isinstance(cuts, range) else list(cuts) for cuts in division.cuts]


def encode_path(path: Path) -> list[Encoded]:
    """The keys of a path."""
    return [encode_key(key, "a dict key") for key in path]


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_structure(document: Any, where: str) -> Structure:
    """Read a structure document from a file."""
    try:
        with collection_paused():
            return _decode_structure(document, where)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            "a structure document cannot be read", found=f"{type(error).__name__}: {error}", where=where
        ) from error


def _decode_structure(document: Any, where: str) -> Structure:
    types: list[LeafType] = []
    aliases: dict[int, Alias] = {}
    per_rank = np.zeros(len(document["leaves"]), dtype=np.bool_)
    known: dict[tuple[Any, ...], LeafType] = {}  # many leaves share few types
    for index, (kind, dtype, shape, own, *alias) in enumerate(_list(document["leaves"])):
        written = (kind, dtype, tuple(_list(shape)))
        if written not in known:
            known[written] = LeafType(*written)
            known[written].check(where)
        types.append(known[written])
        if _count(own) > 1 or len(alias) > 1:
            raise ValueError(f"leaf {index} has too many fields")
        per_rank[index] = bool(own)
        if alias:
            aliases[index] = decode_alias(alias[0])
    values = tuple(_list(document["values"]))
    own_values = np.zeros(len(values), dtype=np.bool_)
    own_values[[_count(index) for index in _list(document["per_rank_values"])]] = True
    seen = Named(len(values))
    tree = _decode_node(document["tree"], seen, where)
    divisions = _decode_divisions(_list(document["boxes"]), types, per_rank)
    named, placeless = set(seen.arrays), frozenset(divisions.keys() - set(seen.arrays))
    if len(named) != len(seen.arrays) or named | placeless != set(range(len(types))):
        raise ValueError("the tree does not name every leaf exactly once")
    if sorted(seen.values) != list(range(len(values))):
        raise ValueError("the tree does not name every value exactly once")
    check_nesting(tree)
    rank0 = frozenset(exact(decode_path(path, where)) for path in _list(document["rank0"]))
    has_rank_local = document["rank_local"]
    if type(has_rank_local) is not bool or (placeless and not has_rank_local):
        raise ValueError(f"rank_local: {short(has_rank_local)}")
    check_aliases(types, aliases)
    _check_ties(types, aliases, divisions)
    what = (tree, tuple(types), per_rank, aliases, values, own_values, rank0, has_rank_local)
    return Structure(*what, divisions=divisions, placeless=placeless, is_unmarked=not seen.marks)


def _decode_divisions(
    documents: list[Any], types: Sequence[LeafType], per_rank: npt.NDArray[np.bool_]
) -> dict[int, Division]:
    """The divisions of the global tensors, which are the last leaves."""
    first = len(types) - len(documents)
    found: dict[int, Division] = {}
    known: dict[str, Division] = {}  # many tensors share few divisions
    for number, encoded in enumerate(documents, start=first):
        kind = types[number]
        if number < 0 or kind.kind != "torch" or per_rank[number]:
            raise ValueError(f"leaf {number} cannot be divided")
        text = f"{kind.shape} {encoded}"
        if text not in known:
            known[text] = decode_division(encoded, kind.shape)
        found[number] = known[text]
    return found


def decode_division(encoded: Any, shape: tuple[int, ...]) -> Division:
    """Inverse of :func:`encode_division`."""
    if _list(encoded)[:1] == ["boxes"]:
        numbers, width = list(map(_count, encoded[1:])), 2 * len(shape)
        if not width or len(numbers) % width:
            raise ValueError(f"{len(numbers)} numbers do not make boxes of a tensor with {len(shape)} dimensions")
        boxes = [
            Box(tuple(numbers[at : at + len(shape)]), tuple(numbers[at + len(shape) : at + width]))
            for at in range(0, len(numbers), width)
        ]
        if not all(box.fits(shape) and box.elements for box in boxes):
            raise ValueError("a box is empty or outside its tensor")
        division = Division.of(boxes, shape)
        if division.cuts is not None or list(division.listed) != boxes:
            raise ValueError("boxes that form a grid are not written as one, or boxes are not ascending")
    else:
        if len(encoded) != len(shape):
            raise ValueError(f"cuts of {len(encoded)} dimensions for a tensor with {len(shape)}")
        division = Division(shape, tuple(map(_decode_cuts, encoded, shape)))
    if len(division) > MOST_BOXES:
        raise ValueError(f"a tensor in {len(division)} boxes, more than {MOST_BOXES}")
    if fault := division.fault():
        raise ValueError(f"a tensor is divided so that {fault}")
    return division


def _decode_cuts(encoded: Any, length: int) -> range | tuple[int, ...]:
    """The beginnings of the intervals of a dimension."""
    if type(encoded) is int:
        if not 0 < encoded <= max(1, length):
            raise ValueError(f"intervals of {short(encoded)} in a dimension of {length}")
        return range(0, length, encoded)
    cuts = tuple(map(_count, _list(encoded)))
    regular = range(0, length, cuts[1]) if len(cuts) > 1 and cuts[1] else range(0, length, max(1, length))
    if cuts[:1] != (0,) or cuts[-1] >= length or cuts == tuple(regular[: len(cuts) + 1]):
        raise ValueError("cuts that do not begin with 0, or that are not in their shortest form")
    if any(one >= other for one, other in itertools.pairwise(cuts)):
        raise ValueError("cuts that do not ascend")
    return cuts


def _check_ties(types: Sequence[LeafType], aliases: Mapping[int, Alias], divisions: Mapping[int, Division]) -> None:
    """Check that a global tensor shares memory only with all of another one that is divided alike."""
    for index, alias in aliases.items():
        if index not in divisions and alias.owner not in divisions:
            continue
        one, other = divisions.get(index), divisions.get(alias.owner)
        is_whole = not alias.offset and alias.strides == contiguous_strides(types[index].shape)
        if one is None or one != other or types[index] != types[alias.owner] or not is_whole:
            raise ValueError(f"leaf {index} does not share all of the global tensor {alias.owner}")


@dataclass(slots=True)
class Named:
    """Collects the numbers of leaves and values (below ``count``) that a tree names, and counts its placeholders."""

    count: int
    arrays: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    marks: int = 0


def decode_tree(document: Any, values: int, where: str) -> tuple[Node, Named]:
    """Read a rank-local tree; returns it and the numbers that it names."""
    seen = Named(values)
    return _decode_node(document, seen, where), seen


def _decode_node(document: Any, seen: Named, where: str) -> Node:
    code, *rest = _list(document)
    if len(rest) != _NODE_ITEMS[code]:
        raise ValueError(f"a node {code!r} with {len(rest)} items after it")
    if code == "a":
        seen.arrays.append(_count(rest[0]))
        return ArrayLeaf(rest[0])
    if code == "v":
        seen.values.append(_count(rest[0]))
        return ValueLeaf(rest[0])
    if code == "r":
        seen.marks += 1
        return RankLocal()
    if code == COMPOSITE_CODE:
        return _decode_composite(rest, seen, where)
    if code == FORM_CODE:
        return _decode_object(rest, seen, where)
    kind = _KINDS[code]
    if kind == "object":
        if type(rest[0]) is not str:
            raise ValueError("the name of an object's class is not a text")
        return Branch(kind, (None,), (_decode_node(rest[1], seen, where),), name=rest[0])
    if kind in ("list", "tuple"):
        items = _decode_items(_list(rest[0]), seen, where)
        return Branch(kind, tuple(range(len(items))), items)
    children = tuple([_decode_node(child, seen, where) for child in _list(rest[-2 if kind in DICTS else -1])])
    if kind in DICTS:
        keys = decode_path(rest[0], where)
        if len(set(keys)) != len(keys) or len(keys) != len(children):  # 1, 1.0 and True are the same key of a dict
            raise ValueError("dict keys are repeated or do not match the children")
        return Branch(kind, keys, children, metadata=_decode_metadata(rest[2], where))
    if kind == "namedtuple":
        name, fields = rest[0], tuple(_list(rest[1]))
        if not all(isinstance(text, str) and _IDENTIFIER.fullmatch(text) for text in (name, *fields)):
            raise ValueError("a namedtuple's name or field is not an identifier")
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{name!r} is not a valid class name")
        if len(fields) != len(children):
            raise ValueError("namedtuple fields do not match the children")
        if len({unicodedata.normalize("NFKC", text) for text in fields}) != len(fields):  # as Python reads identifiers
            raise ValueError("two fields of a namedtuple have one name")
        return Branch(kind, fields, children, name=name)
    raise ValueError(f"node {code!r}")


def _decode_object(rest: list[Any], seen: Named, where: str) -> Node:
    """An object without a state_dict(); its data are checked when the object is made."""
    kind, about = rest[0], [tuple(each) if type(each) is list else each for each in _list(rest[1])]
    if type(kind) is not str or len(about) != ABOUT[kind]:
        raise ValueError(f"not a form of an object: {short(rest[:2])}")
    names = list(about)
    if kind == DATACLASS:
        names = [*about[:2], *_list(rest[1][2])]
    if kind == DEQUE:
        names = []
        if about[0] is not None:
            _count(about[0])
    if not all(type(name) is str and is_unicode(name) and "\0" not in name for name in names):
        raise ValueError(f"an object, or a field of it, without a name: {short(about)}")
    form = ObjectForm(kind, tuple(about))
    return Branch("object", (None,), (_decode_node(rest[2], seen, where),), name=str(form), form=form)


def _decode_composite(rest: list[Any], seen: Named, where: str) -> Node:
    """A composite tensor; its components are checked against each other when it is made."""
    kind, name, keys = rest[0], rest[1], _list(rest[2])
    if type(kind) is not str or type(name) is not str or not all(type(key) is str for key in keys):
        raise ValueError("a kind of tensor, or its components, have no names")
    children = tuple([_decode_node(child, seen, where) for child in _list(rest[3])])
    if kind == SUBCLASS:
        *inner, context = children
        nested = [each for each in inner if not isinstance(each, ArrayLeaf)]
        sound = keys[-1] == CONTEXT and isinstance(context, ValueLeaf) and len(set(keys)) == len(keys) > 1
        sound = sound and all(isinstance(each, Branch) and each.kind in {*KEYS, SUBCLASS} for each in nested)
    else:
        fit = [
            isinstance(child, ValueLeaf if key in VALUES else ArrayLeaf)
            for key, child in zip(keys, children, strict=False)
        ]
        if kind == JAGGED and len(children) == 4:
            fit[2] = isinstance(children[2], (ArrayLeaf, ValueLeaf))
        sound = tuple(keys) == KEYS[kind] and not name and all(fit)
    if not sound or len(keys) != len(children):
        raise ValueError(f"components that a {short(kind)} tensor does not have")
    return Branch(kind, tuple(keys), children, name)


def _decode_items(documents: list[Any], seen: Named, where: str) -> tuple[Node, ...]:
    items: list[Node] = []
    for document in documents:
        if len(_list(document)) == 3 and document[0] == "v":
            first, count = _count(document[1]), _count(document[2])
            if first + count > seen.count:
                raise ValueError(f"values {first} to {first + count - 1} of {seen.count}")
            numbers = range(first, first + count)
            seen.values.extend(numbers)
            items += map(ValueLeaf, numbers)
        else:
            items.append(_decode_node(document, seen, where))
    return tuple(items)


def checked_type(kind: Any, dtype: Any, shape: Any, where: str) -> LeafType:
    """The type of a leaf from its encoded fields."""
    try:
        return _known_type(kind, dtype, *shape)
    except CorruptFileError:
        LeafType(kind, dtype, tuple(shape)).check(where)
        raise


@functools.lru_cache(4096, typed=True)  # the many shards of a checkpoint share few types
def _known_type(kind: Any, dtype: Any, *shape: Any) -> LeafType:
    found = LeafType(kind, dtype, shape)
    found.check("")
    return found


def decode_alias(encoded: Any) -> Alias:
    """Read ``[owner, offset, strides]``."""
    owner, offset, strides = encoded
    return Alias(_count(owner), _count(offset), tuple(_count(stride) for stride in _list(strides)))


def _decode_metadata(document: Any, where: str) -> dict[str, dict[str, Any]] | None:
    """``_metadata`` as torch has it: encoded names and small values."""
    if document is None:
        return None
    return {name: {key: decode_value(value, where) for key, value in entry.items()} for name, entry in document.items()}


def decode_path(encoded: list[Encoded], where: str) -> Path:
    """Inverse of :func:`encode_path`."""
    path: Path = decode_key(["tuple", encoded], where)  # many texts in few steps
    return path


def check_nesting(tree: Node) -> None:
    """Refuse a tree that is nested more deeply than a state may be, or whose paths take too much memory.

    Code that walks the tree later may then recurse, and write its paths: otherwise one long key above many leaves could
    expand a small file into a huge amount of text.
    """
    total = 0
    rest: list[tuple[Node, int, int]] = [(tree, 0, 0)]
    while rest:
        node, depth, before = rest.pop()
        if not isinstance(node, Branch):
            total += before
            continue
        if depth >= DEEPEST_NESTING:
            raise ValueError(f"more than {DEEPEST_NESTING} nested containers")
        for key, child in zip(node.keys, node.children, strict=True):
            length = 0 if node.kind == "object" else 1 + len(key if isinstance(key, str) else component(key))
            rest.append((child, depth + 1, before + length))
    if total > MOST_PATH_CHARACTERS:
        raise ValueError(f"the paths of all leaves have {total} characters, more than {MOST_PATH_CHARACTERS}")


def check_aliases(types: Sequence[LeafType] | Mapping[int, LeafType], aliases: Mapping[int, Alias]) -> None:
    """Check that each alias is within its owner."""
    for index, alias in aliases.items():
        kind, owner = types[index], types[alias.owner]
        steps = zip(kind.shape, alias.strides, strict=True)
        last = sum((length - 1) * stride for length, stride in steps) if kind.nbytes else 0
        end = alias.offset + (last + 1) * kind.itemsize if kind.nbytes else alias.offset
        if alias.owner in aliases or kind.kind != owner.kind or end > owner.nbytes:
            raise ValueError(f"leaf {index} is not inside leaf {alias.owner}")
        # The stride of a dimension with one element is arbitrary, but must still be a valid number of bytes.
        if alias.offset % kind.itemsize or max(alias.strides, default=0) * kind.itemsize > MAX_LEAF_BYTES:
            raise ValueError(f"leaf {index} is not aligned within leaf {alias.owner}")


def _list(value: Any) -> list[Any]:
    """Check that a value is a list, not another iterable such as a text or dict."""
    if type(value) is not list:
        raise TypeError(f"a list was expected, not {short(value)}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"not a count: {short(value)}")
    return value
