"""What globs over paths cover of a saved state, and what is left of its containers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from deeppart.errors import StructureMismatchError
from deeppart.offline.reading import select
from deeppart.state.document.structure import Structure
from deeppart.state.document.structure_json import (
    decode_structure,
    encode_leaf,
    encode_small,
    encode_structure,
    encode_tree,
)
from deeppart.state.paths.keys import readable
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.tree import walk_tree
from deeppart.state.tree.flattening import flatten
from deeppart.state.values import encode_value


def saved(state: Any) -> tuple[Structure, dict[int, Any]]:
    """A structure as it comes from a manifest, and its values."""
    flat = flatten(state)
    leaves = [encode_leaf(leaf_type(data), None) for data in flat.data]
    leaves += [encode_small(encode_value(leaf.value, "")) for leaf in flat.values]
    document = encode_structure(encode_tree(flat.root), leaves)
    return decode_structure(document, "here"), {leaf.index: leaf.value for leaf in flat.values}


def chosen(state: Any, patterns: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Readable paths of what is left of a state's tree, and of the leaves that are to be read."""
    structure, values = saved(state)
    tree, leaves = select(structure, values, patterns)
    left = [readable(path) for path, _ in walk_tree(tree, ())]
    return left, sorted(readable(structure.paths()[leaf]) for leaf in leaves)


STATE = {
    "model": {"a.w": torch.ones(2), "b": torch.zeros(3), "deep": {"c": torch.ones(1), "n": 1}},
    "opt": [torch.ones(1), {"m": torch.ones(4), "lr": 0.1}],
    "a/b": torch.ones(5),
    "epoch": 3,
}
ARRAYS = ["a~1b", "model/a.w", "model/b", "model/deep/c", "opt/0", "opt/1/m"]


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
