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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.errors import CorruptFileError, short
from deeppart.model import Box, Division
from deeppart.part import MAX_LEAF_BYTES
from deeppart.state.document.structure import Structure
from deeppart.state.objects import ABOUT, DATACLASS, DEQUE, ObjectForm
from deeppart.state.paths import Key, Path, component, exact, id_keys
from deeppart.state.tensors import COMPOSITES, CONTEXT, KEYS, SUBCLASS, VALUES, LeafType
from deeppart.state.tree import (
    DEEPEST_NESTING,
    DICTS,
    Alias,
    ArrayLeaf,
    Branch,
    Leaf,
    Node,
    RankLocal,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    contiguous_strides,
)
from deeppart.state.values import Encoded, decode_key, decode_value, encode_key, encode_value, is_unicode

#: The first item of a placeholder in the JSON form of a tree, and of a small value among the leaves.
RANK_LOCAL, VALUE = "r", "value"
#: Boxes of one global tensor, at most: the largest number of ranks.
MOST_BOXES = 1 << 24
#: Total characters of the paths of all leaves, at most.
MOST_PATH_CHARACTERS = 1 << 30
#: Kinds of containers whose items have names.
NAMED = frozenset({"namedtuple", *COMPOSITES})
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


class Numbers(NamedTuple):
    """Maps the numbers that leaves and values have on one rank to their numbers in files.

    In files those of the structure document come first: what all ranks share, what rank 0 saves for all, and global
    tensors. What is rank-local follows.

    Attributes:
        leaves: numbers in files; for a shard, the number of its tensor.
        tensors: those of the sharded tensors.
        described: the first number in files that is not of what all ranks share, or rank 0 saves for all.
        boxes: number of the box of each shard; 0 for every other leaf. None if all have the same numbers in files.
    """

    leaves: Sequence[int] | Mapping[int, int] = range(1 << 62)
    tensors: Sequence[int] = ()
    described: int = 1 << 62
    boxes: Sequence[int] | None = None

    def of(self, leaf: Leaf) -> int:
        """The number of a leaf in files, which is its JSON form."""
        if isinstance(leaf, UnmadeLeaf):
            raise TypeError("a tensor without memory is in no state that is saved")
        return self.tensors[leaf.index] if isinstance(leaf, ShardedLeaf) else self.leaves[leaf.index]


AS_THEY_ARE = Numbers()


def encode_tree(root: Node, numbers: Numbers = AS_THEY_ARE) -> Any:
    """The JSON form of a tree in files."""
    if isinstance(root, RankLocal):
        return [RANK_LOCAL] if root.mine or root.node is None else encode_tree(root.node, numbers)
    if not isinstance(root, Branch):
        return numbers.of(root)
    metadata = root.metadata or getattr(root.container, "_metadata", None)
    about = _encode_metadata(metadata) if root.kind in DICTS else _about(root)
    order = None if root.container is None or root.kind not in DICTS else list(root.container)
    return _encode_branch(root, about, order, lambda child: encode_tree(child, numbers))


def outline(root: Node, leaf: Callable[[Leaf], list[Any]], *, ordered: bool = False) -> Any:
    """The JSON form of a tree as ranks compare it: without the numbers of leaves and the insertion order of dicts.

    ``{"m": model}`` and ``{"m": model.state_dict()}`` have the same.

    Args:
        root: the tree.
        leaf: the form of a leaf.
        ordered: OrderedDicts have their insertion order.
    """
    if isinstance(root, RankLocal):
        return [RANK_LOCAL]
    if not isinstance(root, Branch):
        return leaf(root)
    if root.is_object:
        return outline(root.children[0], leaf, ordered=ordered)
    order = list(root.container) if ordered and root.kind == "odict" else None
    return _encode_branch(root, _about(root), order, lambda child: outline(child, leaf, ordered=ordered))


def _about(branch: Branch) -> Any:
    """What distinguishes containers of one kind, besides their keys."""
    if branch.form is not None:
        return [list(each) if type(each) is tuple else each for each in branch.form.about]
    return branch.name if branch.kind == "object" else branch.name or None


def _encode_branch(branch: Branch, about: Any, order: Sequence[Key] | None, encode: Callable[[Node], Any]) -> list[Any]:
    """The JSON form of a container; that of a dict has its keys in this order, without rank-local items."""
    keys, children = branch.keys, list(map(encode, branch.children))
    if branch.kind not in DICTS:
        kind = branch.kind if branch.form is None else branch.form.kind
        return [kind, about, list(keys) if kind in NAMED else None, children]
    if order is not None:
        positions = {key: position for position, key in enumerate(id_keys(branch.keys))}
        places = [positions[key] for key in id_keys(order) if key in positions]
        keys, children = [keys[place] for place in places], [children[place] for place in places]
    if [RANK_LOCAL] in children:
        shared = [child != [RANK_LOCAL] for child in children]
        keys, children = list(compress(keys, shared)), list(compress(children, shared))
    return [branch.kind, about, encode_path(keys), children]


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
    leaves: list[Any],
    per_rank: Sequence[int] = (),
    rank0: Sequence[Any] = (),
    has_rank_local: bool = False,
    tensors: Sequence[SavedTensor] = (),
) -> dict[str, Any]:
    """The structure document.

    Args:
        tree: from :func:`encode_tree`.
        leaves: leaves and values in the order of their numbers, from :func:`encode_leaf` and :func:`encode_small`.
        per_rank: numbers of those that differ between ranks.
        rank0: paths, from :func:`encode_path`.
        has_rank_local: true if parts may have trees.
        tensors: the global tensors, which are numbered last.
    """
    described = []
    for tensor in tensors:
        whole = contiguous_strides(tensor.kind.shape)
        alias = None if tensor.owner is None else Alias(len(leaves) + tensor.owner, 0, whole)
        described.append(encode_leaf(tensor.kind, alias))
    return {
        "tree": tree,
        "leaves": leaves + described,
        "per_rank": list(per_rank),
        "rank0": list(rank0),
        "rank_local": has_rank_local,
        "boxes": [encode_division(tensor.division) for tensor in tensors],
    }


def encode_leaf(kind: LeafType, alias: Alias | None) -> list[Any]:
    """A leaf in a document."""
    view = [] if alias is None else [[alias.owner, alias.offset, list(alias.strides)]]
    return [kind.kind, kind.dtype, list(kind.shape), *view]


def encode_small(value: Encoded) -> list[Any]:
    """An encoded value in a document."""
    return [VALUE, value]


def encode_division(division: Division) -> list[Any]:
    """The division of a global tensor: for each dimension a list of the beginnings of its intervals, or their common
    length; or the text "boxes" and then the boxes one after the other.
    """
    if division.cuts is None:
        return ["boxes", *itertools.chain.from_iterable((*box.offset, *box.sizes) for box in division.listed)]
    return [cuts.step if isinstance(cuts, range) else list(cuts) for cuts in division.cuts]


def encode_path(path: Sequence[Key]) -> list[Encoded]:
    """The keys of a path, encoded."""
    encoded: list[Encoded] = encode_key(tuple(path), "a dict key")[1]  # many texts in few steps
    return encoded


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
    leaves = decode_leaves(enumerate(_list(document["leaves"])), where)
    types, aliases, count = leaves.types, leaves.aliases, len(document["leaves"])
    per_rank = np.zeros(count, dtype=np.bool_)
    per_rank[[_count(number) for number in _list(document["per_rank"])]] = True
    tree, seen = decode_tree(document["tree"], leaves.values, where)
    divisions = _decode_divisions(_list(document["boxes"]), types, per_rank)
    placeless = frozenset(divisions.keys() - set(seen.numbers))
    if sorted((*seen.numbers, *placeless)) != list(range(count)):
        raise ValueError("the tree does not name every leaf and value exactly once")
    check_nesting(tree)
    rank0 = frozenset(exact(decode_path(path, where)) for path in _list(document["rank0"]))
    has_rank_local = document["rank_local"]
    if type(has_rank_local) is not bool or (placeless and not has_rank_local):
        raise ValueError(f"rank_local: {short(has_rank_local)}")
    check_aliases(types, aliases)
    _check_ties(types, aliases, divisions)
    what = (tree, types, leaves.values, per_rank, aliases, rank0, has_rank_local)
    return Structure(*what, divisions=divisions, placeless=placeless, is_unmarked=not seen.marks)


def _decode_divisions(
    documents: list[Any], types: Mapping[int, LeafType], per_rank: npt.NDArray[np.bool_]
) -> dict[int, Division]:
    """The divisions of the global tensors, which are the last leaves."""
    found: dict[int, Division] = {}
    known: dict[str, Division] = {}  # many tensors share few divisions
    for number, encoded in enumerate(documents, start=len(per_rank) - len(documents)):
        kind = types[number]
        if kind.kind != "torch" or per_rank[number]:
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


def _check_ties(types: Mapping[int, LeafType], aliases: Mapping[int, Alias], divisions: Mapping[int, Division]) -> None:
    """Check that a global tensor shares memory only with all of another one that is divided alike."""
    for index, alias in aliases.items():
        if index not in divisions and alias.owner not in divisions:
            continue
        one, other = divisions.get(index), divisions.get(alias.owner)
        is_whole = not alias.offset and alias.strides == contiguous_strides(types[index].shape)
        if one is None or one != other or types[index] != types[alias.owner] or not is_whole:
            raise ValueError(f"leaf {index} does not share all of the global tensor {alias.owner}")


class Leaves(NamedTuple):
    """Leaves and values of a document by number: types, values, and leaves that share memory."""

    types: dict[int, LeafType]
    values: dict[int, Any]
    aliases: dict[int, Alias]


def decode_leaves(documents: Iterable[tuple[int, Any]], where: str) -> Leaves:
    """Read numbered leaves and values."""
    found = Leaves({}, {}, {})
    for number, document in documents:
        kind, *rest = _list(document)
        if kind == VALUE:
            (encoded,) = rest
            found.values[number] = decode_value(encoded, where)
            continue
        dtype, shape, *views = rest
        found.types[number] = _decode_type(kind, dtype, _list(shape), where)
        if views:
            ((owner, offset, strides),) = views
            found.aliases[number] = Alias(_count(owner), _count(offset), tuple(map(_count, _list(strides))))
    return found


@dataclass(slots=True)
class Named:
    """Collects the numbers that a tree names, and counts its placeholders.

    Attributes:
        values: which numbers are of small values; all others are of leaves.
    """

    values: Container[int]
    numbers: list[int] = field(default_factory=list)
    marks: int = 0


def decode_tree(document: Any, values: Container[int], where: str) -> tuple[Node, Named]:
    """Read a tree; returns it and what it names."""
    seen = Named(values)
    return _decode_node(document, seen, where), seen


def _decode_node(document: Any, seen: Named, where: str) -> Node:
    if type(document) is int:
        seen.numbers.append(_count(document))
        return ValueLeaf(document) if document in seen.values else ArrayLeaf(document)
    kind, *rest = _list(document)
    if kind == RANK_LOCAL and not rest:
        seen.marks += 1
        return RankLocal()
    about, keys, encoded = rest
    children = tuple([_decode_node(child, seen, where) for child in _list(encoded)])
    if kind in DICTS:
        return Branch(kind, _unique(decode_path(keys, where), children), children, metadata=_metadata(about, where))
    if kind in NAMED:
        if not all(type(each) is str for each in _list(keys)) or type(about) not in (str, type(None)):
            raise ValueError(f"{short(kind)} without names")
        check = _check_fields if kind == "namedtuple" else _check_components
        check(kind, about or "", _unique(tuple(keys), children), children)
        return Branch(kind, tuple(keys), children, about or "")
    if keys is not None:
        raise ValueError(f"keys of a {short(kind)}")
    if kind in ("list", "tuple") and about is None:
        return Branch(kind, tuple(range(len(children))), children)
    form = None if kind == "object" else _decode_form(kind, about)
    if len(children) != 1 or (form is None and type(about) is not str):
        raise ValueError(f"not an object: {short(document)}")
    return Branch("object", (None,), children, about if form is None else str(form), form)


def _unique(keys: tuple[Any, ...], children: Sequence[Node]) -> tuple[Any, ...]:
    if len(set(keys)) != len(keys) or len(keys) != len(children):  # 1, 1.0 and True are the same key of a dict
        raise ValueError("keys are repeated or do not match the children")
    return keys


def _check_fields(kind: str, name: str, fields: tuple[str, ...], children: Sequence[Node]) -> None:
    """Check that a namedtuple can be made."""
    if not all(_IDENTIFIER.fullmatch(text) for text in (name, *fields)):
        raise ValueError("a namedtuple's name or field is not an identifier")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is not a valid class name")
    if len({unicodedata.normalize("NFKC", text) for text in fields}) != len(fields):  # as Python reads identifiers
        raise ValueError("two fields of a namedtuple have one name")


def _check_components(kind: str, name: str, keys: tuple[str, ...], children: Sequence[Node]) -> None:
    """Check which components a composite tensor has; they are checked against each other when it is made."""
    if kind == SUBCLASS:
        *inner, context = children
        nested = [each for each in inner if not isinstance(each, ArrayLeaf)]
        sound = bool(inner) and keys[-1] == CONTEXT and isinstance(context, ValueLeaf)
        sound = sound and all(isinstance(each, Branch) and each.kind in COMPOSITES for each in nested)
    else:
        sound = keys == KEYS[kind] and not name
        for key, child in zip(keys, children, strict=True):
            may_be = ValueLeaf if key in VALUES else (ArrayLeaf, ValueLeaf) if key == "lengths" else ArrayLeaf
            sound = sound and isinstance(child, may_be)
    if not sound:
        raise ValueError(f"components that a {short(kind)} tensor does not have")


def _decode_form(kind: str, encoded: Any) -> ObjectForm:
    """The form of an object without a state_dict(); its data are checked when the object is made."""
    about = [tuple(each) if type(each) is list else each for each in _list(encoded)]
    if len(about) != ABOUT[kind]:
        raise ValueError(f"not a form of an object: {short(kind)}, {short(encoded)}")
    names = list(about)
    if kind == DATACLASS:
        names = [*about[:2], *_list(encoded[2])]
    if kind == DEQUE:
        names = []
        if about[0] is not None:
            _count(about[0])
    if not all(type(name) is str and is_unicode(name) and "\0" not in name for name in names):
        raise ValueError(f"an object, or a field of it, without a name: {short(about)}")
    return ObjectForm(kind, tuple(about))


def _decode_type(kind: Any, dtype: Any, shape: list[Any], where: str) -> LeafType:
    """The type of a leaf."""
    try:
        return _known_type(kind, dtype, *shape)
    except (CorruptFileError, TypeError):
        LeafType(kind, dtype, tuple(shape)).check(where)
        raise


@functools.lru_cache(4096, typed=True)  # many leaves share few types
def _known_type(kind: Any, dtype: Any, *shape: Any) -> LeafType:
    found = LeafType(kind, dtype, shape)
    found.check("")
    return found


def _metadata(document: Any, where: str) -> dict[str, dict[str, Any]] | None:
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


def check_aliases(types: Mapping[int, LeafType], aliases: Mapping[int, Alias]) -> None:
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
