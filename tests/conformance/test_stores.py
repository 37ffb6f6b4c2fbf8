"""Every store passes the suite; and a persistent level needs no more than a store."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart import access
from deeppart.comm import Comm
from deeppart.storage import LINEAGE_NAME, PersistentLevel, PosixStore, Store, committed_steps, list_steps
from tests.conformance.levels import LEVEL_CHECKS, Level
from tests.conformance.stores import STORE_CHECKS
from tests.memory_store import MemoryStore
from tests.states import difference
from tests.unit.sharded_states import checkpointer, on_ranks

STORES: dict[str, Callable[[Path], Store]] = {
    "directory": PosixStore,
    "directory with a root": lambda directory: PosixStore(access.Root(directory, access.Rules()).path, direct=True),
    "memory": lambda _: MemoryStore(),
}


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", STORES)
def test_store(name: str, check: Callable[[Store], None], tmp_path: Path) -> None:
    check(STORES[name](tmp_path))


@pytest.mark.parametrize("key", ["/etc/passwd", "../secret", "step/../../secret"])
def test_no_key_leads_out_of_a_directory(key: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"of others")
    store = PosixStore(tmp_path / "store")
    for use in (store.open, store.stat, store.writer, lambda key: store.get(key, 100)):
        with pytest.raises(ValueError, match="is no key"):
            use(key)


def with_lineage() -> MemoryStore:
    store = MemoryStore()
    store.put_new(LINEAGE_NAME, b"{}")
    return store


@pytest.mark.parametrize("check", LEVEL_CHECKS, ids=lambda check: check.__name__)
def test_a_persistent_level_in_memory(check: Callable[[Level], None]) -> None:
    check(PersistentLevel(with_lineage()))


def state(step: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(step)
    return {"w": torch.randn(300_000, generator=generator), "frozen": torch.zeros(200_000), "step": step}


def committed(store: MemoryStore) -> list[int]:
    return [key.step for key in committed_steps(store)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """That of the persistent level of all that follow; the owner's lock stays a file."""
    found = with_lineage()
    monkeypatch.setattr("deeppart.session.open.open_store", lambda directory, limit: found)
    return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("local", [True, False], ids=["from the local part", "from staging memory"])
def test_a_job_whose_persistent_level_is_no_directory(
    store: MemoryStore, tmp_path: Path, compression: str, local: bool
) -> None:
    directory, node = tmp_path / "ckpt", str(tmp_path / "node") if local else None
    config = deeppart.Config(
        persistent_dir=str(directory), local_dir=node, keep={"persistent": 2}, compression=compression
    )
    with deeppart.Checkpointer(config) as ck:
        assert ck.restore(state(0)) is None
        for step in range(1, 5):
            ck.checkpoint(state(step), step).wait("persistent", 120)
    assert committed(store) == [3, 4] and list_steps(PosixStore(directory)) == []
    # Zeros are worth no base once they are compressed; otherwise both refer to step 1, of which the part is left.
    assert [key.step for key in list_steps(store)] == ([1, 3, 4] if compression == "none" else [3, 4])
    if node is not None:
        shutil.rmtree(node)
    live = state(0)
    with deeppart.Checkpointer(config) as ck:
        assert ck.restore(live) == 4
        ck.checkpoint(state(5), 5).wait("persistent", 120)
    assert difference(state(4), live) is None
    assert committed(store) == [4, 5]


def test_damage_in_a_store_is_noticed(store: MemoryStore, tmp_path: Path) -> None:
    config = deeppart.Config(persistent_dir=str(tmp_path), compression="none")
    with deeppart.Checkpointer(config) as ck:
        for step in (1, 2):
            ck.checkpoint(state(step), step).wait("persistent", 120)
    newest = next(key for key in store.objects if "/part-" in key and key.startswith("step-000000000002"))
    data, written = store.objects[newest]
    store.objects[newest] = data[:100_000] + bytes([data[100_000] ^ 1]) + data[100_001:], written
    live = state(0)
    with warnings.catch_warnings(), deeppart.Checkpointer(config) as ck:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        assert ck.restore(live) == 1
    assert difference(state(1), live) is None


def test_what_nodes_have_lost_is_written_again_from_a_store(store: MemoryStore, tmp_path: Path) -> None:
    """A restore of encoded parts from the store heals the nodes, and the next one needs no store."""
    settings: dict[str, Any] = {"node_size": 1, "compression": "zstd", "local_dir": str(tmp_path / "l" / "{node}")}

    def saved(comm: Comm) -> None:
        with checkpointer(tmp_path / "p", comm, **settings) as ck:
            ck.checkpoint(state(7), 7).wait(timeout=120)

    def restored(comm: Comm) -> tuple[int | None, str | None, str]:
        live = state(0)
        with checkpointer(tmp_path / "p", comm, **settings) as ck:
            return ck.restore(live), difference(state(7), live), str(ck.explanation)

    on_ranks(2, saved)
    shutil.rmtree(tmp_path / "l")
    for step, differs, explanation in on_ranks(2, restored):
        assert (step, differs) == (7, None) and "persistent" in explanation
    for key in [key for key in store.objects if key != LINEAGE_NAME]:
        del store.objects[key]
    for step, differs, explanation in on_ranks(2, restored):
        assert (step, differs) == (7, None) and "local" in explanation
