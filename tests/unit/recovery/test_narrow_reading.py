"""Chunks that hold nothing that is asked for are not read; what is restored is the same as if they had been."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from deeppart.comm import Comm
from deeppart.errors import DeeppartError, RestoreError
from deeppart.model import RestoreReport
from deeppart.recovery import apply
from deeppart.recovery.apply import arrays_to_fill, wanted_pieces
from deeppart.recovery.tables import Tables, fetch_spans, without_unneeded
from deeppart.state.capture import layout
from deeppart.state.pieces import ANY_PART
from tests.unit.recovery.opened import open_step
from tests.unit.sharded_states import checkpointer, on_ranks, restore, rows, save

pytestmark = [
    pytest.mark.usefixtures("working_directory"),
    pytest.mark.filterwarnings("ignore::deeppart.DeeppartWarning"),
]


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    """A leaf or two in each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", 64)
        yield


def leaf(name: str, scale: float = 1.0) -> torch.Tensor:
    return (torch.arange(18.0).view(9, 2) + sum(map(ord, name))) * scale


def reports(root: Path, states: list[Any], **how: Any) -> list[tuple[RestoreReport, str]]:
    """What each rank says of a restore."""

    def restored(comm: Comm) -> tuple[RestoreReport, str]:
        with checkpointer(root, comm) as ck:
            ck.restore(states[comm.rank], **how)
            assert ck.restored is not None
            return ck.restored, "\n".join(ck.explanation)

    found: list[tuple[RestoreReport, str]] = on_ranks(len(states), restored)
    return found


def model(scale: float = 1.0) -> dict[str, Any]:
    return {
        "model": {name: leaf(name, scale) for name in "abc"},
        "optimizer": {name: leaf(name * 2) for name in "abcdef"},
    }


def damage(root: Path, content: torch.Tensor) -> None:
    """Change a byte of the bytes of a tensor, wherever they lie."""
    wanted, changed = content.numpy().tobytes(), 0
    for path in root.rglob("part-*"):
        data = bytearray(path.read_bytes())
        if (at := data.find(wanted)) >= 0:
            data[at + 5] ^= 1
            path.write_bytes(data)
            changed += 1
    assert changed


def test_what_is_not_asked_for_is_neither_read_nor_checked(tmp_path: Path) -> None:
    save(tmp_path, [model()], compression="none")
    damage(tmp_path, leaf("bb"))
    live = {"model": model(0.0)["model"]}
    ((report, _),) = reports(tmp_path, [live])
    assert all(torch.equal(live["model"][name], leaf(name)) for name in "abc")
    assert (report.loaded_bytes, report.saved_bytes) == (3 * 72, 9 * 72) and "read: 216 B of 648 B" in str(report)
    with pytest.raises(RestoreError, match="digest"):
        restore(tmp_path, [model(0.0)])


def test_what_is_asked_for_is_checked(tmp_path: Path) -> None:
    save(tmp_path, [model()], compression="none")
    damage(tmp_path, leaf("b"))
    live = {"model": model(0.0)["model"]}
    with pytest.raises(RestoreError, match="digest"):
        restore(tmp_path, [live])
    assert not any(each.any() for each in live["model"].values())
    ((report, _),) = reports(tmp_path, [model(0.0)], exclude="model/b")
    assert report.loaded_bytes == 8 * 72


# --- the same as without ----------------------------------------------------------------------------------------------

REQUESTS: list[dict[str, Any]] = [
    {},
    {"strict": False},
    {"keys": "inner/*"},
    {"keys": ["a", "inner/deep/*"], "strict": False},
    {"keys": "inner", "exclude": "inner/deep"},
    {"exclude": ["more", "*/c"]},
    {"exclude": "b", "strict": False},
    {"rename": {"inner/d": "inner/renamed"}, "strict": False},
    {"strict": lambda path, difference: difference == "missing"},
]


class Random:
    """A random state, and live ones for it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.saving, self.ranks = self.rng.choice([1, 2, 3]), self.rng.choice([1, 2, 3])
        self.kind = {name: self.rng.choice(["plain", "plain", "sharded", "own"]) for name in "abcdefgh"}
        self.tied = self.rng.random() < 0.4
        self.request = self.rng.choice(REQUESTS) | ({"per_rank": self.rng.choice(["rank0", "drop", take])})

    def make(self, name: str, rank: int, count: int, scale: float) -> Any:
        if self.kind[name] == "sharded":
            return rows(leaf(name, scale), rank, count)
        return leaf(name, scale) + (rank * scale if self.kind[name] == "own" else 0)

    def state(self, rank: int, count: int, scale: float = 1.0) -> dict[str, Any]:
        x = {name: self.make(name, rank, count, scale) for name in "abcdefgh"}
        if self.tied:
            x["h"] = x["c"]
        inner = {"c": x["c"], "d": x["d"], "deep": {"e": x["e"], "f": x["f"]}}
        return {"a": x["a"], "b": x["b"], "inner": inner, "more": {"g": x["g"], "h": x["h"]}, "n": rank}

    def live(self, rank: int) -> dict[str, Any]:
        state, rng = self.state(rank, self.ranks, 0.0), random.Random(self.seed * 10 + rank)
        for path in (("b",), ("more",), ("inner", "deep"), ("inner", "d"), ("more", "g")):
            if rng.random() < 0.25:
                place = state
                for key in path[:-1]:
                    place = place.get(key, {})
                place.pop(path[-1], None)
        if rng.random() < 0.2:
            state["inner"]["renamed"] = leaf("r", 0.0)
        return state


def take(path: str, old: list[Any], rank: int, size: int) -> Any:
    return old[rank % len(old)]


def outcome(root: Path, live: list[Any], request: dict[str, Any]) -> tuple[str, int]:
    """The kind of the error, and how much was read."""
    try:
        told = reports(root, live, **request)
    except DeeppartError as error:
        return type(error).__name__, 0
    return "", told[0][0].saved_bytes - told[0][0].loaded_bytes


def everything(ranks: Any, tables: Tables, *rest: Any) -> Tables:
    return tables


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(item, other[key]) for key, item in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("seeds", [range(first, first + 12) for first in (0, 12, 24, 36)], ids=lambda seeds: seeds[0])
def test_the_same_as_if_everything_had_been_read(memory: Path, tmp_path: Path, seeds: range) -> None:
    less, restored = 0, 0
    for seed in seeds:
        case = Random(seed)
        root = (memory if seed % 2 else tmp_path) / str(seed)
        states = [case.state(rank, case.saving) for rank in range(case.saving)]
        save(root, states, compression=case.rng.choice(["none", "zstd"]))
        live, whole = ([case.live(rank) for rank in range(case.ranks)] for _ in range(2))
        error, unread = outcome(root, live, case.request)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(apply, "without_unneeded", everything)
            expected, nothing = outcome(root, whole, case.request)
        assert (error, nothing) == (expected, 0), (seed, case.request)
        assert alike(dict(enumerate(live)), dict(enumerate(whole))), (seed, case.request)
        less, restored = less + (unread > 0), restored + (not error)
    assert restored > 4 and less > 2, (restored, less)


def test_a_plain_leaf_beside_shards_that_only_one_rank_has_a_place_for(memory: Path) -> None:
    """Seed 347: ranks did not agree on who is sent it, and waited for each other until the timeout."""
    case = Random(347)
    states = [case.state(rank, case.saving) for rank in range(case.saving)]
    save(memory, states, compression="zstd")  # what is raw ranks find in the memory of their node
    live = [case.live(rank) for rank in range(case.ranks)]
    assert [("deep" in each["inner"]) for each in live] == [False, False, True] and case.kind["e"] == "plain"
    assert outcome(memory, live, case.request)[0] == ""
    assert torch.equal(live[2]["inner"]["deep"]["e"], leaf("e"))


# --- which chunks are read --------------------------------------------------------------------------------------------


def tied_state(rank: int, ranks: int, scale: float) -> dict[str, Any]:
    x = (torch.arange(18.0).view(9, 2) + 1) * scale
    tied = x + 1
    return {"plain": x + 2, "sharded": rows(x + 3, rank, ranks), "first": tied, "second": tied}


@pytest.mark.parametrize("left_out", ["plain", "sharded", "second", None])
@pytest.mark.parametrize("saving", [1, 2])
def test_the_chunks_of_each_leaf(tmp_path: Path, saving: int, left_out: str | None) -> None:
    save(tmp_path, [tied_state(rank, saving, 1.0) for rank in range(saving)])
    opened = open_step(tmp_path)
    matched = opened.matched(tied_state(0, 1, 0.0))
    wanted = wanted_pieces(arrays_to_fill(matched).wanted)
    tables = fetch_spans(opened.ranks, opened.tables, wanted.of(ANY_PART), "fetching")
    numbers = {path[0]: number for number, path in enumerate(matched.target.structure.paths()) if path}
    if left_out is not None:
        matched.target.dropped |= {numbers[left_out]}
        wanted = wanted_pieces(arrays_to_fill(matched).wanted)
    found: dict[str, set[bool]] = {}
    for index in without_unneeded(opened.ranks, tables, wanted, "choosing").indexes:
        for chunk, is_unread in enumerate(index.is_unread.tolist()):
            (leaf,) = {piece.leaf for piece in index.pieces.of(chunk)}
            name = matched.saved.documents.structure.paths()[leaf][0]
            found.setdefault(name, set()).add(is_unread)
    names = {"plain", "sharded", "first"}
    assert found == {name: {name == left_out} for name in names}
