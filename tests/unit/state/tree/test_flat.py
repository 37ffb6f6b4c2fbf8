"""The records of a state taken apart: leaves by number, what stands apart, and the objects among the branches."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state.document.ties import address
from deeppart.state.tree.flat import APART, DICT_KINDS, Apart, ApartRules, ArrayLeaf, Branch, FlatState, ValueLeaf
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Replication
from deeppart.state.tree.paths import exact
from deeppart.state.tree.runs import LEAST_ROWS
from deeppart.testing.states import Box

STATE: dict[str, Any] = {
    "best": {"w": torch.zeros(2), "loss": 0.5},
    "items": ["x", torch.zeros(3), 7],
    "own": {"rng": torch.zeros(4), "at": 5},
    "w": np.zeros(5),
}
RANK0 = Replication({"best/*": "rank0"}).is_rank0


def lengths(flat: FlatState) -> list[int]:
    return [len(data) for data in flat.data]


def test_leaves_and_values_have_numbers_and_sizes_count_them() -> None:
    flat = flatten(STATE)
    assert [leaf.index for leaf in flat.arrays] == [0, 1, 2, 3] and lengths(flat) == [2, 3, 4, 5]
    assert [leaf.value for leaf in flat.values] == [0.5, "x", 7, 5]
    assert flat.sizes() == (4, 4, len(flat.tokens)) and flat.shared == flat.sizes() and flat.common == (4, 4)
    assert FlatState(root=ValueLeaf((), None, 0)).sizes() == (0, 0, 0)


def test_a_state_holds_its_memory_and_knows_where_it_lies() -> None:
    flat = flatten(STATE)
    assert list(flat.pointers) == [address(data) for data in flat.data]
    assert all(flat.memory.stands(leaf) for leaf in range(4))


@pytest.mark.parametrize("leads", [True, False])
def test_what_all_share_comes_first_then_rank_0s_then_this_ranks_own(leads: bool) -> None:
    mine = frozenset({exact(("own",)), exact(("items", 1))})
    flat = flatten(STATE, cuts=ApartRules(mine, RANK0, leads))
    assert lengths(flat) == ([5, 2, 3, 4] if leads else [5, 3, 4])
    assert flat.shared[:2] == (1, 2)
    assert flat.common == ((2, 3) if leads else (1, 2))
    assert [(each.path, each.mine) for each in flat.apart] == [
        (("best",), False),
        (("items", 1), True),
        (("own",), True),
    ]
    assert flat.tokens.count(APART) == 4, "one in the list, and one before each tree"


@pytest.mark.parametrize("leads", [True, False])
def test_what_is_rank_0s_is_there_on_rank_0_alone(leads: bool) -> None:
    flat = flatten(STATE, cuts=ApartRules(rank0=RANK0, leads=leads))
    (apart,) = flat.apart
    assert (apart.node is not None) is leads
    if leads:
        assert isinstance(apart.node, Branch) and apart.node.container is STATE["best"]


def test_the_place_of_a_key_is_that_among_all_keys_of_the_dict() -> None:
    state = {"z": 1, "own": 2, "a": 3, "also": 4}
    flat = flatten(state, cuts=ApartRules(frozenset({exact(("own",)), exact(("also",))})))
    assert {each.path: each.place for each in flat.apart} == {("also",): 3, ("own",): 1}
    (in_a_list,) = flatten([1, 2], cuts=ApartRules(frozenset({exact((1,))}))).apart
    assert in_a_list.place is None


def test_a_structure_is_equal_to_itself_only_while_the_cuts_are_the_same() -> None:
    cut = flatten(STATE, cuts=ApartRules(frozenset({exact(("own",))}))).tokens
    assert cut == flatten(STATE, cuts=ApartRules(frozenset({exact(("own",))}))).tokens
    assert cut != flatten(STATE).tokens != flatten(STATE, cuts=ApartRules(rank0=RANK0)).tokens


# --- objects ----------------------------------------------------------------------------------------------------------


def test_objects_are_the_outermost_ones_in_the_order_of_the_tree() -> None:
    inner = Box(1)
    first, second, third = Box({"inner": inner}), Box(torch.zeros(1)), Box([])
    flat = flatten({"b": [second, (third,)], "a": first, "c": {"x": 1}})
    assert [branch.container for branch in flat.objects] == [first, second, third]
    assert flatten({"x": [1, torch.zeros(1)]}).objects == []
    root = flatten(first)
    assert [branch.container for branch in root.objects] == [first] and root.objects[0] is root.root


def test_objects_are_looked_for_once() -> None:
    flat = flatten([Box(1)])
    assert flat.objects is flat.objects


def test_objects_that_stand_apart_are_none_of_the_shared_structure() -> None:
    own, shared = Box(1), Box(2)
    flat = flatten({"own": own, "shared": shared}, cuts=ApartRules(frozenset({exact(("own",))})))
    assert [branch.container for branch in flat.objects] == [shared]
    (apart,) = flat.apart
    assert isinstance(apart, Apart) and isinstance(apart.node, Branch) and apart.node.container is own


# --- where a state is cut ---------------------------------------------------------------------------------------------


def test_a_flat_run_stays_in_one_piece_and_a_nested_one_unless_a_rule_splits_it() -> None:
    asked = []

    def splits(path: tuple[Any, ...]) -> bool:
        asked.append(path)
        return path == ("x",)

    cuts = ApartRules(splits=splits)
    assert [cuts.may_be_run(("x",), levels) for levels in (1, 2, 5)] == [True, False, False]
    assert cuts.may_be_run(("y",), 2)
    assert asked == [("x",), ("x",), ("y",)], "of a flat one nothing has to be asked"
    assert ApartRules().may_be_run(("x",), 5)


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_state_is_split_where_a_rule_says_so(name: str) -> None:
    rows = [[place] for place in range(LEAST_ROWS)]
    flat = flatten({name: rows}, cuts=ApartRules(splits=Replication({"x/3": "none"}).splits))
    assert len(flat.values) == (LEAST_ROWS if name == "x" else 1)


@pytest.mark.parametrize(("container", "kind"), [({}, "dict"), (OrderedDict(), "odict"), (Counter(), "counter")])
def test_kinds_of_dicts_are_those_of_their_branches(container: Any, kind: str) -> None:
    root = flatten(container).root
    assert isinstance(root, Branch) and root.kind == kind == DICT_KINDS[type(container)]


def test_markers_are_no_keys() -> None:
    """A dict may have such keys: its tokens still differ from those of another structure."""
    plain = flatten({"array": 1, "value": 2, "apart": 3})
    assert plain.tokens != flatten({"array": torch.zeros(1), "value": 2, "apart": 3}).tokens
    assert flatten([torch.zeros(1)]).tokens != flatten([1]).tokens
    assert isinstance(flatten([torch.zeros(1)]).arrays[0], ArrayLeaf)
