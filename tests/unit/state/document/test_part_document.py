"""A part's document: what it says comes back, and what it cannot mean is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from deeppart.errors import CorruptFileError
from deeppart.state.document.part_document import PartDocument, decode_meta
from deeppart.state.document.structure_json import encode_tree
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.leaves import leaf_type
from deeppart.state.tree.values import encode_value

STATE = {"w": np.zeros(3, dtype=np.float32), "own": np.zeros((2, 2)), "step": 5, "name": "x"}


def document(*, rank0: bool) -> PartDocument:
    flat = flatten(STATE)
    paths = [leaf.path for leaf in flat.arrays]
    return PartDocument(
        encode_tree(flat.root),
        [leaf_type(data) for data in flat.data],
        {},
        np.array([path == ("own",) for path in paths]),
        np.array([leaf.path == ("name",) for leaf in flat.values]),
        [encode_value(leaf.value, "") for leaf in flat.values],
        rank0,
    )


def changed(change: Any) -> bytes:
    found = json.loads(document(rank0=True).meta())
    change(found)
    return json.dumps(found).encode()


def test_a_document_fits_its_own_structure_and_no_other() -> None:
    found = decode_meta(document(rank0=True).meta(), "here")
    assert found.structure is not None
    found.check(found.structure, "here")
    assert [kind.shape for kind in found.all_types(found.structure)] == [kind.shape for kind in found.structure.types]
    other = decode_meta(changed(lambda meta: meta["values"].clear()), "here")
    with pytest.raises(CorruptFileError, match="does not fit the structure document"):
        other.check(found.structure, "here")


def with_a_view(meta: Any, *more: Any) -> None:
    """A leaf that is a view of the one own leaf."""
    (own,) = meta["leaves"]
    kind, dtype, _ = meta["leaves"][own]
    meta["leaves"]["7"] = [kind, dtype, [2], [int(own), 0, [1]], *more]


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.pop("leaves"),
        lambda meta: meta.pop("values"),
        lambda meta: meta["leaves"].update({"01": ["tensor", "float32", [1]]}),
        lambda meta: meta["leaves"].update({"-1": ["tensor", "float32", [1]]}),
        lambda meta: meta["leaves"].update({"1" * 20: ["tensor", "float32", [1]]}),
        lambda meta: meta["leaves"].update({"7": ["tensor", "float32"]}),
        lambda meta: with_a_view(meta, "more"),
        lambda meta: meta["leaves"].update({"7": ["tensor", "no dtype", [1]]}),
        lambda meta: meta["leaves"].update({"7": ["tensor", "float32", [-1]]}),
        lambda meta: meta.update(trees={}),
        lambda meta: meta.update(trees=[[["x"], 0, 0]]),
    ],
    ids=range(11),
)
def test_what_no_writer_makes_is_damage(change: Any) -> None:
    with pytest.raises(CorruptFileError, match="here"):
        decode_meta(changed(change), "here")


@pytest.mark.parametrize(
    "meta", [b"", b"[]", b"{", b"\xff", b'{"leaves": 1, "values": {}}', b"[" * 100_000], ids=range(6)
)
def test_noise_is_damage(meta: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_meta(meta, "here")
