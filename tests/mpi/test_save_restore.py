"""Save on some ranks, restore on others: replicated and per-rank state, other world sizes, other nodes.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart

pytestmark = pytest.mark.mpi(min_size=4)


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"local_dir": str(directory / "local" / "{node}"), "node_size": 1, "timeout": 20.0}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **(defaults | settings))


def training_state(rank: int, steps: int) -> dict[str, Any]:
    """A model trained a little: parameters replicated, BatchNorm buffers, RNG and data position of each rank's own."""
    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 2000), torch.nn.BatchNorm1d(2000), torch.nn.Linear(2000, 7))
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 64) + torch.arange(4)[:, None]).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model[1].running_mean += torch.rand(2000, generator=generator)  # each rank sees other data
    return {
        "model": model,
        "optimizer": optimizer,
        "rng": generator.get_state(),
        "data": {"position": rank * 1000 + steps, "order": torch.randperm(50, generator=generator)},
        "step": steps,
        "moments": torch.full((300, 300), 0.5 * steps),
    }


def flat_bytes(state: Any) -> dict[str, Any]:
    from deeppart.state.flatten import flatten, readable

    flat = flatten(state)
    leaves = {readable(leaf.path): flat.data[leaf.index].detach().clone() for leaf in flat.arrays}
    return leaves | {readable(leaf.path): leaf.value for leaf in flat.values}


def same(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Paths that differ."""
    assert one.keys() == other.keys()
    differing = []
    for path, value in one.items():
        equal = torch.equal(value, other[path]) if isinstance(value, torch.Tensor) else value == other[path]
        if not equal:
            differing.append(path)
    return differing


PER_RANK = {"model/1.running_mean", "rng", "data/position", "data/order"}


def save(comm: Any, directory: Path, **settings: Any) -> tuple[dict[str, Any], Any]:
    state = training_state(comm.rank, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            pending = ck.checkpoint(state, step=3)
            pending.wait(timeout=200)
    notices = [str(w.message) for w in caught if issubclass(w.category, deeppart.PerRankNotice)]
    return flat_bytes(state), (pending.report.raw_bytes, pending.report.per_rank_bytes, notices)


def restore(
    comm: Any, directory: Path, per_rank: Any = "strict", **settings: Any
) -> tuple[int | None, dict[str, Any], Any]:
    state = training_state(comm.rank + 100, 0)  # other seeds, an optimizer that has not stepped
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
        step = ck.restore(state, per_rank=per_rank)
        return step, flat_bytes(state), ck.explanation


def cycle(path: str, old: list[Any], rank: int, size: int) -> Any:
    assert path in PER_RANK
    return old[rank % len(old)]


@pytest.fixture(scope="module")
def two_ranks(run_on: Any, new_shared_path: Any) -> tuple[Path, list[Any]]:
    """A checkpoint of two ranks, which the tests only read."""
    directory = new_shared_path()
    return directory, run_on(2, save, directory)


def test_every_rank_gets_its_own_back(run_on: Any, two_ranks: tuple[Path, list[Any]]) -> None:
    directory, saved = two_ranks
    notices = saved[0][1][2]
    assert len(notices) == 1 and all(path in notices[0] for path in PER_RANK)
    assert not saved[1][1][2], "one rank speaks for all"
    for rank, (step, found, explanation) in enumerate(run_on(2, restore, directory)):
        assert step == 3
        assert same(saved[rank][0], found) == []
        assert explanation == ("step 3: 2 of 2 parts local; saved by 2 ranks",)
    assert set(same(saved[0][0], saved[1][0])) == PER_RANK


def save_by_bytes(comm: Any, directory: Path) -> Any:
    return save(comm, directory, kappa=0.0)


def test_shares_balance_what_ranks_carry_already(run_on: Any, shared_path: Path) -> None:
    saved = run_on(3, save_by_bytes, shared_path)
    sizes = [raw for _, (raw, _, _) in saved]
    assert max(sizes) <= 1.05 * sum(sizes) / 3
    assert all(own >= 2000 * 4 for _, (_, own, _) in saved)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_restore_on_another_number_of_ranks(run_on: Any, two_ranks: tuple[Path, list[Any]], ranks: int) -> None:
    directory, saved = two_ranks
    for rank, (step, found, _) in enumerate(run_on(ranks, restore, directory, cycle)):
        assert step == 3
        assert same(saved[rank % 2][0], found) == []


def refusals(comm: Any, directory: Path) -> dict[str, Any]:
    """What three ranks meet when they restore what two saved."""
    rank = comm.rank
    state = training_state(rank, 0)
    before = flat_bytes(state)

    def mapping(path: str, old: Sequence[Any], new_rank: int, size: int) -> Any:
        if new_rank == 1:
            raise KeyError("the user's bug")
        return old[0]

    with deeppart.Checkpointer(config(directory), comm) as ck:
        with pytest.raises(deeppart.PerRankError) as strict:
            ck.restore(state)
        with pytest.raises(deeppart.DeeppartError) as failing:
            ck.restore(state, per_rank=mapping)
        changed = same(before, flat_bytes(state))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ck.restore(state, per_rank="drop")
        dropped = flat_bytes(state)
        ck.restore(state, per_rank="rank0")
    return {
        "strict": str(strict.value),
        "failing": str(failing.value),
        "changed": changed,
        "dropped": (before, dropped),
        "told": [str(each.message) for each in caught if each.category is deeppart.PerRankNotice],
        "of rank 0": flat_bytes(state),
    }


def test_per_rank_leaves_on_another_world_size(run_on: Any, two_ranks: tuple[Path, list[Any]]) -> None:
    directory, saved = two_ranks
    for rank, met in enumerate(run_on(3, refusals, directory)):
        assert "saved by 2" not in met["strict"] and all(path in met["strict"] for path in PER_RANK)
        assert "the user's bug" in met["failing"]
        assert met["changed"] == [], "nothing live is touched before an error"
        before, after = met["dropped"]
        assert set(same(saved[0][0], after)) == PER_RANK
        assert same({path: before[path] for path in PER_RANK}, {path: after[path] for path in PER_RANK}) == []
        assert len(met["told"]) == (rank == 0)
        assert all(path in text for text in met["told"] for path in PER_RANK)
        assert same(saved[0][0], met["of rank 0"]) == []


def test_lost_nodes_fall_back_to_copies_and_then_to_the_persistent_level(run_on: Any, shared_path: Path) -> None:
    saved = run_on(4, save, shared_path)
    for lost, explanation in (
        ("node2", "step 3: 3 of 4 parts local, 1 of 4 parts partner; saved by 4 ranks"),
        # a node and its partner; what node2 had lost has been rebuilt
        ("node[03]", "step 3: 2 of 4 parts local, 1 of 4 parts partner, 1 of 4 parts persistent; saved by 4 ranks"),
    ):
        for part in sorted((shared_path / "local").glob(f"{lost}/**/*.dpp")):
            part.unlink(missing_ok=True)  # all ranks run this line
        found = run_on(4, restore, shared_path)
        for rank in range(4):
            assert same(saved[rank][0], found[rank][1]) == []
        assert found[0][2][0] == explanation
        assert "rebuilding redundancy" in found[0][2][1]


def grouped(comm: Any, directory: Path, action: str, node_size: int) -> Any:
    return (
        save(comm, directory, node_size=node_size)
        if action == "save"
        else restore(comm, directory, node_size=node_size)
    )


def test_another_node_layout(run_on: Any, shared_path: Path) -> None:
    saved = run_on(4, grouped, shared_path, "save", 2)
    found = run_on(4, grouped, shared_path, "restore", 1)
    for rank in range(4):
        assert same(saved[rank][0], found[rank][1]) == []
    assert "local" in found[0][2][0]


def replicated(comm: Any, directory: Path) -> list[tuple[int, int]]:
    state = {"w": torch.arange(200_000, dtype=torch.float32), "n": 4}
    sizes = []
    for mode in ("all", "none"):
        with deeppart.Checkpointer(config(directory / mode, replicated=mode, kappa=0.0), comm) as ck:
            pending = ck.checkpoint(state, step=1)
            pending.wait(timeout=200)
        sizes.append((pending.report.raw_bytes, pending.report.per_rank_bytes))
    return sizes


def test_replicated_override(run_on: Any, shared_path: Path) -> None:
    assert run_on(2, replicated, shared_path) == [[(400_000, 0), (800_000, 800_000)]] * 2


def diverging(comm: Any, directory: Path) -> list[int]:
    """Leaves that begin equal and differ later, large and small, in a steady structure."""
    rank = comm.rank
    state: dict[str, Any] = {"large": torch.zeros(100_000), "small": torch.zeros(10), "value": 0}
    state["same"] = torch.ones(50_000)
    own = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
        warnings.simplefilter("ignore", deeppart.ReplicaDivergenceWarning)
        with deeppart.Checkpointer(config(directory), comm) as ck:
            for step in range(1, 5):
                if step == 2:
                    state["small"] += rank
                if step == 3:
                    state["large"] += rank
                    state["value"] = rank
                pending = ck.checkpoint(state, step=step)
                pending.wait(timeout=200)
                own.append(pending.report.per_rank_bytes)
            fresh: dict[str, Any] = {"large": torch.zeros(100_000), "small": torch.zeros(10), "value": 9}
            fresh["same"] = torch.zeros(50_000)
            ck.restore(fresh)
    assert torch.equal(fresh["large"], state["large"]) and torch.equal(fresh["small"], state["small"])
    assert fresh["value"] == rank and torch.equal(fresh["same"], state["same"])
    return own


def test_leaves_that_come_to_differ_are_noticed(run_on: Any, shared_path: Path) -> None:
    for own in run_on(3, diverging, shared_path):
        assert own == [0, 40, 400_040, 400_040]


def unequal_shapes(comm: Any, directory: Path) -> bool:
    rank = comm.rank
    shard = torch.full((rank + 1, 3), float(rank))
    state: dict[str, Any] = {"shard": shard, "w": torch.ones(1000), "text": "x" * rank}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
        with deeppart.Checkpointer(config(directory), comm) as ck:
            ck.checkpoint(state, step=1).wait(timeout=200)
            fresh: dict[str, Any] = {"shard": torch.zeros(rank + 1, 3), "w": torch.zeros(1000), "text": ""}
            ck.restore(fresh)
    return bool(torch.equal(fresh["shard"], state["shard"])) and fresh["text"] == state["text"]


def test_shapes_may_differ_between_ranks(run_on: Any, shared_path: Path) -> None:
    assert run_on(3, unequal_shapes, shared_path) == [True] * 3
    loaded = [deeppart.load(shared_path / "ckpt", rank=rank) for rank in range(3)]
    assert [tuple(state["shard"].shape) for state in loaded] == [(1, 3), (2, 3), (3, 3)]
    assert [state["text"] for state in loaded] == ["", "x", "xx"]


def key_order(comm: Any, directory: Path) -> bool:
    rank = comm.rank
    names = ["a", "b", "c", "d"]
    state = {name: torch.full((70_000,), float(place)) for place, name in enumerate(names)}
    if rank == 1:
        state = dict(reversed(state.items()))
    with deeppart.Checkpointer(config(directory), comm) as ck:
        pending = ck.checkpoint(state, step=1)
        pending.wait(timeout=200)
        fresh = {name: torch.zeros(70_000) for name in names}
        ck.restore(fresh)
    assert pending.report.per_rank_bytes == 0
    return all(torch.equal(fresh[name], state[name]) for name in names)


def test_dict_order_does_not_matter(run_on: Any, shared_path: Path) -> None:
    assert run_on(2, key_order, shared_path) == [True, True]
    assert list(deeppart.load(shared_path / "ckpt")) == ["a", "b", "c", "d"]


def tables(rank: int) -> dict[str, Any]:
    """Many rows that ranks share, others of which one row differs, and a configuration."""
    alike = [{"id": row, "loss": row / 7, "tags": ["a", f"t{row}"]} for row in range(300)]
    other = [[row, f"s{row}", None] for row in range(300)]
    other[200][0] = rank
    order = [{"a": row, "b": 1} if rank % 2 else {"b": 1, "a": row} for row in range(300)]
    return {
        "alike": alike,
        "other": other,
        "order": order,
        "longer": [(1, 2)] * (300 + rank),
        "counts": {word: [word, rank] for word in range(100 if rank else 300)},
        "config": {"rank": rank, "stages": [{"lr": 0.1, "seeds": [rank, 1]}] * 2},
        "split": [{"seed": rank, "id": row} for row in range(300)],
    }


def save_tables(comm: Any, directory: Path) -> list[str]:
    patterns = {"split/*/seed": "none", "*": "auto"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, replicated=patterns), comm) as ck:
            for step in (1, 2):
                ck.checkpoint(tables(comm.rank), step=step).wait()
    return [str(each.message) for each in caught if issubclass(each.category, deeppart.PerRankNotice)]


def restore_tables(comm: Any, directory: Path) -> Any:
    live: dict[str, Any] = tables(7)
    rows = live["other"][3], live["alike"][3], live["split"][3]
    with deeppart.Checkpointer(config(directory), comm) as ck, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ck.restore(live, per_rank="strict" if comm.size == 2 else "drop")
    kept = rows[0] is live["other"][3] and rows[1] is live["alike"][3] and rows[2] is live["split"][3]
    return live, kept, [str(each.message) for each in caught]


def test_tables_are_compared_as_wholes_and_small_containers_item_by_item(run_on: Any, shared_path: Path) -> None:
    (notices, _) = run_on(2, save_tables, shared_path)
    per_rank = {path for text in notices for path in text.partition("now on: ")[2].split(", ")}
    small = {"config/rank", "config/stages/0/seeds/0", "config/stages/1/seeds/0"}
    assert per_rank == small | {"counts", "longer", "other"}, notices
    for rank, (live, kept, told) in enumerate(run_on(2, restore_tables, shared_path)):
        assert live == tables(rank) and kept and not told
    for rank, (live, kept, told) in enumerate(run_on(3, restore_tables, shared_path)):
        assert len(told) == (rank == 0) and all("split/*/seed (300)" in text for text in told), told
        mine, expected = tables(7), tables(0)
        assert live["alike"] == expected["alike"] and live["order"] == expected["order"] and kept
        assert live["other"] == mine["other"], "each rank's own, and dropped"
        assert live["config"]["stages"][0]["lr"] == 0.1 and live["config"]["rank"] == 7
        assert [row["id"] for row in live["split"]] == list(range(300))


def own_tables(rank: int) -> dict[str, Any]:
    return {
        "table": {f"k{row}": 1000 * rank + row for row in range(300)},
        "rows": [{"id": row, "rank": rank} for row in range(300)],
        "square": torch.arange(9.0).reshape(3, 3) + 100 * rank,
        "numbers": list(range(rank, rank + 5)),
    }


def live_values(comm: Any, directory: Path) -> tuple[Any, Any]:
    """The function gives a new rank what it has itself: as it is, and in another order."""
    live = own_tables(7)
    turned = {**live, "rows": live["rows"][::-1], "square": live["square"].t()}

    def pick(path: str, old: Any, rank: int, ranks: int) -> Any:
        name, _, item = path.partition("/")
        mine = turned[name]
        return old[rank] if rank < len(old) else mine[int(item)] if item else mine

    expected = own_tables(comm.rank if comm.rank < 2 else 7)
    if comm.rank == 2:
        expected |= {"rows": expected["rows"][::-1], "square": expected["square"].t()}
    with deeppart.Checkpointer(config(directory), comm) as ck:
        ck.restore(live, per_rank=pick)
    return live, expected


def test_a_function_may_give_live_values(run_on: Any, shared_path: Path) -> None:
    """They are filled from themselves then."""
    with_tables = config(shared_path, replicated="none")

    def save(comm: Any) -> None:
        with deeppart.Checkpointer(with_tables, comm) as ck:
            ck.checkpoint(own_tables(comm.rank), 1).wait()

    run_on(2, save)
    for live, expected in run_on(3, live_values, shared_path):
        assert torch.equal(live.pop("square"), expected.pop("square"))
        assert live == expected


def recent(rank: int) -> dict[str, Any]:
    """As a cache that forgets what was used least recently: each rank has used others last."""
    used = OrderedDict((f"k{item}", item) for item in range(300))
    rows = [OrderedDict(a=row, b=1) for row in range(300)]
    for item in range(rank, 300, 7):
        used.move_to_end(f"k{item}")
        rows[item].move_to_end("a", last=rank > 0)
    return {"used": used, "rows": rows, "plain": {f"k{(item + rank) % 300}": 1 for item in range(300)}}


def test_the_order_of_ordered_tables_is_each_ranks_own(run_on: Any, shared_path: Path) -> None:
    """Of plain dicts in another order nothing differs for Python, and so they are one leaf for all."""

    def save(comm: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with deeppart.Checkpointer(config(shared_path), comm) as ck:
                ck.checkpoint(recent(comm.rank), 1).wait()
        return [str(each.message).partition("now on: ")[2] for each in caught]

    def restore(comm: Any) -> Any:
        live = recent(5)
        with deeppart.Checkpointer(config(shared_path), comm) as ck:
            ck.restore(live)
        return live

    (told,), _ = run_on(2, save)
    assert set(told.split(", ")) == {"used", "rows"}
    for rank, live in enumerate(run_on(2, restore)):
        assert live == recent(rank)
        assert list(live["used"]) == list(recent(rank)["used"])


def reads_of(comm: Any, directory: Path) -> list[tuple[int, str]]:
    """Part and path of every part file that this rank reads chunks of."""
    from deeppart.recovery import recover
    from deeppart.recovery.load_part import OpenedPart

    read: list[tuple[int, str]] = []

    def recording(source: Any, what: Any, attempt: Any, signing: Any) -> Any:
        read.append((what.part, what.source.path))
        return OpenedPart(source, what, attempt, signing)

    recover.OpenedPart = recording  # type: ignore[attr-defined, assignment]
    assert restore(comm, directory)[0] == 3
    return read


def test_each_part_is_read_once_per_job(run_on: Any, two_ranks: tuple[Path, list[Any]]) -> None:
    directory, _ = two_ranks
    results = run_on(2, reads_of, directory)
    assert [[part for part, _ in parts] for parts in results] == [[0], [1]]


def in_memory(comm: Any, directory: Path) -> tuple[bool, list[str]]:
    """Restore with the local level on tmpfs: its parts are mapped, not read."""
    state = training_state(comm.rank, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.PerRankNotice)
        with deeppart.Checkpointer(config(directory, local_dir=str(directory / "local")), comm) as ck:
            ck.checkpoint(state, step=1).wait(timeout=200)
            before = flat_bytes(state)
            fresh = training_state(comm.rank + 100, 0)
            ck.restore(fresh)
            mapped = ck._staging.nbytes
            damaged = max((directory / "local").rglob("*.dpp"))
            comm.barrier()
            if comm.rank == 0:
                with damaged.open("r+b") as file:
                    file.seek(5000)
                    byte = file.read(1)
                    file.seek(5000)
                    file.write(bytes([byte[0] ^ 1]))
            comm.barrier()
            again = training_state(comm.rank + 200, 0)
            ck.restore(again)
            assert same(before, flat_bytes(again)) == []
            assert any("digest of a chunk" in line for line in ck.explanation), ck.explanation
    return mapped > 0, same(before, flat_bytes(fresh))


def test_parts_on_tmpfs_are_used_where_they_lie(run_on: Any, shared_path: Path) -> None:
    from deeppart.storage.mapped import lies_in_memory

    memory = Path("/dev/shm")
    if not memory.is_dir() or not lies_in_memory(memory):
        pytest.skip("no tmpfs at /dev/shm")
    directory = memory / f"deeppart-test-{shared_path.name}-{os.getuid()}"
    try:
        results = run_on(3, in_memory, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert all(changed == [] for _, changed in results)
