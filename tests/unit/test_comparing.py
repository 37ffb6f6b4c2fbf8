"""What is compared how: what torch's counters tell and do not, what an optimizer is seen to train, and the record."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.state import comparing, fingerprint
from deeppart.state.compared import NEVER, Calls, ComparedRecord, compared_earlier
from deeppart.state.comparing import Comparison
from deeppart.state.fingerprint import device_digests, full_digest
from deeppart.state.flatten import FlatState, flatten
from deeppart.state.leaves import leaf_type
from deeppart.state.remembered import Remembered
from deeppart.state.template import Template
from deeppart.state.training import TrainingWatch
from deeppart.state.turns import TURNS, slice_of

LARGE = 70_000


def compare(flat: FlatState) -> Comparison:
    return Comparison(range(len(flat.data)), flat, [leaf_type(data) for data in flat.data])


# --- digests of whole leaves ------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Any] = {
    "contiguous": lambda: torch.arange(6000.0).view(20, 300),
    "transposed": lambda: torch.arange(6000.0).view(20, 300).t(),
    "every other": lambda: torch.arange(6000.0).view(20, 300)[::2, ::3],
    "expanded": lambda: torch.arange(300.0).expand(20, 300),
    "channels_last": lambda: torch.arange(6000.0).view(2, 3, 10, 100).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.arange(6000.0).view(2, 3, 10, 10, 10).to(memory_format=torch.channels_last_3d),
    "no dimension": lambda: torch.tensor(5.0),
    "conjugated": lambda: torch.arange(300).to(torch.complex64).mul(1j).conj(),
    "negated": lambda: torch.arange(300).to(torch.complex64).mul(1j).conj().imag,
    "numpy reversed": lambda: np.arange(6000.0).reshape(20, 300)[::-1, ::-2],
    "numpy fortran": lambda: np.asfortranarray(np.arange(6000.0).reshape(20, 300)),
    "numpy no dimension": lambda: np.array(7),
    "odd bytes": lambda: torch.arange(250, dtype=torch.uint8)[1:248],
    "half": lambda: torch.arange(77, dtype=torch.float16)[3:],
    "bool": lambda: torch.arange(77) % 3 == 0,
    "double": lambda: torch.arange(77, dtype=torch.float64),
}


def plain(data: Any) -> Any:
    """The same elements in C order."""
    return data.resolve_conj().resolve_neg().contiguous().clone() if isinstance(data, torch.Tensor) else data.copy("C")


@pytest.mark.parametrize("pieces", [1, 7, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_digest_is_of_every_element_in_c_order(
    layout: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_PIECE_ELEMENTS", pieces)
    data = LAYOUTS[layout]()
    expected = full_digest(data)
    assert full_digest(plain(data)) == expected
    flat = plain(data).reshape(-1)
    for at in sorted({0, len(flat) // 3, len(flat) - 1}):
        other = plain(data).reshape(-1)
        other[at] = other[at] == 0
        assert full_digest(other.reshape(data.shape)) != expected, at


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "numpy" not in name])
def test_a_digest_computed_on_a_device_is_of_every_element_in_c_order(layout: str) -> None:
    data = LAYOUTS[layout]()  # on the CPU, which computes the same
    expected = device_digests([data])
    assert device_digests([plain(data), data]) == expected * 2
    flat = plain(data).reshape(-1)
    seen = set(expected)
    for at in sorted({0, len(flat) // 3, len(flat) - 1}):
        other = plain(data).reshape(-1)
        other[at] = other[at] == 0
        seen.update(device_digests([other.reshape(data.shape)]))
    assert len(seen) == 1 + len({0, len(flat) // 3, len(flat) - 1})


def test_device_digests_tell_apart_what_sums_alone_do_not() -> None:
    base = torch.zeros(1000, dtype=torch.int32)
    variants = [base]
    for pairs in (
        [(0, 1), (1, -1)],
        [(0, 1), (1, 1)],
        [(5, 2**31 - 1)],
        [(1, 1), (0, -1)],
        [(3, -(2**31)), (7, -(2**31))],
    ):
        other = base.clone()
        for at, value in pairs:
            other[at] = value
        variants.append(other)
    variants += [base[:999], torch.zeros(1001, dtype=torch.int32), torch.arange(1000, dtype=torch.int32).flip(0)]
    variants += [torch.arange(1000, dtype=torch.int32), torch.zeros(4001, dtype=torch.uint8)]
    assert len(set(device_digests(variants))) == len(variants)


def test_leaves_on_a_device_are_all_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that GPU leaves go, with tensors of the CPU."""
    monkeypatch.setattr(comparing, "is_on_device", lambda data: isinstance(data, torch.Tensor))
    frozen = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    flat = flatten({"frozen": frozen, "x": torch.zeros(LARGE)})
    comparison = compare(flat)
    before = comparison.digests(flat, 0, None)
    assert comparison.digests(flat, 1, None)["full"] == before["full"] and not comparison.unread
    frozen.data[12_345] = 1  # not counted
    assert comparison.digests(flat, 2, None)["full"] != before["full"]


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_a_frozen_parameter_is_read_once_and_again_when_it_has_changed() -> None:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    remembered, flat = Remembered(), flatten({"p": parameter})
    first, unread = remembered.digests(flat, [0])
    assert not unread
    assert remembered.digests(flat, [0]) == (first, frozenset({0}))
    parameter[5] = 1
    second, unread = remembered.digests(flat, [0])
    assert not unread and second != first
    parameter[5] = 0
    assert remembered.digests(flat, [0]) == (first, frozenset())


def test_frozen_parameters_of_a_module_are_known_through_its_state_dict() -> None:
    module = torch.nn.Linear(300, 300).requires_grad_(False)
    remembered = Remembered()
    assert remembered.digests(flatten(module), [1])[1] == frozenset()
    assert remembered.digests(flatten(module), [1])[1] == {1}
    module.weight.mul_(2)
    assert remembered.digests(flatten(module), [1])[1] == frozenset()


def unknown(make: Any) -> bool:
    """Whether a leaf is read again although nothing about it seems to have changed."""
    remembered, (state, write) = Remembered(), make()
    first, _ = remembered.digests(flatten(state()), [0])
    write()
    second, unread = remembered.digests(flatten(state()), [0])
    return not unread and first != second


def buffer_of_batch_norm() -> Any:
    norm = torch.nn.BatchNorm1d(LARGE, affine=False)
    return (lambda: {"a": norm.running_mean}), (lambda: norm(torch.ones(2, LARGE)))


def by_data() -> Any:
    buffer = torch.zeros(LARGE)
    return (lambda: {"a": buffer}), (lambda: buffer.data.fill_(1))


def an_alias_each_time() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE))
    return (lambda: {"a": parameter.data}), (lambda: parameter.data.fill_(1))


def numpy_array() -> Any:
    array = np.zeros(LARGE)
    return (lambda: {"a": array}), (lambda: array.fill(1))


def parameter_that_numpy_sees() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    view = parameter.numpy()
    return (lambda: {"a": parameter}), (lambda: view.fill(1))


def parameter_made_of_numpy() -> Any:
    array = np.zeros(LARGE)
    parameter = torch.nn.Parameter(torch.from_numpy(array), requires_grad=False)
    return (lambda: {"a": parameter}), (lambda: array.fill(1))


def parameter_in_shared_memory() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE).share_memory_(), requires_grad=False)
    return (lambda: {"a": parameter}), (lambda: parameter.data.fill_(1))


def inference_tensor() -> Any:
    with torch.inference_mode():
        tensor = torch.zeros(LARGE)

    def write() -> None:
        with torch.inference_mode():
            tensor.fill_(1)

    return (lambda: {"a": tensor}), write


def other_memory() -> Any:
    """``p.data = ...`` leaves object and counter as they are, and may get the address that was just freed."""
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)

    def write() -> None:
        parameter.data = torch.empty(0)
        parameter.data = torch.ones(LARGE)

    return (lambda: {"a": parameter}), write


def another_in_its_place() -> Any:
    """A parameter that is replaced by a new one, at the same address, whose counter begins at 0 too."""
    holder = [torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)]

    def write() -> None:
        holder.clear()
        gc.collect()
        holder.append(torch.nn.Parameter(torch.ones(LARGE), requires_grad=False))

    return (lambda: {"a": holder[0]}), write


def swapped() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    other = torch.nn.Parameter(torch.ones(LARGE), requires_grad=False)

    def write() -> None:
        held = parameter.data
        parameter.data = other.data
        other.data = held

    return (lambda: {"a": parameter}), write


@pytest.mark.parametrize(
    "make",
    [
        buffer_of_batch_norm,
        by_data,
        an_alias_each_time,
        numpy_array,
        parameter_that_numpy_sees,
        parameter_made_of_numpy,
        parameter_in_shared_memory,
        inference_tensor,
        other_memory,
        another_in_its_place,
        swapped,
    ],
)
def test_what_no_counter_tells_is_read_again(make: Any) -> None:
    assert unknown(make)


def test_nothing_is_kept_alive_and_nothing_is_marked() -> None:
    parameter = torch.nn.Parameter(torch.zeros(LARGE), requires_grad=False)
    template = Template()
    flat = template.flatten({"p": parameter, "transposed": torch.zeros(300, 300).t()})
    comparison = compare(flat)
    comparison.digests(flat, 0, None)
    comparison.in_full(flat)
    assert all(data.untyped_storage().resizable() for data in flat.data), "numpy has seen none of them"
    watch = weakref.ref(parameter)
    template.clear()
    del parameter, flat
    gc.collect()
    assert watch() is None


# --- what is trained --------------------------------------------------------------------------------------------------


@pytest.fixture
def watch() -> Any:
    watching = TrainingWatch(1000)
    yield watching
    watching.close()


def step(optimizer: torch.optim.Optimizer, *parameters: torch.Tensor) -> None:
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def new_parameters(count: int = 2) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(1000)) for _ in range(count)]


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_what_a_step_writes_to_is_trained(watch: TrainingWatch, kind: str, options: dict[str, Any]) -> None:
    first, second = new_parameters()
    more = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)([first, second], lr=1e-3, **options, **more)
    assert watch.trained() == {}
    step(optimizer, first, second)
    step(optimizer, first, second)  # the state is made in the first step
    state = [v for v in optimizer.state[first].values() if isinstance(v, torch.Tensor) and v.numel() == 1000]
    assert {each.data_ptr() for each in (first, second, *state)} <= watch.trained().keys()
    assert first.data_ptr() in watch.trained(), "no step, and no write, since"
    with torch.no_grad():
        first[3] = 7
    assert first.data_ptr() not in watch.trained(), "somebody else has written to it"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_is_seen_every_time(watch: TrainingWatch) -> None:
    """Compiled or not, it calls the hooks at each step."""
    (parameter,) = new_parameters(1)
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    compiled = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        compiled()
        assert watch.trained().keys() == {parameter.data_ptr()}
        with torch.no_grad():
            parameter[3] = 7
        assert not watch.trained(), "no step since, but a write"


def test_what_is_not_trained(watch: TrainingWatch) -> None:
    parameters = new_parameters(5)
    frozen, without_grad, removed, trained, dead = parameters
    optimizer = torch.optim.SGD([frozen, without_grad, removed, trained], lr=0.1, momentum=0.9)
    other = torch.optim.SGD([dead], lr=0.1)
    mine = torch.zeros(1000)
    step(optimizer, frozen, removed, trained)
    optimizer.state[trained]["mine"] = mine
    watch.trained()
    step(optimizer, frozen, removed, trained)
    step(other, dead)
    assert {each.data_ptr() for each in (frozen, removed, trained, dead)} <= watch.trained().keys()
    frozen.requires_grad_(False)
    optimizer.param_groups[0]["params"] = [frozen, without_grad, trained]
    del other
    gc.collect()
    step(optimizer, trained)
    found = watch.trained()
    assert trained.data_ptr() in found and optimizer.state[trained]["momentum_buffer"].data_ptr() in found
    for each in (frozen, without_grad, removed, dead, mine, optimizer.state[frozen]["momentum_buffer"]):
        assert each.data_ptr() not in found
    trained.data = torch.zeros(1000)
    assert trained.data_ptr() not in watch.trained(), "it lies elsewhere now"


def test_sparse_gradients_train_rows_only(watch: TrainingWatch) -> None:
    table = torch.nn.Embedding(500, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert watch.trained() == {}


def test_a_leaf_that_is_larger_than_the_parameter_at_its_address_is_read_in_full(watch: TrainingWatch) -> None:
    memory = torch.zeros(3, LARGE)
    parameter = torch.nn.Parameter(memory[0])
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    step(optimizer, parameter)
    flat = flatten({"all": memory, "row": [parameter]})
    comparison = Comparison([0], flat, [leaf_type(data) for data in flat.data])
    comparison.digests(flat, 0, watch)
    assert comparison.full == [0] and comparison.training.tolist() == [0]
    step(optimizer, parameter)
    alone = flatten([parameter])
    comparison = compare(alone)
    comparison.digests(alone, 0, watch)
    assert comparison.full == [] and comparison.in_turn.tolist() == [0]


# --- the record -------------------------------------------------------------------------------------------------------


def test_the_record_never_says_more_than_was_compared() -> None:
    """Against a model that keeps for every byte when it was last compared."""
    random = np.random.default_rng(3)
    record, model = ComparedRecord(3), np.full((3, TURNS), NEVER)
    orders = np.array([1, 1, 1])
    record.all_of(range(3), 0)
    model[:] = 0
    for turn in range(1, 600):
        whole = [2] if random.random() < 0.2 else []
        if turn in (200, 420):
            orders[0] += 1  # in another order, the bytes compared so far are others
            model[0] = np.where(model[0] > record.last(0), record.last(0), model[0])
        in_turn = np.array([0, 1, 2] if turn % 150 else [0, 1])
        record.in_full(whole, turn)
        record.in_part(in_turn, orders[in_turn], turn)
        model[in_turn, slice_of(turn)] = turn
        model[whole] = turn
        for leaf in range(3):
            assert record.last(leaf) <= model[leaf].min()
        if turn > 300:
            assert record.last(1) == turn - TURNS + 1
            assert record.last(2) > turn - 3 * TURNS


@pytest.mark.parametrize("seed", range(20))
def test_the_calls_of_a_session_are_all_remembered(seed: int) -> None:
    """Against a model that keeps every one of them: as regular as training is, or not."""
    random = np.random.default_rng(seed)
    calls, model, turn, number, regular = Calls(), dict[int, tuple[int, bool]](), 0, 0, 0
    for _ in range(2_000):
        if not regular:
            regular, stride, every = (
                int(random.integers(1, 200)),
                int(random.integers(1, 5)),
                int(random.integers(1, 9)),
            )
            turn += int(random.integers(0, 3))  # a call at which ranks made no checkpoint
            number = max(0, number + int(random.integers(-50, 50)))  # a restored step
        regular, turn, number = regular - 1, turn + 1, number + stride
        model[turn] = number, number % every == 0
        calls.note(turn, number, saved=number % every == 0)
    for after, before in random.integers(0, turn + 2, (300, 2)).tolist():
        steps = tuple(step for at, (step, saved) in model.items() if after < at < before and saved)
        found = calls.interval(after, before, 0)
        assert (() if found is None else found.steps) == steps
        assert calls.step(after) == model.get(after, (None,))[0]
        assert found is None or found.after_step == model.get(after, (steps[0],))[0]


def test_a_million_regular_calls_take_no_memory() -> None:
    calls = Calls()
    for turn in range(1_000_000):
        calls.note(turn, turn + 1, saved=turn % 100 == 99)
    assert len(calls._all._runs) == 1 and len(calls._saved._runs) == 1
    found = calls.interval(150, 1_000_000, 1_000_001)
    assert found is not None and len(found.steps) == 9_999 and found.steps[0] == 200


def test_what_a_manifest_says_of_leaves_compared_earlier() -> None:
    calls = Calls()
    for turn, number in ((0, 100), (1, 110), (2, 120)):
        calls.note(turn, number, saved=True)
    turns = np.array([2, 1, 1, 0, NEVER, 1, 2, 0])
    found = compared_earlier(turns, np.arange(8) == 7, 2, calls)
    assert [(each.step, each.ranges) for each in found] == [
        (None, ((4, 1),)),
        (100, ((3, 1),)),
        (110, ((1, 2), (5, 1))),
    ]
    interval = calls.interval(0, 3, 130)
    assert interval is not None and interval.steps == (110, 120) and interval.after_step == 100
    assert calls.interval(2, 3, 130) is None
