"""Models by shape: parameter counts that are published."""

from __future__ import annotations

import numpy as np
import pytest
from deeppart_simulator.workload.shapes import FAMILIES, PRESETS, model_named

from benchmarks.workload import shapes_of
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
    ("name", "billions"), [("gpt3-6.7b", 6.7), ("gpt3-13b", 13.0), ("gpt3-175b", 175.0), ("gpt-1t", 1008.0)]
)
def test_larger_models_come_near_the_size_in_their_names(name: str, billions: float) -> None:
    assert model_named(name).elements == pytest.approx(billions * 1e9, rel=0.02)


def test_bert_large_is_the_one_that_the_benchmarks_save() -> None:
    real = shapes_of("bert-large", 1.0)
    assert sorted(p.elements for p in model_named("bert-large").parameters) == sorted(
        int(np.prod(shape)) for shape in real.values()
    )


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
