"""Parts' documents: what they cannot mean is refused with one kind of error."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.errors import CorruptFileError, FormatError
from deeppart.model import Box
from deeppart.state.document.global_state import gather_global_state, with_global_state
from deeppart.state.document.part_document import PartDocument, decode_meta
from deeppart.state.document.structure_json import encode_tree
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.tree.flattening import flatten
from deeppart.state.values import encode_value
from tests.sampling import examples
from tests.unit.part_documents import decoded, read_metas
from tests.unit.sharded_states import piece, rows, save

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


WHOLE = torch.arange(35.0).view(7, 5)


@pytest.fixture(scope="module")
def metas(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Of two ranks with tied tensors that are sharded, one that rank 1 alone has, and what is each rank's own."""
    states: list[dict[str, Any]] = []
    for rank in range(2):
        mine = rows(WHOLE, rank, 2)
        states.append({"w": mine, "head": mine, "p": torch.ones(4), "a": rows(WHOLE.int(), rank, 2)})
    states[1]["stage"] = {"q": piece(WHOLE, Box.whole((7, 5))), "n": [1, np.zeros(2, "<f4")]}
    root = tmp_path_factory.mktemp("sharded")
    save(root, states)
    return read_metas(root)


def read(metas: list[Any]) -> None:
    """All that is done with documents before any byte is read."""
    documents, of_ranks = decoded(metas)
    global_state = gather_global_state(of_ranks, [(each.trees, each.values) for each in documents], "here")
    global_state.check("here")
    for structure in of_ranks:
        joined = with_global_state(structure, global_state)
        joined.array_paths()


def set_shard(number: str, *shards: Any) -> Callable[[list[Any]], None]:
    """Changes what rank 1 has of a tensor."""
    return lambda metas: metas[1]["shards"].__setitem__(number, list(shards))


WRONG: dict[str, Callable[[list[Any]], Any]] = {
    "a gap": lambda metas: metas[1]["shards"].pop("0"),
    "an offset beyond the tensor": set_shard("0", [2, [5, 0]]),
    "an offset before it": set_shard("0", [2, [-1, 0]]),
    "a huge offset": set_shard("0", [2, [1 << 61, 0]]),
    "a larger one than numbers are": set_shard("0", [2, [1 << 80, 0]]),
    "no whole number": set_shard("0", [2, [4.0, 0]]),
    "true": set_shard("0", [2, [True, 0]]),
    "a text": set_shard("0", [2, ["4", 0]]),
    "a text of digits for an offset": set_shard("0", [2, "40"]),
    "too few dimensions": set_shard("0", [2, [4]]),
    "too many": set_shard("0", [2, [4, 0, 0]]),
    "no offset": set_shard("0", [2]),
    "a shard too many": set_shard("0", [2, [4, 0]], [2, [4, 0]]),
    "one of an overlapping box": set_shard("0", [2, [3, 0]]),
    "a leaf that is not there": set_shard("0", [99, [4, 0]]),
    "a leaf that all ranks share": set_shard("0", [0, [4, 0]]),
    "a leaf of a tree": set_shard("0", [1, [4, 0]]),
    "a leaf of another tensor": set_shard("0", [5, [0, 0]]),
    "a leaf of another dtype": set_shard("1", [2, [4, 0]]),
    "a negative leaf": set_shard("0", [-1, [4, 0]]),
    "null": lambda metas: metas[1]["shards"].update({"0": None}),
    "an object": lambda metas: metas[1]["shards"].update({"0": {"2": [4, 0]}}),
    "shards of no tensor": lambda metas: metas[1]["shards"].update({"9": [[2, [4, 0]]]}),
    "a number with a sign": lambda metas: metas[1]["shards"].update({"+0": metas[1]["shards"].pop("0")}),
    "a list of them": lambda metas: metas[1].update(shards=[]),
    "a type of no dtype": lambda metas: metas[1]["sharded"]["3"].__setitem__(1, "float33"),
    "a huge shape": lambda metas: metas[1]["sharded"]["3"].__setitem__(2, [1 << 60, 1 << 60]),
    "a negative shape": lambda metas: metas[1]["sharded"]["3"].__setitem__(2, [-7, -5]),
    "a type with more to it": lambda metas: metas[1]["sharded"]["3"].append(0),
    "numbers with a gap": lambda metas: metas[1]["sharded"].update({"5": metas[1]["sharded"].pop("3")}),
    "a tensor twice in a tree": lambda metas: metas[1]["trees"][0][2][2].__setitem__(1, ["h", 3]),
    "a tree that names a shared tensor": lambda metas: metas[1]["trees"][0][2][2].__setitem__(0, ["h", 0]),
    "a huge place among the keys": lambda metas: metas[1]["trees"][0].__setitem__(1, 1 << 70),
    "a path where something stands": lambda metas: metas[1]["trees"][0].__setitem__(0, ["p"]),
    "a path below a tensor": lambda metas: metas[1]["trees"][0].__setitem__(0, ["w", "x"]),
    "a tie to a plain leaf": lambda metas: metas[1]["leaves"]["4"][3].__setitem__(0, 1),
    "a tie to half of a leaf": lambda metas: metas[1]["leaves"]["4"][3].__setitem__(1, 8),
    "a tie in another order": lambda metas: metas[1]["leaves"]["4"][3].__setitem__(2, [1, 3]),
    "a tie in steps of none": lambda metas: metas[1]["leaves"]["4"][3].__setitem__(2, [0, 0]),
    "an array of texts": lambda metas: _of_texts(metas),
    "the structure's tensors without a mark": lambda metas: metas[0]["structure"].update(apart=False),
    "the structure without types": lambda metas: metas[0]["structure"].pop("sharded"),
    "the structure with one type more": lambda metas: metas[0]["structure"]["sharded"].append(["torch", "int8", [1]]),
}


def _of_texts(metas: list[Any]) -> None:
    """A sharded tensor is no array of numpy."""
    metas[1]["sharded"]["3"] = metas[1]["leaves"]["5"] = ["numpy", "<U3", [7, 5]]


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(metas: list[Any], name: str) -> None:
    edited = copy.deepcopy(metas)
    WRONG[name](edited)
    with pytest.raises(CorruptFileError):
        read(edited)


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        2,
        5,
        99,
        1 << 62,
        1 << 70,
        0.5,
        "",
        "0",
        "h",
        "float32",
        "numpy",
        [],
        [0],
        [[0, [0, 0]]],
        {},
    ]
)


def nodes(item: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document, and each of its keys."""
    pairs = list(item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ())
    for key, inner in pairs:
        yield item, key
        yield from nodes(inner)


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_any_edits_are_refused_with_one_kind_of_error_or_fit(metas: list[Any], data: st.DataObject) -> None:
    edited = copy.deepcopy(metas)
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(nodes(edited[data.draw(st.integers(0, 1))]))
        container, key = places[data.draw(st.integers(0, len(places) - 1))]
        if data.draw(st.booleans()):
            container[key] = copy.deepcopy(data.draw(VALUES))
        else:
            other, its_key = places[data.draw(st.integers(0, len(places) - 1))]
            container[key] = copy.deepcopy(other[its_key])
    with contextlib.suppress(FormatError):
        read(edited)
