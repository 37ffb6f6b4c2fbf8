"""States by shape: counts that are published, and shares against the partitioner on the whole state."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from deeppart_simulator.workload.layout import Layout, read_layout
from deeppart_simulator.workload.shapes import FAMILIES, PRESETS, Parameter, model_named
from deeppart_simulator.workload.states import ITEM_BYTES, State, Tensor, read_state, state_of

from benchmarks.workload import shapes_of
from deeppart.errors import ConfigError
from deeppart.model import LeafSpec
from deeppart.partition import partition


@pytest.mark.parametrize(
    ("name", "elements", "leaves"),
    [
        ("bert-base", 109_482_240, 199),
        ("bert-large", 335_141_888, 391),
        ("gpt2", 124_439_808, 148),
        ("gpt2-medium", 354_823_168, 292),
        ("gpt2-large", 774_030_080, 436),
        ("gpt2-xl", 1_557_611_200, 580),
        ("llama3-8b", 8_030_261_248, 291),
        ("llama3-70b", 70_553_706_496, 723),
        ("llama3-405b", 405_853_388_800, 1137),
        ("mixtral-8x7b", 46_702_792_704, 995),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, elements: int, leaves: int) -> None:
    model = model_named(name)
    assert model.elements == elements
    assert len(model.parameters) == leaves


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt3-6.7b", 6.7), ("gpt3-13b", 13.0), ("gpt3-175b", 175.0), ("gpt-1t", 1008.0)]
)
def test_larger_models_come_near_the_size_in_their_names(name: str, billions: float) -> None:
    assert model_named(name).elements == pytest.approx(billions * 1e9, rel=0.02)


def test_bert_large_is_the_one_that_the_benchmarks_save() -> None:
    real = shapes_of("bert-large", 1.0)
    assert sorted(p.elements for p in model_named("bert-large").parameters) == sorted(
        int(np.prod(shape)) for shape in real.values()
    )


def test_bert_large_with_adam_is_the_state_of_the_benchmarks() -> None:
    state = read_state("bert-large+adam")
    assert (len(state.tensors), state.nbytes) == (1564, 4_021_704_220)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_paths_are_different_and_layers_in_order(name: str) -> None:
    model = model_named(name)
    paths = [parameter.path for parameter in model.parameters]
    assert len(set(paths)) == len(paths)
    layers = [parameter.layer for parameter in model.parameters]
    assert layers == sorted(layers)
    assert set(layers) <= set(range(-1, model.layers + 1))


def test_families() -> None:
    assert model_named("bert-24x1024x30522").elements == model_named("bert-large").elements
    assert model_named("gpt-12x768x50257").elements == model_named("gpt2").elements
    assert [p.elements for p in model_named("tensors-3x4KiB").parameters] == [1024] * 3


@pytest.mark.parametrize(
    "name", ["bert", "bert-0x10x10", "gpt-1x2", "tensors-3x5", "tensors-0x4", "tensors-1xmany", ""]
)
def test_unknown_models_are_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_named(name)
    assert "bert-large" in str(caught.value) and FAMILIES[0] in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "bert-large+sgd",
        "bert-large:int3",
        "bert-large+",
        "bert-large@",
        "bert-large@tp",
        "bert-large@tp=0",
        "bert-large@fsdp,hsdp=2",
        "bert-large@pp=25",
        "bert-large@ep=2",
        "mixtral-8x7b@ep=3",
        "bert-large@tp=2,tp=2",
    ],
)
def test_impossible_states_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_state(text)


def test_optimizers_keep_what_they_keep() -> None:
    parameters = 335_141_888
    assert read_state("bert-large").nbytes == 4 * parameters
    assert read_state("bert-large:bf16").nbytes == 2 * parameters
    assert read_state("bert-large+adam").nbytes == 12 * parameters + 4 * 391
    assert read_state("bert-large+adam-mixed").nbytes == 14 * parameters + 4 * 391
    assert read_state("bert-large+sgd-momentum").nbytes == 8 * parameters


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        ("tp=2", 8),
        ("pp=2", 8),
        ("tp=2,pp=2", 8),
        ("fsdp", 8),
        ("hsdp=2", 8),
        ("tp=2,hsdp=2", 8),
        ("tp=2,pp=3,zero1", 24),
    ],
)
def test_every_leaf_is_whole_among_the_groups(layout: str, ranks: int) -> None:
    """All groups together hold every byte once, up to what rounding up to whole elements adds."""
    state = read_state(f"bert-base+adam@{layout}")
    held = sum(int(groups.leaves.nbytes.sum()) * len(groups.ranks) for groups in state.on(ranks))
    replicated = sum(
        int(groups.leaves.nbytes.sum()) * len(groups.ranks) for groups in read_state("bert-base+adam").on(ranks)
    )
    assert replicated <= held <= replicated * 1.01
    for groups in state.on(ranks):
        assert len(np.unique(groups.ranks)) == groups.ranks.size


def test_ranks_are_numbered_as_megatron_does() -> None:
    world = Layout(tensor=2, pipeline=2).at(8)
    assert world.groups(0, divided=True, expert=None, optimizer=False).tolist() == [[0, 2], [1, 3]]
    assert world.groups(1, divided=True, expert=None, optimizer=False).tolist() == [[4, 6], [5, 7]]
    assert world.groups(1, divided=False, expert=None, optimizer=False).tolist() == [[4, 5, 6, 7]]


def test_hybrid_sharding_divides_among_neighbours() -> None:
    world = Layout(sharded=2).at(6)
    assert world.groups(0, divided=False, expert=None, optimizer=False).tolist() == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(("rows", "columns", "shards"), [(1024, 3, 8), (10, 4, 4), (3, 5, 8), (1, 7, 4), (9, 1, 4)])
def test_fsdp_divides_by_rows_as_torch_does(rows: int, columns: int, shards: int) -> None:
    """``fully_shard`` gives rank r the r-th of ``torch.chunk(tensor, ranks)``, and nothing where there are fewer."""
    tensor = Tensor(Parameter("w", rows * columns, 0, rows=rows), "w", "float32", rows * columns)
    state = state_of("one", [tensor], "test", read_layout("fsdp"))
    held = np.zeros(shards, dtype=np.int64)
    for groups in state.on(shards):
        held[groups.ranks.ravel()] += int(groups.leaves.nbytes.sum())
    chunks = [4 * chunk.numel() for chunk in torch.empty(rows, columns).chunk(shards)]
    assert held.tolist() == chunks + [0] * (shards - len(chunks))
    assert state.shares(shards).nbytes.tolist() == held.tolist()


def test_more_shards_than_rows_leave_ranks_without_work() -> None:
    """A matrix of 1,024 rows on 4,096 ranks: three of four have nothing of it, as with fully_shard."""
    state = read_state("bert-large+adam@fsdp")
    shares = state.shares(4096)
    assert int(shares.nbytes.sum()) == pytest.approx(state.nbytes, rel=0.01)
    # Feed-forward matrices of 4,096 rows are on all ranks, embeddings of 30,522 on 3,816: 8 rows each, and 2 on one.
    assert (shares.nbytes[:1024] > 1.5 * shares.nbytes[1024]).all() and shares.nbytes[-1] > 0


def test_what_every_rank_has_for_itself_is_saved_by_itself() -> None:
    rng = Tensor(Parameter("rng", 1250, -1), "rng", "int32", 1250)
    state = replace(read_state("tensors-4x4KiB"), own=(rng,))
    shares = state.shares(4)
    assert shares.nbytes.tolist() == [4096 + 5000] * 4 and shares.spans.tolist() == [2] * 4


def test_experts_are_dealt_out() -> None:
    state = read_state("mixtral-8x7b:bf16@ep=8")
    assert state.nbytes == 2 * 46_702_792_704
    shares = state.shares(16)
    assert int(shares.nbytes.sum()) == state.nbytes
    experts = [groups for groups in state.on(16) if groups.ranks.shape == (1, 2)]
    assert len(experts) == 8
    assert {tuple(groups.ranks[0]) for groups in experts} == {(e, e + 8) for e in range(8)}


@pytest.mark.parametrize(("layout", "ranks"), [("tp=3", 8), ("tp=2,pp=2", 6), ("hsdp=4", 6), ("tp=2", 1)])
def test_ranks_that_do_not_fit_are_refused(layout: str, ranks: int) -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        read_layout(layout).at(ranks)


# --- shares -----------------------------------------------------------------------------------------------------------


def _direct(state: State, ranks: int, strategy: str, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """The same state handed to the partitioner as one list of leaves with their replica sets."""
    specs = []
    for tensor_groups in state.on(ranks):
        for row in tensor_groups.ranks.tolist():
            for number in range(len(tensor_groups.leaves)):
                nbytes, item = int(tensor_groups.leaves.nbytes[number]), int(tensor_groups.leaves.itemsize[number])
                members = None if len(row) == ranks else tuple(row)
                specs.append(LeafSpec(f"{len(row):04d}/{min(row):04d}/{number:06d}", nbytes, item, members))
    plan = partition(specs, ranks, kappa, strategy)
    return plan.bytes_per_rank(), plan.spans_per_rank()


@pytest.mark.parametrize("strategy", ["deeppart", "whole", "flat", "rank0"])
@pytest.mark.parametrize(
    ("text", "ranks"),
    [("bert-base+adam", 6), ("bert-base+adam@tp=2", 8), ("bert-base@tp=2,pp=2", 8), ("bert-base+adam@hsdp=2", 8)],
)
def test_shares_are_those_of_the_partitioner_on_the_whole_state(text: str, ranks: int, strategy: str) -> None:
    state = read_state(text)
    shares = state.shares(ranks, strategy, 65536)
    nbytes, spans = _direct(state, ranks, strategy, 65536)
    assert int(shares.nbytes.sum()) == int(nbytes.sum())
    # Cuts may fall at other leaves, since paths differ; what ranks carry may not differ by more than the promise.
    cost, direct = shares.nbytes + 65536 * shares.spans, nbytes + 65536 * spans
    assert float(cost.max()) == pytest.approx(float(direct.max()), rel=0.011, abs=65536)


def test_shares_by_dtype_add_up() -> None:
    shares = read_state("llama3-8b+adam-mixed@tp=8").shares(16)
    assert sum(shares.by_dtype.values()) == pytest.approx(1.0)
    assert shares.by_dtype["bfloat16"] == pytest.approx(2 / 14, rel=1e-3)


def test_a_trillion_parameters_fit_on_a_laptop() -> None:
    tracemalloc.start()
    began = time.process_time()
    state = read_state("gpt-1t+adam-mixed@tp=8,pp=64")
    shares = state.shares(65536)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert state.parameters > 10**12
    assert shares.nbytes.sum() == pytest.approx(state.nbytes, rel=0.001)
    assert peak < 1 << 30
    assert time.process_time() - began < 60  # a backstop; benchmarks measure


def test_every_dtype_has_a_size() -> None:
    assert all(size in (1, 2, 4, 8, 16) for size in ITEM_BYTES.values())
