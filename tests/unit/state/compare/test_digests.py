"""What is compared how: in full, or a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state import fingerprint
from deeppart.state.compare import digests
from deeppart.state.compare.digests import LeafDigests
from deeppart.state.compare.optimizers import TrainingWatch
from deeppart.state.compare.slices import SLICES
from deeppart.state.fingerprint import hash63
from deeppart.state.paths import readable
from deeppart.state.tensors.leaves import leaf_type
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.flattening import flatten

LARGE = 70_000


@pytest.fixture
def watch() -> Iterator[TrainingWatch]:
    watching = TrainingWatch(1000)
    yield watching
    watching.close()


def compare(flat: FlatState, *verified: int) -> LeafDigests:
    return LeafDigests(range(len(flat.data)), flat, [leaf_type(data) for data in flat.data], verified)


def seen(watch: TrainingWatch, *parameters: torch.nn.Parameter) -> Any:
    """What the watch has seen of a step that trains these."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return watch.trained()


def test_leaves_on_a_device_are_all_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that GPU leaves go, with tensors of the CPU."""
    for module in (digests, fingerprint):
        monkeypatch.setattr(module, "is_on_device", lambda data: isinstance(data, torch.Tensor))
    data = torch.zeros(LARGE)
    flat = flatten({"data": data, "x": torch.zeros(LARGE)})
    compared = compare(flat)
    before = compared.digest(flat, 0)
    assert compared.digest(flat, 1) == before
    data[12_345] = 1
    assert compared.digest(flat, 2) != before


def test_what_is_trained_rotates_unless_it_has_gaps_is_small_or_verified(watch: TrainingWatch) -> None:
    made: list[Any] = [torch.zeros(LARGE), torch.zeros(LARGE), torch.zeros(300), torch.zeros(2 * LARGE)[::2]]
    parameters = [torch.nn.Parameter(each) for each in (*made, torch.zeros(300, 300).t(), torch.zeros(LARGE))]
    flat = flatten(parameters)
    compared = compare(flat, 1)
    compared.look(flat, seen(watch, *parameters[:-1]))
    assert compared.rotating.tolist() == [0, 4] and compared.in_full.tolist() == [1, 2, 3, 5]
    assert compared.orders[0] != compared.orders[4], "they lie in memory in other orders"


def test_what_is_to_rotate_does_and_every_byte_is_read_within_all_slices() -> None:
    """Tensors and numpy arrays alike, though something writes to them between any two turns."""
    data: list[Any] = [torch.zeros(LARGE), np.zeros(LARGE, dtype=np.float32), torch.zeros(LARGE), torch.zeros(300)]
    flat = flatten(data)
    types = [leaf_type(each) for each in flat.data]
    compared = LeafDigests(range(4), flat, types, in_slices=(0, 1))
    for at in (0, 1):
        before = []
        for turn in range(SLICES):
            data[at] += 1
            compared.look(flat, {})
            before.append(compared.digest(flat, turn))
        assert compared.rotating.tolist() == [0, 1] and compared.hashed(flat) == [2]
        data[at][12_345] += 1
        after = [compared.digest(flat, turn) for turn in range(SLICES)]
        data[at][12_345] -= 1
        again = [compared.digest(flat, turn) for turn in range(SLICES)]
        assert sum(one != other for one, other in zip(after, again, strict=True)) >= 1, "in one turn of all"
        assert compared.digest(flat, SLICES - 1) == before[-1]


def test_what_other_ranks_do_not_see_trained_is_read_in_full_until_the_view_changes(watch: TrainingWatch) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(LARGE)) for _ in range(2)]
    flat = flatten(parameters)
    compared = compare(flat)
    for alike in ([True, True], [False, True]):
        compared.look(flat, seen(watch, *parameters))
        compared.agree_on(torch.tensor(alike).numpy())
    assert compared.rotating.tolist() == [1]
    compared.look(flat, seen(watch, *parameters))
    assert compared.rotating.tolist() == [1], "the same view as before"
    compared.look(flat, seen(watch, parameters[0]))
    assert compared.rotating.tolist() == [0], "another one, which other ranks learn of by the digest"


def test_a_leaf_that_is_larger_than_the_parameter_at_its_address_is_read_in_full(watch: TrainingWatch) -> None:
    memory = torch.zeros(3, LARGE)
    parameter = torch.nn.Parameter(memory[0])
    flat = flatten({"all": memory, "row": [parameter]})
    compared = compare(flat)
    compared.look(flat, seen(watch, parameter))
    assert compared.in_full.tolist() == [0] and compared.rotating.tolist() == [1]


def test_slices_read_after_the_call_are_those_of_the_call(watch: TrainingWatch) -> None:
    parameters = [torch.nn.Parameter(torch.randn(LARGE)) for _ in range(70)]
    flat = flatten(parameters)
    compared = compare(flat)
    compared.look(flat, seen(watch, *parameters))
    owned = {each.data_ptr(): each for each in parameters}
    assert compared.may_wait(flat, owned) and not compared.may_wait(flat, dict(list(owned.items())[1:]))
    for turn in range(3):
        slices = compared._slices.digests(flat.pointers, turn)
        assert compared.defer(flat, turn, owned).digest() == hash63(slices.tobytes())


def written(parameter: torch.nn.Parameter) -> None:
    with torch.no_grad():
        parameter.add_(1)


def replaced(parameter: torch.nn.Parameter) -> None:
    parameter.data = parameter.data.clone()


def freed(parameter: torch.nn.Parameter) -> None:
    parameter.untyped_storage().resize_(0)


@pytest.mark.parametrize("change", [written, replaced, freed])
@pytest.mark.parametrize("is_read", [True, False])
def test_slices_do_not_count_once_their_leaf_has_changed(watch: TrainingWatch, change: Any, is_read: bool) -> None:
    parameter = torch.nn.Parameter(torch.randn(40 * LARGE))
    flat = flatten([parameter])
    compared = compare(flat)
    compared.look(flat, seen(watch, parameter))
    slices = compared.defer(flat, 0, {parameter.data_ptr(): parameter})
    if is_read:
        slices.read()
    change(parameter)
    assert slices.digest() is None
    assert slices.digest() is None, "nor later, when the counters are no longer looked at"


def test_what_nothing_has_written_to_since_it_was_compared_rotates() -> None:
    state: dict[str, Any] = {"kept": torch.randn(LARGE), "written": torch.randn(LARGE), "array": np.zeros(LARGE)}
    state["viewed"] = torch.randn(2 * LARGE)[:LARGE]
    flat = flatten(state)
    compared = compare(flat)
    names = [readable(leaf.path) for leaf in flat.arrays]

    def rotating() -> set[str]:
        nonlocal flat
        flat = flatten(state)
        compared.look(flat, {})
        return {names[leaf] for leaf in compared.rotating.tolist()}

    assert rotating() == rotating() == set(), "the ranks have not compared them yet"
    compared.compared()
    state["written"].add_(1)
    assert rotating() == {"kept", "viewed"}
    compared.compared()
    assert rotating() == {"kept", "viewed", "written"}
    state["kept"] = state["kept"].clone()
    state["viewed"] = state["viewed"].detach()
    assert rotating() == {"viewed", "written"}, "an alias shares the version counter; a copy is another tensor"


def test_memory_that_numpy_has_seen_is_read_in_full() -> None:
    """As the rows of a buffer that each rank fills for itself."""
    state: dict[str, Any] = {"of numpy": torch.from_numpy(np.zeros(LARGE)), "seen": torch.zeros(LARGE)}
    state["seen"].numpy()[5] = 1
    state["shared"] = torch.zeros(LARGE).share_memory_()
    flat = flatten(state)
    compared = compare(flat)
    for _ in range(2):
        compared.look(flat, {})
        compared.compared()
    assert compared.in_full.tolist() == [0, 1, 2]


def test_a_byte_that_torch_does_not_see_changing_is_found_in_its_turn() -> None:
    data = torch.randn(LARGE)
    flat = flatten([data])
    compared = compare(flat)
    compared.look(flat, {})
    compared.compared()
    compared.look(flat, {})
    before = [compared.digest(flat, turn) for turn in range(SLICES)]
    data.data[12_345] += 1
    compared.look(flat, {})
    after = [compared.digest(flat, turn) for turn in range(SLICES)]
    assert compared.rotating.tolist() == [0] and before != after
    assert sum(one != other for one, other in zip(before, after, strict=True)) <= 2
