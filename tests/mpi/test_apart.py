"""States whose structure differs between ranks, where that is allowed: each rank gets its own back.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import json
import random
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import PerRankError, StructureMismatchError
from deeppart.offline.load import find_step
from deeppart.testing.states import blank, difference

pytestmark = pytest.mark.mpi(min_size=4)

RULES = {"replay/*": "none", "best/*": "rank0", "trusted": "all"}


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"local_dir": str(directory / "local" / "{node}"), "node_size": 1, "timeout": 20.0}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **(defaults | settings))


def ragged_state(rank: int) -> dict[str, Any]:
    """What "auto" allows: lists of other lengths, None where others have something, runs that differ."""
    return {
        "weights": torch.arange(6000.0).view(3, 2000),
        "history": [0.5 * step for step in range(20 + rank)],  # a run on every rank
        "few": list(range(5 + 10 * rank)),  # a run on some ranks
        "buffers": [torch.full((4 + rank,), float(rank)) for _ in range(2 + rank)],
        "cache": None if rank == 0 else {"x": torch.ones(3) * rank, "names": ["a"] * rank},
        "moment": torch.ones(7) * rank if rank < 2 else None,
        "items": ["fixed", None if rank else [torch.zeros(2), 1], 3],
        "table": {f"word {place} of {rank}": place for place in range(300)},
        "same": dict.fromkeys(range(300) if rank % 2 else reversed(range(300)), "x"),
        "step": 7,
    }


def ruled_state(rank: int) -> dict[str, Any]:
    """What rules allow besides."""
    base = torch.arange(10.0) + rank
    replay = OrderedDict([("first", rank), (f"only {rank}", {"rows": base, "tail": base[5:]}), ("last", "x")])
    state: dict[str, Any] = {
        "weights": torch.arange(6000.0).view(3, 2000),
        "trusted": torch.full((9,), 2.0),
        "replay": replay if rank != 1 else None,
        "step": 7,
    }
    if rank == 0:
        state["best"] = {"loss": 0.25, "weights": torch.full((2000,), 3.0), "curve": [0.1] * 30}
    elif rank == 1:
        state["best"] = None
    elif rank == 2:
        state["best"] = {"loss": 9.0, "weights": torch.zeros(3), "other": 1}
    return state


def save(comm: Any, directory: Path, make: Any, rules: Any = "auto", steps: int = 2) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, replicated=rules), comm) as ck:
            for step in range(1, steps + 1):
                ck.checkpoint(make(comm.rank), step=step).wait(timeout=200)
    return [str(w.message) for w in caught if issubclass(w.category, deeppart.DeeppartWarning)]


def restore(comm: Any, directory: Path, make: Any, per_rank: Any = "strict", clear: bool = True) -> Any:
    state = make(comm.rank)
    if clear:
        state = blank_tensors(state)
    with deeppart.Checkpointer(config(directory), comm) as ck, warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
        try:
            return ck.restore(state, per_rank=per_rank), state
        except deeppart.DeeppartError as error:
            return type(error), str(error)


def blank_tensors(state: Any) -> Any:
    """The same structure, with None where there is None, and other contents."""
    if state is None:
        return None
    if isinstance(state, dict):
        return type(state)((key, blank_tensors(item)) for key, item in state.items())
    if isinstance(state, list):
        return [blank_tensors(item) for item in state]
    return blank(state)


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_auto_allows(run_on: Any, shared_path: Path, ranks: int) -> None:
    notices = run_on(ranks, save, shared_path, ragged_state)
    paths = ("history", "few", "buffers", "cache", "items/1", "table")
    assert all(path in notices[0][0] for path in paths) and not any(notices[1:])
    assert "same" not in notices[0][0], "the order of a dict's entries is no difference"
    for rank, (step, found) in enumerate(run_on(ranks, restore, shared_path, ragged_state)):
        assert step == 2
        assert difference(ragged_state(rank), found, ordered=False) is None
        loaded = deeppart.load(shared_path / "ckpt", rank=rank)
        assert difference(ragged_state(rank), loaded, ordered=False) is None


def bookkeeping(rank: int) -> dict[str, Any]:
    """What rank 0 alone knows of a training, of several kinds at once."""
    return {
        "weights": torch.arange(3000.0),
        "metric": 0.5 if rank == 0 else None,
        "best": {"top1": 0.1, "epoch": 3} if rank == 0 else None,
        "returns": [1.0] * (rank + 1),
        "deep": {"name": [None if rank else "best", 1]},
    }


def test_none_against_a_value_beside_other_differences(run_on: Any, shared_path: Path) -> None:
    notices = run_on(2, save, shared_path, bookkeeping)
    assert all(path in notices[0][0] for path in ("metric", "best", "returns", "deep/name"))
    for rank, (step, found) in enumerate(run_on(2, restore, shared_path, bookkeeping)):
        assert step == 2
        assert difference(bookkeeping(rank), found, ordered=False) is None
        loaded = deeppart.load(shared_path / "ckpt", rank=rank)
        assert difference(bookkeeping(rank), loaded, ordered=False) is None


def ruled_for_another_world(rank: int) -> dict[str, Any]:
    return ruled_state(0) | {"replay": None}


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_rules_allow(run_on: Any, shared_path: Path, ranks: int) -> None:
    notices = run_on(ranks, save, shared_path, ruled_state, RULES)
    assert not any(notices), "what the user says himself is not told him"
    best = ruled_state(0)["best"]
    for step, found in run_on(4, restore, shared_path, ruled_for_another_world, "rank0", False):
        assert step == 2, found
        assert difference(ruled_state(0) | {"best": best}, found, ordered=False) is None
    for rank, (step, found) in enumerate(run_on(ranks, restore, shared_path, ruled_state)):
        assert step == 2
        expected = ruled_state(rank) | {"best": best}
        assert difference(expected, found, ordered=False) is None
        loaded = deeppart.load(shared_path / "ckpt", rank=rank)
        assert difference(expected, loaded, ordered=False) is None
        if expected["replay"] is not None:
            assert list(loaded["replay"]) == list(expected["replay"])
            own = loaded["replay"][f"only {rank}"]
            assert own["tail"].data_ptr() == own["rows"][5:].data_ptr(), "tied again"


def check(comm: Any, directory: Path) -> Any:
    from tests.unit.cli_support import call

    verified = json.loads(call("verify", directory / "ckpt", "--json"))
    shown = json.loads(call("show", directory / "ckpt", "--json"))
    call("show", directory / "ckpt")
    call("export", directory / "ckpt", directory / "out.h5", "--rank", "1")
    kept = {
        leaf["path"]
        for key in ("replay", "best")
        for leaf in json.loads(call("show", directory / "ckpt", key, "--json"))["leaves"]
    }
    assert kept == {leaf["path"] for leaf in shown["leaves"] if leaf["path"].startswith(("replay", "best"))}
    call("show", directory / "ckpt", "replay/nothing", code=1)
    return verified, shown


def test_commands_know_what_stands_apart(run_on: Any, shared_path: Path) -> None:
    run_on(3, save, shared_path, ruled_state, RULES)
    ((verified, shown),) = run_on(1, check, shared_path)
    assert [step["state"] for step in verified["steps"]] == ["sound"] * len(verified["steps"])
    paths = [leaf["path"] for leaf in shown["leaves"]]
    assert {"replay/only 0/rows", "replay/only 2/rows", "best/weights"} <= set(paths)


def first(path: str, old: list[Any], rank: int, size: int) -> Any:
    """What the first rank that had anything had there."""
    return next(item for item in old if item is not None)


def live_for_another_world(rank: int) -> dict[str, Any]:
    return ragged_state(1)


def live_for_the_function(rank: int) -> dict[str, Any]:
    return ragged_state(1) | {"buffers": [], "cache": None, "items": ["fixed", None, 3]}


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_another_number_of_ranks(run_on: Any, new_shared_path: Any, ranks: int) -> None:
    directory = new_shared_path()
    run_on(2, save, directory, ragged_state)
    for kind, text in run_on(ranks, restore, directory, live_for_another_world):
        assert kind is PerRankError or "PerRankError" in text or "refused by" in text
        assert "cache" in text and "items/1" in text
    for step, found in run_on(ranks, restore, directory, live_for_another_world, "drop", False):
        assert step == 2
        assert difference(ragged_state(1), found, ordered=False) is None, "live ones are left alone"
    for step, found in run_on(ranks, restore, directory, live_for_the_function, "rank0", False):
        assert step == 2, found
        assert difference(ragged_state(0), found, ordered=False) is None
    for step, found in run_on(ranks, restore, directory, live_for_the_function, first, False):
        assert step == 2, found
        assert found["cache"]["x"].tolist() == [1.0] * 3
        assert [len(item) for item in found["buffers"]] == [4, 4]


def generators(seed: int) -> tuple[dict[str, Any], Any, random.Random, np.random.RandomState]:
    """A state with generators, and these; half of what they hold is the same on all ranks."""
    generator = np.random.default_rng(seed)
    generator.integers(1 << 30, dtype=np.uint32)  # half of a number is left over
    plain, legacy = random.Random(seed), np.random.RandomState(seed)
    legacy.randint(5)
    state: dict[str, Any] = {"numpy": generator.bit_generator.state, "legacy": legacy.get_state(legacy=True)}
    state |= {"plain": plain.getstate(), "list": [seed, 7, torch.full((3,), float(seed)), torch.ones(2)], "step": 7}
    return state, generator, plain, legacy


def saved_generators(rank: int) -> dict[str, Any]:
    return generators(rank)[0]


def draws_after_drop(comm: Any, directory: Path, has_state: bool) -> Any:
    live, generator, plain, legacy = generators(100 + comm.rank)
    if not has_state:
        live = dict.fromkeys(("numpy", "legacy", "plain", "list"))
    with deeppart.Checkpointer(config(directory), comm) as ck, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert ck.restore(live, per_rank="drop") == 2
    assert live["step"] == 7
    if not has_state:
        return live, [str(each.message) for each in caught]
    expected = generator.random(), plain.random(), legacy.random_sample()
    generator.bit_generator.state = live["numpy"]
    plain.setstate(live["plain"])
    legacy.set_state(live["legacy"])
    return expected == (generator.random(), plain.random(), legacy.random_sample())


def test_half_of_a_generator_is_not_restored(run_on: Any, shared_path: Path) -> None:
    """What is equal on all ranks within it came from the checkpoint, once: then all ranks drew the same."""
    run_on(2, save, shared_path, saved_generators)
    assert run_on(3, draws_after_drop, shared_path, True) == [True] * 3
    for live, told in run_on(3, draws_after_drop, shared_path, False):
        assert (live["numpy"], live["legacy"], live["plain"]) == (None, None, None)
        assert live["list"][:3] == [None, 7, None] and live["list"][3].tolist() == [1, 1]
        assert len(told) <= 1 and all("list/0, numpy, legacy, plain" in text for text in told), told


def refused(comm: Any, make: Any, directory: Path, rules: Any = "auto") -> str:
    with deeppart.Checkpointer(config(directory, replicated=rules), comm) as ck:
        try:
            ck.checkpoint(make(comm.rank), step=1)
        except StructureMismatchError as error:
            return str(error)
    return "saved"


def other_keys(rank: int) -> dict[str, Any]:
    return {"a": 1, "deep": {f"k{rank}": 1}}


def other_kinds(rank: int) -> dict[str, Any]:
    return {"a": 1, "deep": torch.ones(2) if rank else 7}


def test_other_differences_are_refused_with_advice_that_is_true(run_on: Any, new_shared_path: Any) -> None:
    for make, named in ((other_keys, "deep/k1"), (other_kinds, "deep")):
        for text in run_on(2, refused, make, new_shared_path()):
            assert named in text and '"none"' in text
        assert run_on(2, refused, make, new_shared_path(), {"deep/*": "none"}) == ["saved"] * 2


def growing(comm: Any, directory: Path) -> Any:
    """One structure after another: the ranks cut anew each time, and go back to sharing when they are alike again."""
    states = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with deeppart.Checkpointer(config(directory), comm) as ck:
            for step in range(1, 7):
                count = 3 if step == 6 else 2 + (comm.rank * step) % 4
                state = {"list": [torch.full((step,), float(comm.rank)) for _ in range(count)], "w": torch.ones(9)}
                if step == 6:
                    state["list"] = [torch.ones(2)] * 3
                ck.checkpoint(state, step=step).wait(timeout=200)
                states.append(state)
            live = {"list": [torch.zeros(2)] * 3, "w": torch.zeros(9)}
            assert ck.restore(live) == 6
            assert difference(states[-1], live) is None
    return states


def test_structures_that_change(run_on: Any, shared_path: Path) -> None:
    saved = run_on(2, growing, shared_path)
    loaded = deeppart.load(shared_path / "ckpt", step=6)
    assert difference(saved[0][5], loaded) is None
    assert not find_step(shared_path / "ckpt", 6, None)[0].manifest.structure["apart"]


def recent(rank: int, step: int) -> dict[str, Any]:
    """Caches: the order of their entries is that in which they were used. All ranks' is the same at steps 1 and 4."""
    names = [f"k{place * (1 + rank * ((step - 1) % 3)) % 7}" for place in range(7)]
    rows = OrderedDict((name, torch.full((3,), float(name[1]))) for name in names)
    counts = OrderedDict((name, int(name[1]) + step) for name in names)
    return {"w": torch.ones(9), "counts": counts, "rows": rows, "plain": dict(counts), "trusted": OrderedDict(counts)}


def in_other_orders(comm: Any, directory: Path) -> Any:
    settings = config(directory, replicated={"trusted": "all", "*": "auto"}, keep={"persistent": 9})
    with deeppart.Checkpointer(settings, comm) as ck:
        found = []
        for step in range(1, 6):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ck.checkpoint(recent(comm.rank, step), step=step).wait(timeout=200)
            live = blank_tensors(recent(0, 1))
            assert ck.restore(live, step=step) == step
            found.append(([str(each.message) for each in caught], live))
    return found


def test_the_order_of_ordered_dicts(run_on: Any, shared_path: Path) -> None:
    """Each rank gets back its own, from the checkpoint on at which it differs first."""
    of_0, of_1 = run_on(2, in_other_orders, shared_path)
    for rank, found in enumerate((of_0, of_1)):
        for step, (_, live) in enumerate(found, 1):
            saved = recent(rank, step)
            assert difference(saved, live, ordered=False) is None
            for name in ("counts", "rows"):
                assert list(live[name]) == list(saved[name]), (rank, step, name)
            assert list(live["trusted"]) == list(recent(0, step)["trusted"])
            apart = find_step(shared_path / "ckpt", step, None)[0].manifest.structure["apart"]
            assert apart == (step > 1)
    notices = [text for texts, _ in of_0 for text in texts]
    assert len(notices) == 1 and "per rank from now on: counts, rows" in notices[0]
    assert not any(texts for texts, _ in of_1)


def test_patterns_that_match_nothing_are_told_once(run_on: Any, shared_path: Path) -> None:
    rules = {"replay/*": "none", "best/*": "rank0", "tpyo/*": "none"}
    notices = run_on(2, save, shared_path, ruled_state, rules)
    assert [len(each) for each in notices] == [1, 0] and "tpyo" in notices[0][0] and "replay" not in notices[0][0]
