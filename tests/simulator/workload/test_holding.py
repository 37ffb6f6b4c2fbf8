"""The boxes of a leaf on each rank: what torch divides is compared in tests/sharded; here, few ranks stand for all."""

from __future__ import annotations

from itertools import product

from deeppart_simulator.workload.holding import Form, Kind, aspect_of, boxes_at, classes, form_of, kind_of
from deeppart_simulator.workload.layout import read_layout
from deeppart_simulator.workload.shapes import Parameter, Tensor, model_named
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.model.boxes import Box
from deeppart.plan.shards import fault_of_cover


@st.composite
def divisions(draw: st.DrawFn) -> tuple[Kind, list[Form]]:
    kind = Kind(0, None, draw(st.integers(1, 6)), draw(st.integers(1, 12)), draw(st.booleans()))
    shapes = st.lists(st.integers(0, 23), min_size=1, max_size=3).map(tuple)
    forms = [Form(shape, draw(st.integers(0, len(shape) - 1))) for shape in draw(st.lists(shapes, max_size=4))]
    return kind, list(dict.fromkeys(forms))


@settings(deadline=None)
@given(divisions())
def test_every_element_is_on_one_place_of_the_layout(division: tuple[Kind, list[Form]]) -> None:
    kind, forms = division
    for form in forms:
        boxes: list[Box] = []
        for shard, place in product(range(kind.shards), range(kind.tensor)):
            here = boxes_at(form, kind, shard, place)
            assert here == sorted(here)
            boxes += here
        whole = Form((Box.whole(form.shape).elements,), 0) if kind.in_a_row else form
        assert fault_of_cover(boxes, whole.shape) == ""


@settings(deadline=None)
@given(divisions())
def test_ranks_of_a_class_hold_boxes_of_equal_sizes(division: tuple[Kind, list[Form]]) -> None:
    kind, forms = division
    found = {}
    for sizes, places in classes(kind, forms).items():
        for shard, place in places.tolist():
            assert (shard, place) not in found
            found[shard, place] = sizes
    for shard, place in product(range(kind.shards), range(kind.tensor)):
        sizes = tuple(tuple(box.sizes for box in boxes_at(form, kind, shard, place)) for form in forms)
        assert found.get((shard, place), ((),) * len(forms)) == sizes


def test_few_ranks_are_looked_at() -> None:
    forms = list(dict.fromkeys(Form(p.shape, p.divided or 0) for p in model_named("llama3-405b").parameters))
    found = classes(Kind(0, None, 1, 16384), forms)
    assert len(found) < 20 and sum(map(len, found.values())) == 16384


def test_what_has_no_dimensions_and_buffers_are_on_all_ranks() -> None:
    grid = read_layout("fsdp").at(8)
    step = Tensor(Parameter("w", (12, 5), 0, 0), "step", "float32", (), True)
    buffer = Tensor(Parameter("seen", (12,), 0, 0), "seen", "int64", (12,), plain=True)
    assert kind_of(aspect_of(step), 0, grid, 0) == kind_of(aspect_of(buffer), 0, grid, 0) == Kind(0)
    weight = Tensor(Parameter("w", (12, 5), 0, 1), "w", "float32", (12, 5))
    assert kind_of(aspect_of(weight), 0, grid, 0) == Kind(0, None, 1, 8)
    assert form_of(weight) == Form((12, 5), 1)


def test_matrices_are_divided_by_outputs_then_by_inputs() -> None:
    """As Megatron-LM does; a matrix of GPT-2 has a row for each input."""
    for model, outputs, inputs in (
        ("llama3-8b", ("mlp.up_proj", (14336, 4096), 0), ("mlp.down_proj", (4096, 14336), 1)),
        ("gpt2", ("mlp.c_fc", (768, 3072), 1), ("mlp.c_proj", (3072, 768), 0)),
        ("bert-base", ("intermediate.dense", (3072, 768), 0), ("1.output.dense", (768, 3072), 1)),
    ):
        for name, shape, divided in (outputs, inputs):
            found = next(p for p in model_named(model).parameters if p.path.endswith(f"{name}.weight"))
            assert (found.shape, found.divided) == (shape, divided)
