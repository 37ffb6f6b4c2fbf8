"""What globs over paths cover of a saved state, and what is left of its containers."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import StructureMismatchError
from deeppart.offline.reading import select
from deeppart.state.document.structure import Structure
from deeppart.state.document.structure_json import decode_structure, encode_structure, encode_tree
from deeppart.state.paths.keys import readable
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.tree import Branch, Node, ValueLeaf, walk_tree
from deeppart.state.tree.flattening import flatten
from deeppart.state.tree.value_containers import LEAST_ENTRIES, LEAST_ROWS
from deeppart.state.values import encode_value

Point = namedtuple("Point", "x y")


def saved(state: Any) -> tuple[Structure, list[Any]]:
    """A structure as it comes from a manifest, and its values."""
    flat = flatten(state)
    types, values = [leaf_type(data) for data in flat.data], [encode_value(leaf.value, "") for leaf in flat.values]
    none = [np.zeros(len(each), dtype=np.bool_) for each in (types, values)]
    document = encode_structure(encode_tree(flat.root), types, none[0], {}, values, none[1], [], False)
    return decode_structure(document, "here"), [leaf.value for leaf in flat.values]


def chosen(state: Any, patterns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Readable paths of what is left of a state's tree, and of the leaves that are to be read."""
    structure, values = saved(state)
    tree, leaves = select(structure, values, patterns)
    left = [readable(path) for path, _ in walk_tree(tree, ())]
    return left, sorted(readable(structure.array_paths()[leaf]) for leaf in leaves)


STATE = {
    "model": {"a.w": torch.ones(2), "b": torch.zeros(3), "deep": {"c": torch.ones(1), "n": 1}},
    "opt": [torch.ones(1), {"m": torch.ones(4), "lr": 0.1}],
    "a/b": torch.ones(5),
    "epoch": 3,
}
ARRAYS = ["a~1b", "model/a.w", "model/b", "model/deep/c", "opt/0", "opt/1/m"]


# --- leaves and containers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "arrays", "values"),
    [
        (None, ARRAYS, ["epoch", "model/deep/n", "opt/1/lr"]),
        (["model"], ["model/a.w", "model/b", "model/deep/c"], ["model/deep/n"]),
        (["model/*"], ["model/a.w", "model/b", "model/deep/c"], ["model/deep/n"]),
        (["model/deep/*"], ["model/deep/c"], ["model/deep/n"]),
        (["model/?"], ["model/b"], []),
        (["*/m"], ["opt/1/m"], []),
        (["opt/0", "epoch"], ["opt/0"], ["epoch"]),
        (["a~1b"], ["a~1b"], []),
        (["epoch", "nothing"], [], ["epoch"]),
        (["model/b/*", "epoch"], [], ["epoch"]),  # a leaf is no container
        (["model", "model/b"], ["model/a.w", "model/b", "model/deep/c"], ["model/deep/n"]),
    ],
)  # fmt: skip
def test_what_globs_cover(patterns: list[str] | None, arrays: list[str], values: list[str]) -> None:
    left, leaves = chosen(STATE, patterns)
    assert leaves == arrays and sorted(left) == sorted(arrays + values)


#: What somebody may have meant, where anything is near.
NEAREST = {"model/x": "model/b, model/deep", "a/b": "model/b"}


@pytest.mark.parametrize("patterns", [["nothing"], ["model/x"], [""], [], ["a/b"], ["MODEL"], ["(root)"]])
def test_what_covers_nothing_is_an_error_that_names_some(patterns: list[str]) -> None:
    structure, values = saved(STATE)
    with pytest.raises(StructureMismatchError) as caught:
        select(structure, values, patterns)
    beginning, _, names = str(caught.value.expected).partition(" such as ")
    assert beginning == "globs over 9 paths"
    assert names == NEAREST.get(patterns[0] if patterns else "", "a~1b, epoch, model/a.w, model/b")
    assert caught.value.found == ", ".join(map(repr, patterns))


def kinds(node: Node) -> dict[str, tuple[str, Sequence[Any]]]:
    """Kind and keys of each container, by path."""
    if not isinstance(node, Branch):
        return {}
    found = {"": (node.kind, node.keys)}
    for key, child in zip(node.keys, node.children, strict=True):
        found |= {f"{key}/{path}".rstrip("/"): each for path, each in kinds(child).items()}
    return found


def selected(state: Any, *patterns: str) -> Node:
    return select(*saved(state), patterns)[0]


def test_a_list_loses_places_and_a_namedtuple_its_name() -> None:
    state = {"list": [torch.ones(1), torch.ones(2), torch.ones(3)], "point": Point(torch.ones(1), torch.ones(2))}
    assert kinds(selected(state, "list/2", "point/y")) == {
        "": ("dict", ("list", "point")),
        "list": ("list", (2,)),
        "point": ("dict", ("y",)),
    }
    assert kinds(selected(state, "point/x", "point/y"))["point"] == ("namedtuple", ("x", "y"))
    assert kinds(selected(state, "point"))["point"] == ("namedtuple", ("x", "y"))


# --- runs: many small values in one -----------------------------------------------------------------------------------


ROWS = [{"id": number, "tags": ["a", "b"]} for number in range(LEAST_ROWS)]
RUNS = {
    "list": list(range(50)),
    "tuple": tuple(range(50)),
    "table": OrderedDict((f"w/{number}", number) for number in range(LEAST_ENTRIES)),
    "rows": ROWS,
}


def values_left(state: Any, *patterns: str) -> dict[str, Any]:
    structure, values = saved(state)
    tree, _ = select(structure, values, patterns)
    return {readable(path): values[node.index] for path, node in walk_tree(tree, ()) if isinstance(node, ValueLeaf)}


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["list"], {"list": RUNS["list"]}),
        (["list/7", "list/11"], {"list": [7, 11]}),
        (["list/4?"], {"list": list(range(40, 50))}),
        (["tuple/3"], {"tuple": (3,)}),
        (["table/w~17"], {"table": OrderedDict({"w/7": 7})}),
        (["rows/7/id"], {"rows": [{"id": 7}]}),
        (["rows/7/tags/1", "rows/9"], {"rows": [{"tags": ["b"]}, ROWS[9]]}),
        (["*/5"], {"list": [5], "tuple": (5,), "rows": [ROWS[5]]}),
    ],
)
def test_runs_are_cut_to_the_items_that_are_covered(patterns: list[str], left: dict[str, Any]) -> None:
    found = values_left(RUNS, *patterns)
    assert found == left and {name: type(each) for name, each in found.items()} == {
        name: type(each) for name, each in left.items()
    }
