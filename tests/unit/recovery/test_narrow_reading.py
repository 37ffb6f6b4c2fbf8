"""Chunks that hold nothing that is asked for are not read; what is restored is the same as if they had been."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.comm import Comm
from deeppart.errors import DeeppartError, RestoreError
from deeppart.model import RestoreReport
from deeppart.part import FileSource, PartReader
from deeppart.plan.restart import Read, Source
from deeppart.recovery import NarrowReading
from deeppart.recovery.parts import OpenedPart
from deeppart.state.capture import layout
from deeppart.state.pieces import PartPieces
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


def test_another_name_of_what_is_left_out_has_its_bytes(tmp_path: Path) -> None:
    tied = leaf("tied")
    save(tmp_path, [{"first": {"w": tied, "x": leaf("x")}, "second": {"w": tied, "rows": tied[2:5]}}])
    live = {"second": {"w": leaf("w", 0.0)}}
    ((report, _),) = reports(tmp_path, [live], keys="second/w")
    assert torch.equal(live["second"]["w"], tied) and report.loaded_bytes == 72


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shards_of_a_model_alone(tmp_path: Path, ranks: int) -> None:
    def state(rank: int, count: int, scale: float) -> dict[str, Any]:
        return {part: {name: rows(leaf(name, scale), rank, count) for name in "ab"} for part in ("model", "optimizer")}

    save(tmp_path, [state(rank, 2, 1.0) for rank in range(2)])
    live = [{"model": state(rank, ranks, 0.0)["model"]} for rank in range(ranks)]
    for report, _ in reports(tmp_path, live):
        assert (report.loaded_bytes, report.saved_bytes) == (2 * 72, 4 * 72)
    assert all(torch.equal(each["model"]["b"], rows(leaf("b"), rank, ranks)) for rank, each in enumerate(live))


def opened(root: Path) -> tuple[OpenedPart, FileSource]:
    (path,) = root.rglob("part-*")
    file = FileSource(path)
    reader = PartReader(file, where=str(path))
    source = Source("persistent", str(path), (0,), file.size, reader.index_digest)
    return OpenedPart(file, Read(0, 0, source), reader.attempt, None), file


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("where", ["tmp_path", "memory"])
def test_a_part_of_which_some_is_loaded(request: pytest.FixtureRequest, where: str, compression: str) -> None:
    """It takes memory for that alone, and can still give the whole file, checked, to who rebuilds a copy of it."""
    root = request.getfixturevalue(where)
    save(root, [model()], compression=compression)
    part, file = opened(root)
    chosen = np.arange(len(part.reader.chunks)) % 3 == 1
    whole, needed = part.room_bytes(), part.room_bytes(chosen)
    assert needed == (int(part.reader.chunks["raw_length"][chosen].sum()) if whole else 0)
    loaded = part.load(np.empty(needed, dtype=np.uint8), 2, chosen)
    for index in np.flatnonzero(chosen).tolist():
        loaded.reader.check_chunk(index, loaded.chunk(index).data) if compression == "none" else None
        assert len(loaded.chunk(index)) == part.reader.chunks["raw_length"][index]
    assert b"".join(bytes(each) for each in loaded.pieces()) == Path(file.path).read_bytes()
    assert loaded.problem() is None
    file.close()


def test_chunks_of_leaves_that_begin_and_end_within_them(tmp_path: Path) -> None:
    """By hand, row for row, against the shorter way."""
    save(
        tmp_path,
        [{"a": torch.ones(3), "b": torch.ones(40), "c": torch.ones(5), "d": torch.ones(0), "e": torch.ones(9)}],
    )
    part, file = opened(tmp_path)
    reader = part.reader
    for asked in (np.array([bits >> n & 1 for n in range(5)], dtype=np.bool_) for bits in range(32)):
        expected = [False] * len(reader.chunks)
        for row in reader.spans:
            for index in range(len(reader.chunks)):
                begin, end = map(int, reader.raw_starts[index : index + 2])
                overlap = min(end, int(row["raw_offset"] + row["length"])) - max(begin, int(row["raw_offset"]))
                expected[index] |= bool(asked[row["leaf"]]) and overlap > 0
        assert PartPieces(reader.spans, reader.raw_starts).chunks_with(asked[reader.spans["leaf"]]).tolist() == expected
    file.close()


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


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(item, other[key]) for key, item in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("seeds", [range(first, first + 20) for first in (0, 20, 40, 60)], ids=lambda seeds: seeds[0])
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
            patch.setattr(NarrowReading, "may_choose", False)
            expected, nothing = outcome(root, whole, case.request)
        assert (error, nothing) == (expected, 0), (seed, case.request)
        assert alike(dict(enumerate(live)), dict(enumerate(whole))), (seed, case.request)
        less, restored = less + (unread > 0), restored + (not error)
    assert restored > 7 and less > 3, (restored, less)


def test_a_plain_leaf_beside_shards_that_only_one_rank_has_a_place_for(memory: Path) -> None:
    """Seed 347: ranks did not agree on who is sent it, and waited for each other until the timeout."""
    case = Random(347)
    states = [case.state(rank, case.saving) for rank in range(case.saving)]
    save(memory, states, compression="zstd")  # what is raw ranks find in the memory of their node
    live = [case.live(rank) for rank in range(case.ranks)]
    assert [("deep" in each["inner"]) for each in live] == [False, False, True] and case.kind["e"] == "plain"
    assert outcome(memory, live, case.request) == ("", 0)
    assert torch.equal(live[2]["inner"]["deep"]["e"], leaf("e"))
