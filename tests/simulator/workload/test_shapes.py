"""Models by shape: parameter counts that are published."""

from __future__ import annotations

import pytest
from deeppart_simulator.timing.published import RESULTS
from deeppart_simulator.workload.shapes import FAMILIES, WORKLOADS, model_named
from deeppart_simulator.workload.states import read_state

from deeppart.errors import ConfigError


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
    "name", ["bert", "bert-0x10x10", "gpt-1x2", "tensors-3x5", "tensors-0x4", "tensors-1xmany", ""]
)
def test_unknown_models_are_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_named(name)
    assert "bert-large" in str(caught.value) and FAMILIES[0] in str(caught.value)


GIB = 2**30
#: Of the same table, tensor x pipeline x data parallel ranks and ZeRO's stage.
LAYOUTS = {
    "mlperf-8b": "fsdp", "mlperf-70b": "tp=8,fsdp", "mlperf-405b": "tp=8,pp=32,zero1", "mlperf-1t": "tp=8,pp=64,zero1",
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_sizes_are_those_of_the_published_results_to_the_byte(name: str) -> None:
    """Results of v3.0 say the size of what was written, as DLIO counts it: summary.json, checkpoint_size_GB."""
    published = next(result.size for result in RESULTS if result.workload == name)
    assert WORKLOADS[name].rank_bytes().sum() / GIB == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_state_is_what_the_benchmark_writes_but_for_what_it_writes_twice(name: str) -> None:
    state, workload = read_state(name), WORKLOADS[name]
    written = int(workload.rank_bytes().sum())
    assert state.name == name and str(state.layout) == LAYOUTS[name]
    assert state.nbytes <= written and state.nbytes == pytest.approx(written, rel=2e-4)
    assert {tensor.dtype for tensor in state.tensors if not tensor.optimizer} == {"float16"}
    assert state.parameters * 14 == pytest.approx(state.nbytes, rel=1e-4), "2 bytes, and three float32 for each"
    shares = state.shares(workload.processes)
    assert shares.nbytes.sum() == state.nbytes
    assert shares.nbytes.max() <= workload.rank_bytes().max() * 1.001
