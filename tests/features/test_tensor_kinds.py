"""Sparse, quantized and jagged tensors and wrapper subclasses in one state with others, saved and brought back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, StructureMismatchError
from tests.states import difference
from tests.tensor_kinds import KINDS, bits, coo, csr, jagged, quantized, two

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


def save(directory: Path, *states: Any, **settings: Any) -> None:
    with deeppart.Checkpointer(config(directory, **settings)) as ck:
        for step, state in enumerate(states, start=1):
            ck.checkpoint(state, step).wait(timeout=200)


def all_kinds(seed: int) -> dict[str, Any]:
    """Each beside what is no such tensor, and in a list."""
    return {
        name: {"x": make(seed), "plain": torch.full((3,), seed), "list": [make(seed + 1), seed], "step": seed}
        for name, make in KINDS.items()
    }


@pytest.mark.parametrize("compression", ["none", "auto"])
def test_every_kind_is_loaded_and_restored(tmp_path: Path, compression: str) -> None:
    state, live = all_kinds(1), all_kinds(3)
    save(tmp_path, state, compression=compression)
    loaded = deeppart.load(tmp_path)
    assert difference(state, loaded) is None
    for name, each in loaded.items():
        assert name.startswith("subclass") or bits(each) == bits(state[name]), name
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        assert ck.restore(live) == 1
    assert {name for name in KINDS if bits(live[name]) != bits(state[name])} == set()


def test_what_changes_from_one_checkpoint_to_the_next_is_noticed(tmp_path: Path) -> None:
    """Other numbers of elements, scales, shapes and kinds, in the place where others were."""
    one = coo(1)
    states: list[dict[str, Any]] = [
        {"x": one, "q": quantized(1), "s": two(1)},
        {"x": one, "q": quantized(2), "s": two(2)},
        {"x": coo(2, 9), "q": quantized(2), "s": two(2)},
        {"x": coo(2, 9).coalesce(), "q": quantized(3, torch.qint8), "s": torch.ones(3)},
        {"x": csr(1), "q": torch.ones(3, 4), "s": two(4)},
        {"x": csr(1, 2), "q": jagged(1), "s": two(4)},
        {"x": torch.ones(5, 6), "q": jagged(2), "s": 5},
        {"x": coo(3), "q": jagged(2).transpose(1, 2), "s": two(4)},
    ]
    expected = [bits(state) for state in states]
    save(tmp_path, *states, *reversed(states), keep={"persistent": 20}, incremental=True)
    for step, wanted in enumerate([*expected, *reversed(expected)], start=1):
        found = bits(deeppart.load(tmp_path, step))
        assert found["x"] == wanted["x"] and found["q"] == wanted["q"]


def test_what_changes_after_the_call_is_not_saved(tmp_path: Path) -> None:
    state = {"x": coo(1), "q": quantized(1), "s": two(1), "j": jagged(1)}
    expected = bits(state)
    with deeppart.Checkpointer(config(tmp_path, capture="lazy")) as ck:
        pending = ck.checkpoint(state, step=1)
        state["x"]._values().zero_()
        state["q"].copy_(quantized(5))
        state["s"].a.zero_()  # type: ignore[attr-defined]
        state["j"].values().zero_()
        pending.wait(timeout=200)
    found = bits(deeppart.load(tmp_path))
    assert all(found[key] == expected[key] for key in ("x", "q", "j"))
    assert found["s"]["a"] == expected["s"][2]["a"]


def test_a_part_of_a_tensor_is_all_of_it(tmp_path: Path) -> None:
    save(tmp_path, {"x": coo(1), "y": two(1), "z": torch.ones(2)})
    for keys in ("x", "x/values", "x/*", ["x/shape"]):
        assert bits(deeppart.load(tmp_path, keys=keys)) == bits({"x": coo(1)})
    assert sorted(deeppart.load(tmp_path, keys="y/b")["y"]) == ["a", "b", "context"]
    with pytest.raises(StructureMismatchError):
        deeppart.load(tmp_path, keys="x/nothing")


@pytest.mark.parametrize("indices", [[[9, 0], [0, 0]], [[-1, 0], [0, 0]]])
def test_what_was_not_sound_is_not_made_again(tmp_path: Path, indices: Any) -> None:
    bad = torch.sparse_coo_tensor(torch.tensor(indices), torch.ones(2), (5, 6), check_invariants=False)
    save(tmp_path, {"a": torch.ones(3), "x": bad, "y": 1, "z": torch.ones(3)})
    with pytest.raises(CorruptFileError, match="do not make one"):
        deeppart.load(tmp_path)
    assert deeppart.load(tmp_path, keys="y") == {"y": 1}
    for item in (coo(1, 2), coo(1, 3), None):
        live = {"a": torch.zeros(3), "x": item, "y": 0, "z": torch.zeros(3)}
        before = bits(live)
        with deeppart.Checkpointer(config(tmp_path)) as ck:
            with pytest.raises(CorruptFileError, match="do not make one"):
                ck.restore(live)
        assert bits(live) == before


@pytest.mark.skipif(len(torch.backends.quantized.supported_engines) < 2, reason="torch has no kernels for it here")
def test_a_quantized_module_of_torch(tmp_path: Path) -> None:
    """Its ``state_dict()`` unpacks weights, which it takes back in ``load_state_dict()``."""

    def model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        made: torch.nn.Module = torch.ao.quantization.quantize_dynamic(plain, {torch.nn.Linear}, dtype=torch.qint8)
        return made

    saved, live, loaded, sample = model(1), model(2), model(3), torch.randn(3, 8)
    save(tmp_path, {"m": saved})
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        assert ck.restore({"m": live}) == 1
    loaded.load_state_dict(deeppart.load(tmp_path)["m"])
    assert torch.equal(live(sample), saved(sample)) and torch.equal(loaded(sample), saved(sample))


def test_a_weight_of_torchao(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")

    def model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        made = torch.nn.Sequential(torch.nn.Linear(64, 32)).to(torch.bfloat16)
        quantization.quantize_(made, quantization.Int8WeightOnlyConfig())
        return made

    saved, live, sample = model(1), model(2), torch.ones(1, 64, dtype=torch.bfloat16)
    weight = live[0].weight  # type: ignore[index]
    save(tmp_path, {"m": saved})
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        assert ck.restore({"m": live}) == 1
    assert live[0].weight is weight and bits(weight) == bits(saved[0].weight)  # type: ignore[index]
    assert torch.equal(live(sample), saved(sample))
