"""Random states in random layouts, by shapes alone."""

from __future__ import annotations

from deeppart_simulator.workload.layout import Layout, read_layout
from deeppart_simulator.workload.shapes import Parameter, Tensor
from deeppart_simulator.workload.states import State, state_of
from hypothesis import strategies as st

#: Layout -> ranks that it needs.
LAYOUTS = {"": 1, "tp=2": 2, "tp=3": 3, "fsdp": 1, "hsdp=2": 2, "hsdp=4": 4, "tp=2,fsdp": 2, "tp=2,hsdp=3": 6}


@st.composite
def states(draw: st.DrawFn) -> tuple[State, int]:
    """A state, and a number of ranks that fits its layout."""
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    found = []
    for number in range(draw(st.integers(1, 8))):
        shape = draw(st.lists(st.integers(0, 40), max_size=3).map(tuple))
        divided = draw(st.one_of(st.none(), st.integers(0, len(shape) - 1))) if shape else None
        dtype, plain = draw(st.sampled_from(["float32", "bfloat16", "int64"])), draw(st.booleans())
        parameter = Parameter(f"w{number}", shape, 0, divided)
        found.append(Tensor(parameter, f"w{number}", dtype, shape, plain=plain))
    ranks = LAYOUTS[layout] * draw(st.integers(1, 4))
    return state_of("random", found, "test", read_layout(layout) if layout else Layout()), ranks
