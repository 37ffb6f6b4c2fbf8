"""Tensors that are made of others, in a structure document: read as written; what no writer makes is damage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deeppart.errors import CorruptFileError
from deeppart.state.document.structure_json import decode_structure

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


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
