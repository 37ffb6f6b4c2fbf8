"""Partial restores: what is asked for is restored, bit for bit, and everything else stays as it was."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import DeeppartError, DeeppartWarning, LeafMismatchError, StateError, StructureMismatchError
from deeppart.state.paths.globs import covers
from deeppart.state.paths.keys import readable
from tests.unit.sharded_states import restore, save

pytestmark = pytest.mark.usefixtures("working_directory")


def network(seed: int, *more: torch.nn.Module) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), *more)


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    sum(parameter.sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    return optimizer


def training(seed: int) -> dict[str, Any]:
    model = network(seed)
    return {"model": model, "optimizer": stepped(model), "epoch": seed, "loss": [0.5] * seed}


def report(ck: deeppart.Checkpointer) -> deeppart.RestoreReport:
    assert ck.restored is not None
    return ck.restored


# --- against an oracle ------------------------------------------------------------------------------------------------


def random_tree(rng: random.Random, depth: int) -> Any:
    kind = rng.choice("tttvvdl" if depth else "dd")
    if kind == "t":
        return torch.zeros(rng.randrange(1, 4)) if rng.random() < 0.7 else np.zeros(2)
    if kind == "v":
        return 0
    if depth > 3:
        return 1.5
    if kind == "d":
        names = rng.sample(["a", "b", "weight", "bias", "module", "x.y", 1, "a/b"], rng.randrange(1, 5))
        return {name: random_tree(rng, depth + 1) for name in names}
    return [random_tree(rng, depth + 1) for _ in range(rng.randrange(1, 4))]


def filled(tree: Any, rng: random.Random) -> Any:
    """The same with other contents."""
    if isinstance(tree, dict):
        return {key: filled(item, rng) for key, item in tree.items()}
    if isinstance(tree, list):
        return [filled(item, rng) for item in tree]
    if isinstance(tree, torch.Tensor):
        return torch.tensor([rng.random() for _ in range(len(tree))])
    return (
        np.array([rng.random(), rng.random()]) if isinstance(tree, np.ndarray) else type(tree)(rng.randrange(1 << 30))
    )


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(tree, (dict, list)):
        for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(item, (*path, key))
    else:
        yield path, tree.tolist() if isinstance(tree, (torch.Tensor, np.ndarray)) else tree


def expected(path: tuple[Any, ...], keys: Any, exclude: Any) -> bool:
    """As the documents say: any container around a leaf, or it, is covered, and none of them is excluded."""
    ends = [(readable(path[:end]), end < len(path)) for end in range(1, len(path) + 1)]
    asked = keys is None or any(covers(text, keys, container=True) for text, _ in ends)
    return asked and not any(covers(text, exclude, container=True) for text, _ in ends)


@pytest.mark.filterwarnings("ignore:.*cover nothing here")
def test_random_states_and_globs(ck: deeppart.Checkpointer) -> None:
    counts = [0, 0, 0]
    for seed in range(150):
        rng = random.Random(seed)
        tree = random_tree(rng, 0)
        saved, live = filled(tree, rng), filled(tree, rng)
        paths = [readable(path) for path, _ in leaves(tree)]
        globs = ["*/weight", "a", "a/*", "*b*", "weight/*/a", "x.y", "1/*", "a~1b", rng.choice(paths)]
        keys = rng.sample(globs, 2) if rng.random() < 0.8 else None
        exclude = rng.sample(globs, 1) if rng.random() < 0.5 else []
        ck.checkpoint(saved, seed + 1).wait(timeout=30)
        before = dict(leaves(live))
        try:
            ck.restore(live, keys=keys, exclude=exclude)
        except StructureMismatchError as error:
            assert "matches the keys" in str(error) and not any(expected(path, keys, exclude) for path in before)
            counts[2] += 1
            continue
        theirs, after = dict(leaves(saved)), dict(leaves(live))
        assert after.keys() == before.keys()
        for path, value in after.items():
            asked = expected(path, keys, exclude)
            counts[asked] += 1
            assert value == (theirs if asked else before)[path], (seed, path, keys, exclude)
    assert min(counts) > 20


# --- the outermost dict -----------------------------------------------------------------------------------------------


def test_a_model_alone_brings_no_optimizer_along(ck: deeppart.Checkpointer) -> None:
    saved, model = training(3), network(9)
    ck.checkpoint(saved, 1).wait(timeout=30)
    live: dict[str, Any] = {"model": model}
    with pytest.warns(DeeppartWarning, match="left in the checkpoint, .* no such key: optimizer[.]"):
        ck.restore(live)
    assert live == {"model": model, "epoch": 3, "loss": [0.5] * 3}  # small values come back
    assert torch.equal(model[0].weight, saved["model"][0].weight)
    assert (report(ck).leaves, report(ck).left_out) == (4, ("optimizer",))
    live = {"model": model}
    ck.restore(live, keys="model")  # asked for by name: nothing to be told
    assert live == {"model": model} and report(ck).left_out == ()
    live = {}
    with pytest.warns(DeeppartWarning, match="is a dict now"):
        ck.restore(live)
    assert live.keys() == saved.keys()
    live = {"model": model}
    with pytest.warns(DeeppartWarning, match="is a dict now"):
        ck.restore(live, keys=["optimizer/state/0"])
    assert list(live["optimizer"]["state"][0]) == ["step", "exp_avg", "exp_avg_sq"] and len(live["optimizer"]) == 1


# --- what is missing, and what nobody has a place for -----------------------------------------------------------------


def test_fine_tuning_with_another_head(ck: deeppart.Checkpointer) -> None:
    saved = network(1, torch.nn.Linear(2, 7))
    ck.checkpoint({"model": saved, "epoch": 4}, 1).wait(timeout=30)
    live = network(2)
    live.add_module("head", torch.nn.Linear(2, 3))
    before = live[2].weight.clone()
    with pytest.raises(StructureMismatchError, match="strict=False"):
        ck.restore({"model": live})
    assert not torch.equal(live[0].weight, saved[0].weight)
    asked: list[tuple[str, str]] = []

    def accept(path: str, difference: str) -> bool:
        asked.append((path, difference))
        return path.startswith(("model/head.", "model/2."))

    ck.restore({"model": live, "epoch": 0}, strict=accept)
    assert torch.equal(live[0].weight, saved[0].weight) and torch.equal(live[2].weight, before)
    assert set(report(ck).missing) == {"model/head.bias", "model/head.weight"}
    assert set(report(ck).unexpected) == {"model/2.bias", "model/2.weight"}
    assert sorted(asked) == [
        ("model/2.bias", "unexpected"),
        ("model/2.weight", "unexpected"),
        ("model/head.bias", "missing"),
        ("model/head.weight", "missing"),
    ]


def test_an_optimizer_is_restored_whole_or_not_at_all(ck: deeppart.Checkpointer) -> None:
    """Its states are numbered: with one layer more in front, number 0 would be another parameter's."""
    saved = training(1)
    ck.checkpoint(saved, 1).wait(timeout=30)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), *network(2))
    live = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    with pytest.raises(StateError, match="parameter groups"):
        ck.restore(live, strict=False, keys="optimizer")
    fresh = network(5)
    optimizer = torch.optim.Adam(fresh.parameters())
    ck.restore({"optimizer": optimizer}, strict=False)
    assert optimizer.param_groups[0]["lr"] == 0.5 and len(optimizer.state) == 4


def test_nothing_in_common_is_an_error_even_so(ck: deeppart.Checkpointer) -> None:
    ck.checkpoint({"model": torch.ones(2)}, 1).wait(timeout=30)
    with pytest.raises(StructureMismatchError, match="no place for anything in the checkpoint"):
        ck.restore({"net": torch.zeros(2)}, strict=False)


# --- containers -------------------------------------------------------------------------------------------------------


def test_lists_tuples_and_values(ck: deeppart.Checkpointer) -> None:
    saved = {"l": [torch.ones(1), torch.ones(2), 5], "t": (torch.ones(1), {"n": 1}), "run": list(range(30))}
    ck.checkpoint(saved, 1).wait(timeout=30)
    live: dict[str, Any] = {"l": [torch.zeros(1), torch.zeros(2), 0], "t": (torch.zeros(1), {"n": 0}), "run": [7]}
    ck.restore(live, keys=["l/1", "t/1"])
    assert [each.any().item() if isinstance(each, torch.Tensor) else each for each in live["l"]] == [False, True, 0]
    assert not live["t"][0].any() and live["t"][1] == {"n": 1} and live["run"] == [7]
    for how in ({"keys": "run/3"}, {"exclude": "run/3"}):
        with pytest.raises(StructureMismatchError, match="restored as a whole"):
            ck.restore(live, **how)  # type: ignore[arg-type]
    with pytest.raises(StructureMismatchError, match="only some items of a list"):
        ck.restore({"l": []}, keys="l/1")
    assert not live["l"][0].any() and live["run"] == [7]


def test_a_large_dict_keeps_no_key_of_its_own(ck: deeppart.Checkpointer) -> None:
    saved = {"r": {f"k{number}": number for number in range(300)}, "n": 1}
    ck.checkpoint(saved, 1).wait(timeout=30)
    live = {"r": dict(saved["r"], mine=7), "n": 0}  # type: ignore[call-overload]
    for strict in (False, lambda path, difference: difference == "missing"):
        with pytest.raises(StructureMismatchError, match="other keys in the checkpoint"):
            ck.restore(live, strict=strict)
        assert live["r"]["mine"] == 7 and live["n"] == 0
    ck.restore(live, strict=False, exclude="r")
    assert live["r"]["mine"] == 7 and live["n"] == 1
    ck.restore(live, keys="r")
    assert live["r"] == saved["r"]


def test_tied_leaves_come_from_each_other(ck: deeppart.Checkpointer) -> None:
    """Only one of two tied names is asked for: the bytes are those of the other, which is not."""
    weight = torch.nn.Parameter(torch.arange(6.0))
    ck.checkpoint({"a": weight, "b": weight, "part": weight.detach()[2:4]}, 1).wait(timeout=30)
    for names in (["a"], ["b"]):
        live = {name: torch.zeros(6) for name in ("a", "b")}
        ck.restore(live, keys=names)
        assert [name for name, tensor in live.items() if torch.equal(tensor, weight)] == names
    part = {"part": torch.zeros(2)}
    ck.restore(part, keys="part")
    assert part["part"].tolist() == [2.0, 3.0]
    both = {"a": torch.zeros(6), "part": torch.zeros(2)}
    ck.restore(both, keys=["a", "part"])
    assert both["part"].tolist() == [2.0, 3.0]


def test_tied_leaves_have_other_names_in_another_order(ck: deeppart.Checkpointer) -> None:
    weight = torch.arange(6.0)
    ck.checkpoint({"a": weight, "b": weight, "c": weight[2:4]}, 1).wait(timeout=30)
    zeros = torch.zeros(6)
    live = {"z": zeros, "b": zeros, "c": zeros[2:4]}
    ck.restore(live, rename={"a": "z"})
    assert all(torch.equal(tensor, weight) for tensor in (zeros, live["z"])) and live["c"].tolist() == [2.0, 3.0]


# --- names ------------------------------------------------------------------------------------------------------------


def test_renamed_models(ck: deeppart.Checkpointer) -> None:
    saved = network(1)
    ck.checkpoint({"model": saved, "epoch": 2}, 1).wait(timeout=30)
    live: Any = torch.nn.ModuleDict({"backbone": network(2)})
    ck.restore({"net": live}, rename={"model": "net", "net/*": "net/backbone.*"})
    assert torch.equal(live["backbone"][0].weight, saved[0].weight)
    assert report(ck).renamed["model/0.weight"] == "net/backbone.0.weight" and report(ck).renamed["model"] == "net"
    live = {"net": {"enc": {"w": torch.zeros(2)}}}
    ck.checkpoint({"model": {"encoder": {"w": torch.ones(2)}}}, 2).wait(timeout=30)
    with pytest.raises(deeppart.ConfigError, match="write a rule for each level"):
        ck.restore(live, rename={"model/encoder/*": "net/enc/*"})
    ck.restore(live, rename={"model": "net", "net/encoder": "net/enc"})
    assert live["net"]["enc"]["w"].all()


@pytest.mark.parametrize(
    ("rename", "match"),
    [({"modle": "net"}, "matches nothing.*\n.*modle"), ({"*.bias": "0.weight"}, "two items of the checkpoint get one")],
)
def test_rules_that_cannot_be_meant(ck: deeppart.Checkpointer, rename: dict[str, str], match: str) -> None:
    ck.checkpoint({"model": network(1)}, 1).wait(timeout=30)
    with pytest.raises(StructureMismatchError, match=match):
        ck.restore({"model": network(2)}, rename=rename)


# --- precision --------------------------------------------------------------------------------------------------------


def test_a_model_in_another_precision(ck: deeppart.Checkpointer) -> None:
    saved = training(1)
    ck.checkpoint(saved, 1).wait(timeout=30)
    model = network(2).bfloat16()
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(LeafMismatchError, match="cast=True"):
        ck.restore({"model": model})
    ck.restore({"model": model, "optimizer": optimizer}, cast=True)
    assert torch.equal(model[0].weight, saved["model"][0].weight.bfloat16())
    moments = saved["optimizer"].state[saved["model"][0].weight]["exp_avg"]
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], moments.bfloat16())
    assert report(ck).cast["model/0.weight"] == ("float32", "bfloat16") and len(report(ck).cast) == 4
    model.float()(torch.ones(1, 3)).sum().backward()


@pytest.mark.parametrize("stepped_here", [False, True])
def test_the_state_of_an_optimizer_keeps_its_precision_unless_its_parameters_change_theirs(
    ck: deeppart.Checkpointer, stepped_here: bool
) -> None:
    """Parameters in bfloat16 with moments in float32 are usual; torch would round these to the parameter's dtype."""

    def made(model: Any, moment: float | None) -> torch.optim.Optimizer:
        optimizer = stepped(model) if moment is not None else torch.optim.Adam(model.parameters())
        for parameter, state in optimizer.state.items():
            state["exp_avg"] = torch.full(parameter.shape, moment or 0.0)
        return optimizer

    saved = network(1).bfloat16()
    ck.checkpoint({"model": saved, "optimizer": made(saved, 1 / 3)}, 1).wait("persistent", timeout=30)
    for kind, expected in ((torch.bfloat16, torch.float32), (torch.float16, torch.float16)):
        model = network(2).to(kind)
        optimizer = made(model, 0.0 if stepped_here else None)
        ck.restore({"model": model, "optimizer": optimizer}, cast=True)
        wanted = torch.float32 if stepped_here else expected
        for state in optimizer.state.values():
            assert state["exp_avg"].dtype == wanted
            assert torch.equal(state["exp_avg"], torch.full_like(state["exp_avg"], 1 / 3))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("slots", [False, True])
def test_a_dataclass_that_has_got_and_lost_fields(ck: deeppart.Checkpointer, frozen: bool, slots: bool) -> None:
    def made(*names: str) -> Any:
        fields = [(name, Any, dataclasses.field(default=5)) for name in names]
        return dataclasses.make_dataclass("Settings", fields, frozen=frozen, slots=slots)

    old, new = made("rate", "weight", "gone"), made("rate", "weight", "momentum", "buffer")
    nested = {"inner": old(2, torch.full((2,), 2.0), 2)}
    ck.checkpoint({"s": old(1, torch.ones(2), nested)}, 1).wait(timeout=30)
    weight, buffer = torch.zeros(2), torch.full((3,), 7.0)
    live: dict[str, Any] = {"s": new(0, weight, 0.9, buffer)}
    before = live["s"]
    for accepted in ("", "missing", "unexpected"):
        with pytest.raises(StructureMismatchError, match=r"gone|momentum"):
            ck.restore(live, strict=lambda path, difference, accepted=accepted: difference == accepted)  # type: ignore[misc]
        assert live["s"] is before and before.rate == 0 and not weight.any()
    ck.restore(live, strict=False)
    found = live["s"]
    assert (found is before) is not frozen and type(found) is new
    assert found.rate == 1 and found.weight is weight and weight.tolist() == [1.0, 1.0]
    assert found.momentum == 0.9 and found.buffer is buffer and buffer.tolist() == [7.0] * 3
    assert not hasattr(found, "gone")
    assert set(report(ck).missing) == {"s/momentum", "s/buffer"}
    assert [path.split("/")[1] for path in report(ck).unexpected] == ["gone"]


@pytest.mark.parametrize("how", [{"exclude": "big"}, {"keys": "view"}, {"keys": "view", "exclude": "big"}])
@pytest.mark.parametrize("kind", ["rows", "a column", "another dtype"])
def test_of_an_excluded_owner_no_byte_changes_but_those_of_the_view(
    ck: deeppart.Checkpointer, how: dict[str, Any], kind: str
) -> None:
    def state(value: float) -> dict[str, torch.Tensor]:
        big = torch.arange(24.0).view(6, 4) + value
        view = {"rows": big[2:4], "a column": big[:, 1], "another dtype": big[1].view(torch.int32)}[kind]
        return {"big": big, "view": view, "beside": torch.full((3,), value)}

    saved, live = state(100), state(0)
    ck.checkpoint(saved, 1).wait(timeout=30)
    expected = state(0)
    expected["view"].copy_(saved["view"])
    big, view = live["big"], live["view"]
    ck.restore(live, **how)
    assert live["big"] is big and live["view"] is view
    assert torch.equal(big, expected["big"]), "all else in it is as it was"
    assert torch.equal(view, saved["view"]) and view.data_ptr() >= big.data_ptr()
    assert live["beside"].tolist() == ([100.0] * 3 if "keys" not in how else [0.0] * 3)


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("how", [{"exclude": "big"}, {"keys": "view"}], ids=str)
def test_on_several_ranks(tmp_path: Path, ranks: int, own: bool, how: dict[str, Any]) -> None:
    """Leaves of each rank's own, too, and on another number of ranks."""

    def state(value: float) -> dict[str, torch.Tensor]:
        big = torch.arange(6.0) + value
        return {"big": big, "view": big[2:4], "beside": torch.full((3,), value)}

    save(tmp_path, [state(100 + 50 * rank * own) for rank in range(2)])
    live = [state(0) for _ in range(ranks)]
    if own and ranks != 2:
        for per_rank in ("strict", "rank0", "drop", lambda path, old, rank, size: old[0]):
            with pytest.raises(DeeppartError, match=r"a per-rank leaf was saved|of each of its 2 ranks"):
                restore(tmp_path, live, **how, per_rank=per_rank)
        assert all(each["big"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] for each in live)
        return
    restore(tmp_path, live, **how)
    for rank, each in enumerate(live):
        begin = 102.0 + 50 * rank * own
        assert each["big"].tolist() == [0.0, 1.0, begin, begin + 1, 4.0, 5.0], rank
        assert each["view"].data_ptr() == each["big"][2:].data_ptr()


def test_a_glob_that_covers_nothing_is_told_with_what_is_like_it(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2), "b": torch.ones(2)}, "optimizer": {"lr": 0.1}, "epoch": 1}
    with deeppart.Checkpointer(persistent_dir=tmp_path) as ck:
        ck.checkpoint(state, 1).wait(timeout=30)
        with pytest.warns(DeeppartWarning, match=r"in the checkpoint: optmizer/\* \(perhaps optimizer/\*\)"):
            ck.restore(state, keys=["model/*", "optmizer/*"])
        with pytest.raises(StructureMismatchError, match=r"keys modle/\* \(perhaps model/\*\)"):
            ck.restore(state, keys="modle/*")
        with pytest.raises(StructureMismatchError, match=r"found: keys epoch\n"):
            ck.restore(state, keys="epoch", exclude="epoch")
    with pytest.raises(StructureMismatchError, match=r"such as model/\*\n"):
        deeppart.load(tmp_path, keys="modle/*")
