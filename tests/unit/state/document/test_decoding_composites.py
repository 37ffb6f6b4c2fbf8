"""Tensors that are made of others, in a structure document: read as written; what no writer makes is damage."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from deeppart.errors import CorruptFileError, NewerFormatError
from deeppart.state.document.structure import SavedArray, SavedBranch, SavedValue
from deeppart.state.document.structure_json import decode_structure, encode_tree
from deeppart.state.tree.flatten import flatten
from tests.tensor_kinds import KINDS
from tests.unit.state.saved_states import document_of

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


@pytest.mark.parametrize("name", KINDS)
def test_it_is_read_as_it_was_written(name: str) -> None:
    flat = flatten({"x": KINDS[name](1)})
    document = json.loads(json.dumps({**document_of(flat), "version": 4}))
    tree = decode_structure(document, "here").tree
    assert isinstance(tree, SavedBranch)
    (node,) = tree.children
    assert isinstance(node, SavedBranch)
    written = encode_tree(flat.root)[2][0]
    assert [node.kind, node.name, list(node.keys)] == written[1:4] and len(node.children) == len(written[4])
    with pytest.raises(CorruptFileError, match="older version"):
        decode_structure({**document, "version": 3}, "here")
    with pytest.raises(NewerFormatError):
        decode_structure({**document, "version": 6}, "here")


COO = ["indices", "values", "shape", "coalesced"]
A, B, V, W = ["a", 0], ["a", 1], ["v", 0], ["v", 1]
NODES: list[Any] = [
    ["x", "sparse_coo", "", COO],
    ["x", "sparse_coo", "", COO, [A, B, V, W], None],
    ["x", "sparse_coo", "name", COO, [A, B, V, W]],
    ["x", "sparse_coo", None, COO, [A, B, V, W]],
    ["x", "sparse_coo", "", COO[:3], [A, B, V, W]],
    ["x", "sparse_coo", "", COO, [A, B, V]],
    ["x", "sparse_coo", "", COO, {"indices": A}],
    ["x", "sparse_coo", "", COO[::-1], [W, V, B, A]],
    ["x", "sparse_coo", "", COO, [A, V, B, W]],
    ["x", "sparse_coo", "", COO, [A, ["l", [B]], V, W]],
    ["x", "sparse_coo", "", ["indices", "values", "shape", 5], [A, B, V, W]],
    ["x", "sparse_coo", "", "abcd", [A, B, V, W]],
    ["x", "sparse_odd", "", COO, [A, B, V, W]],
    ["x", "dict", "", COO, [A, B, V, W]],
    ["x", None, "", COO, [A, B, V, W]],
    ["x", ["sparse_coo"], "", COO, [A, B, V, W]],
    ["x", "jagged", "", ["values", "offsets", "lengths", "ragged_dim"], [A, V, B, W]],
    ["x", "jagged", "", ["values", "offsets", "lengths", "ragged_dim"], [A, B, ["t", [V]], W]],
    ["x", "subclass", "c", ["a", "b", "context", "context"], [A, B, V, W]],
    ["x", "subclass", "c", ["a", "b", "c", "d"], [A, B, V, W]],
    ["x", "subclass", "c", ["a", "b", "context"], [A, ["l", [B, W]], V]],
    ["x", "subclass", "c", ["a", "b", "context"], [A, ["d", [], [], None], V]],
    ["x", "subclass", "c", ["context"], [V]],
    ["x", "subclass", "c", ["a", "context"], [V, A]],
    ["x", "subclass", "c", [], []],
]


@pytest.mark.parametrize("node", NODES, ids=lambda node: json.dumps(node)[:60])
def test_a_node_that_no_writer_means(node: Any) -> None:
    leaf = ["torch", "float32", [3], 0]
    document = {
        "version": 4, "leaves": [leaf, leaf], "values": [1, 2], "per_rank_values": [], "rank0": [], "apart": False,
    }  # fmt: skip
    with pytest.raises(CorruptFileError) as caught:
        decode_structure({**document, "tree": node}, "here")
    assert len(str(caught.value)) < 2000


def test_components_are_leaves_of_the_tree() -> None:
    leaf = ["torch", "float32", [3], 0]
    tree = decode_structure({
        "version": 4, "leaves": [leaf, leaf], "values": [1, 2], "per_rank_values": [], "rank0": [], "apart": False,
        "tree": ["x", "sparse_coo", "", COO, [A, B, V, W]],
    }, "here")  # fmt: skip
    assert tree.tree == SavedBranch(
        "sparse_coo", tuple(COO), (SavedArray(0), SavedArray(1), SavedValue(0), SavedValue(1)), name=""
    )
    assert tree.array_paths() == [("indices",), ("values",)]


def test_a_state_of_plain_tensors_has_no_such_nodes() -> None:
    assert flatten({"x": torch.ones(3), "y": [torch.ones(2)]}).composites == 0
    assert flatten({"x": torch.eye(3).to_sparse()}).composites == 1
