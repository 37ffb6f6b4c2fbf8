"""The planner for DCP: states that are hard to divide, saved as several ranks would, loaded by DCP; cached plans."""

from __future__ import annotations

import contextlib
import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, SavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex

from deeppart.errors import ConfigError, ReplicaDivergenceWarning, StateError
from deeppart.interop.dcp import BalancedSavePlanner, load
from deeppart.interop.dcp import planner as planner_module
from deeppart.interop.dcp.planner import GLOBAL, OWN, OwnPlans
from tests.unit.interop.dcp.stepping import save_as_ranks
from tests.unit.sharded_states import same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


class Own(torch.Tensor):
    """A subclass that says nothing of how it is saved."""


class Anything:
    """Of no kind that ``weights_only`` knows; equal to others of its kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Anything)

    __hash__ = None  # type: ignore[assignment]


def hard() -> dict[Any, Any]:
    torch.manual_seed(2)
    base = torch.randn(200, 60)
    tied = torch.randn(40, 50)
    return {
        "transposed": torch.randn(70, 90).T,
        "every other row": base[::2],
        "columns": base[:, 10:50],
        "at an offset": torch.randn(9000).as_strided((80, 50), (50, 1), 1000),
        "expanded rows": torch.randn(1, 50).expand(60, 50),
        "expanded columns": torch.randn(300, 1).expand(300, 20),
        "channels last": torch.randn(4, 6, 10, 10).to(memory_format=torch.channels_last),
        "tied": [tied, {"other": tied, "view": tied[10:]}],
        "trained": torch.nn.Parameter(torch.randn(100, 30)),
        "empty": torch.zeros(0, 7),
        "hollow": torch.zeros(5, 0, 3),
        "number": torch.tensor(2.5),
        "bool": torch.rand(3000, 5) > 0.5,
        "complex": torch.randn(500, 4, dtype=torch.complex64),
        "conjugate": torch.randn(40, 30, dtype=torch.complex64).conj(),
        "negative": torch.randn(40, 30, dtype=torch.complex64).conj().imag,
        "bf16": torch.randn(3, 3000).bfloat16(),
        "float8": torch.randn(100, 100).to(torch.float8_e4m3fn),
        "uint16": torch.arange(9000, dtype=torch.int32).to(torch.uint16).view(90, 100),
        "int": torch.randint(-(2**62), 2**62, (50, 20)),
        "one row": torch.randn(1, 5000),
        "huge rows": torch.randn(2, 30000),
        "deep": torch.randn(3, 1, 5, 7, 11),
        "nan": torch.full((2000,), float("nan")),
        "values": {"big": 2**200, "text": "ä" * 5000, "bytes": b"\0" * 3000, "none": None, "pair": (1, 2.5)},
        "object": Anything(),
        7: {1: torch.randn(2000), (2, 3): 5},
    }


def target_of(state: Any) -> Any:
    """The same with other contents; dense."""
    if isinstance(state, torch.Tensor):
        return torch.zeros(state.shape, dtype=state.dtype)
    if isinstance(state, dict):
        return {str(key): target_of(item) for key, item in state.items()}
    return [target_of(item) for item in state] if isinstance(state, list) else None


def check(found: Any, state: Any, path: str = "") -> None:
    if isinstance(state, dict):
        for key, item in state.items():
            check(found[str(key)], item, f"{path}/{key}")
    elif isinstance(state, list):
        for place, item in enumerate(state):
            check(found[place], item, f"{path}/{place}")
    elif isinstance(state, torch.Tensor):
        dense = state.detach().resolve_conj().resolve_neg().contiguous()
        assert found.shape == dense.shape and found.dtype == dense.dtype, path
        assert torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (found, dense))), path
    else:
        assert found == state, path


def evenness(sizes: list[int]) -> float:
    return max(sizes) * len(sizes) / sum(sizes)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("files", ["rank", "node"])
def test_hard_states_come_back_by_dcp_alone(tmp_path: Path, ranks: int, files: Any) -> None:
    state = hard()
    sizes = save_as_ranks([state] * ranks, tmp_path, lambda rank: BalancedSavePlanner(files=files, node=str(rank // 2)))
    writers = [size for size in sizes if size]
    assert len(writers) == (ranks if files == "rank" else (ranks + 1) // 2)
    assert max(writers) < 1.02 * sum(writers) / len(writers) + 4096
    found = target_of(state)
    dcp.load(found, storage_reader=FileSystemReader(tmp_path))
    check(found, state)
    del state["object"]
    check(load(tmp_path, [str(key) for key in state]), state)


@pytest.mark.parametrize(
    ("shape", "ranks"), [((3, 100_000), 2), ((2, 100_000), 5), ((1, 1, 90_000), 4), ((7, 3, 9000), 4), ((100_003,), 6)]
)
def test_one_tensor_alone_is_even_whatever_its_rows_are(tmp_path: Path, shape: tuple[int, ...], ranks: int) -> None:
    state = {"w": torch.randn(shape)}
    assert evenness(save_as_ranks([state] * ranks, tmp_path, lambda rank: BalancedSavePlanner())) < 1.03
    check(load(tmp_path), state)


def test_without_flattening(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.randn(1000, 10), "inner": {"x": 5, "t": torch.ones(3)}}
    sizes = save_as_ranks([state] * 2, tmp_path, lambda rank: BalancedSavePlanner(flatten_state_dict=False))
    assert evenness(sizes) < 1.1
    found: dict[str, Any] = {"w": torch.zeros(1000, 10), "inner": None}
    load_planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(found, checkpoint_id=tmp_path, planner=load_planner)
    assert torch.equal(found["w"], state["w"]) and same(found["inner"], state["inner"])


def test_ranks_with_different_keys_or_none_at_all(tmp_path: Path) -> None:
    shared = {"both": torch.randn(3000, 9)}
    states: list[dict[str, Any]] = [
        {**shared, "first": torch.randn(10_000)},
        {},
        {**shared, "value": "x" * 100},
        {"last": torch.randn(5000), "value": "x" * 100},
    ]
    sizes = save_as_ranks(states, tmp_path, lambda rank: BalancedSavePlanner())
    assert sizes[1] == 0 and sizes[2] > sizes[0] - 40_000  # the first has less of what both could write
    found = load(tmp_path)
    assert same(found, {**states[0], "last": states[3]["last"], "value": "x" * 100})


@pytest.mark.parametrize("ranks", [1, 3])
def test_nothing_to_save(tmp_path: Path, ranks: int) -> None:
    save_as_ranks([{}] * ranks, tmp_path, lambda rank: BalancedSavePlanner())
    assert load(tmp_path) == {}


def test_values_alone_are_shared_out_by_their_bytes(tmp_path: Path) -> None:
    state = {"long": "x" * 300_000, **{f"short {n}": "y" * 30_000 for n in range(10)}}
    sizes = save_as_ranks([state] * 2, tmp_path, lambda rank: BalancedSavePlanner())
    assert evenness(sizes) < 1.1
    assert load(tmp_path) == state


def test_saved_whole_by_the_lowest_rank_if_asked_for(tmp_path: Path) -> None:
    sizes = save_as_ranks([hard()] * 3, tmp_path, lambda rank: BalancedSavePlanner(dedup_save_to_lowest_rank=True))
    assert sizes[0] > 0 and sizes[1:] == [0, 0]


def test_tensors_that_differ_are_not_mixed(tmp_path: Path) -> None:
    states = [
        {"same": torch.ones(5000), "rng": torch.full((5056,), rank, dtype=torch.uint8), "z": torch.ones(2000 + rank)}
        for rank in range(3)
    ]
    with pytest.warns(ReplicaDivergenceWarning, match=r"rng \(of rank 1\), z \(of rank 1\)"):
        save_as_ranks(states, tmp_path, lambda rank: BalancedSavePlanner())
    found = load(tmp_path)
    assert same(found, states[0])


def test_subclasses_are_not_cut(tmp_path: Path) -> None:
    state = {"own": torch.randn(15_000).as_subclass(Own), "w": torch.randn(4000)}
    save_as_ranks([state] * 2, tmp_path, lambda rank: BalancedSavePlanner())
    metadata = FileSystemReader(tmp_path).read_metadata().state_dict_metadata
    chunks = {name: len(found.chunks) for name, found in metadata.items()}  # type: ignore[union-attr]
    assert chunks == {"own": 1, "w": 1}


def test_a_live_tensor_is_seen_as_it_is_when_it_is_written(tmp_path: Path) -> None:
    """Nothing is copied when the plan is made."""
    state = {"w": torch.zeros(10_000)}
    planner = BalancedSavePlanner()
    writer = FileSystemWriter(tmp_path, sync_files=False)
    planner.set_up_planner(state, writer.storage_meta(), True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    (final,), metadata = planner.create_global_plan([plan])
    (final,) = writer.prepare_global_plan([final])
    state["w"].fill_(3)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(final), planner).value()])
    assert load(tmp_path)["w"].unique().tolist() == [3.0]


def test_pieces_are_written_from_where_they_lie(tmp_path: Path) -> None:
    """DCP's writer copies what is a view of something larger."""
    state = {"w": torch.randn(4000, 50), "t": torch.randn(50, 4000).T}
    found: dict[str, list[torch.Tensor]] = {"w": [], "t": []}

    class Watched(BalancedSavePlanner):
        def lookup_object(self, index: MetadataIndex) -> Any:
            found[index.fqn].append(super().lookup_object(index))
            return found[index.fqn][-1]

    save_as_ranks([state] * 3, tmp_path, lambda rank: Watched())
    check(load(tmp_path), state)
    pieces = [piece for piece in found["w"] if piece.shape != (4000, 50)]
    assert pieces and all(piece.untyped_storage().nbytes() == piece.nbytes for piece in pieces)
    begin = state["w"].data_ptr()
    assert all(begin <= piece.data_ptr() < begin + state["w"].nbytes for piece in pieces)


def test_impossible_settings() -> None:
    with pytest.raises(ConfigError, match="files"):
        BalancedSavePlanner(files="host")  # type: ignore[arg-type]


@pytest.mark.parametrize("no_dist", [False, True])
def test_in_one_process(tmp_path: Path, no_dist: bool) -> None:
    state = hard()
    dcp.save(state, checkpoint_id=tmp_path, planner=BalancedSavePlanner(), no_dist=no_dist)
    found = target_of(state)
    dcp.load(found, checkpoint_id=tmp_path)
    check(found, state)


def test_many_files_and_threads(tmp_path: Path) -> None:
    state = hard()
    writer = FileSystemWriter(tmp_path, single_file_per_rank=False, thread_count=3, sync_files=False)
    dcp.save(state, storage_writer=writer, planner=BalancedSavePlanner())
    del state["object"]
    check(load(tmp_path, [str(key) for key in state]), state)


# --- plans that are not sent again: of states in turn, of states that change, of ranks of which only some change ---


@pytest.fixture(autouse=True)
def empty_caches() -> None:
    for cache in (OWN, GLOBAL):
        cache.clear()


def caching(rank: int) -> SavePlanner:
    return BalancedSavePlanner(enable_plan_caching=True)


def saved(states: list[dict[str, Any]], path: Path) -> list[int]:
    """Save, see that it comes back; returns how many items went to and fro, of each rank."""
    sent: list[int] = []
    save_as_ranks(states, path, caching, sent)
    expected = {key: item for state in reversed(states) for key, item in state.items()}
    assert same(load(path), expected)
    return sent


def test_states_in_turn_do_not_displace_each_other(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = [{"a": torch.randn(5000), "n": 1}, {"b": torch.randn(300, 40)}]
    for turn in range(3):
        for number, state in enumerate(states):
            sent = saved([state], tmp_path / f"{turn} {number}")
            assert (sent == [0]) == (turn > 0)


def test_a_state_that_changes_is_planned_again(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"w": torch.randn(5000)},
        {"w": torch.randn(6000)},
        {"w": torch.randn(6000).double()},
        {"w": torch.randn(60, 100).double()},
        {"w": torch.randn(60, 100).double(), "v": 1},
        {"w": {"v": torch.randn(5000)}},
        {"w.v": torch.randn(5000)},
    ]
    for number, state in enumerate(changes):
        assert saved([state], tmp_path / str(number)) != [0]
    for number, state in enumerate(changes):
        assert saved([state], tmp_path / f"again {number}") == [0]


def test_contents_are_those_of_the_save(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.zeros(5000), "n": 0}
    for number in range(3):
        state["w"].fill_(number)
        state["n"] = number
        saved([copy.deepcopy(state)], tmp_path / str(number))


def test_a_coordinator_that_does_not_know_says_so_once(tmp_path: Path) -> None:
    """Another rank coordinated the save before."""
    state = {"w": torch.ones(2000)}
    saved([state], tmp_path / "a")
    GLOBAL.clear()
    with pytest.raises(StateError, match="does not know"):
        saved([state], tmp_path / "b")
    assert saved([state], tmp_path / "c") != [0]
    assert saved([state], tmp_path / "d") == [0]


class Ranks:
    """Processes, each with plans of its own; some of them save, as ranks of a group, the first as coordinator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self._patch = monkeypatch
        self.plans = [OwnPlans() for _ in range(count)]

    def save(self, states: dict[int, dict[str, Any]], path: Path, fails_on: int | None = None) -> None:
        members, patch = list(states), self._patch

        class Planner(BalancedSavePlanner):
            def __init__(self, rank: int) -> None:
                super().__init__(enable_plan_caching=True)
                self.own = ranks.plans[members[rank]]
                self.dies = members[rank] == fails_on

            def create_local_plan(self) -> Any:
                patch.setattr(planner_module, "OWN", self.own)
                return super().create_local_plan()

            def finish_plan(self, new_plan: Any) -> Any:
                if self.dies:
                    raise ConnectionError("it was lost")
                patch.setattr(planner_module, "OWN", self.own)
                return super().finish_plan(new_plan)

        ranks = self
        save_as_ranks(list(states.values()), path, Planner)
        expected = {key: item for state in reversed(list(states.values())) for key, item in state.items()}
        assert same(load(path), expected)


def test_what_a_rank_does_not_send_is_known_whatever_was_saved_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random states of three ranks, of which some change; some saves fail on one of them."""
    for seed in range(6):
        rng, ranks = random.Random(seed), Ranks(monkeypatch, 3)
        GLOBAL.clear()
        for turn in range(30):
            states = {
                rank: {"s": torch.ones(5), f"{rank} {(n := rng.randrange(3))}": torch.full((n + 1,), float(n))}
                for rank in range(3)
            }
            fails_on = rng.choice((0, 1, 2)) if rng.random() < 0.15 else None
            with contextlib.suppress(ConnectionError):
                ranks.save(states, tmp_path / f"{seed} {turn}", fails_on)


def test_a_process_that_is_another_rank_in_another_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not sent again is its own, and not that of whoever was that rank before."""
    ranks = Ranks(monkeypatch, 3)
    shared = {"s": torch.ones(3000)}
    states = {0: shared, 1: shared, 2: {**shared, "only": torch.full((2000,), 7.0)}}
    ranks.save(states, tmp_path / "all")
    ranks.save({0: states[0], 2: states[2]}, tmp_path / "two")
    ranks.save(states, tmp_path / "all again")
