"""What lies on nodes is read again in the background; what is damaged or gone is there again, and sound."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.part import FileSource, ParityReader, PartReader
from deeppart.repair import scrub
from deeppart.storage import PosixStore, take_stock
from deeppart.storage.node import stored_parity
from tests.mpi.on_nodes import config, wait_for_all
from tests.mpi.patience import patient_barrier

pytestmark = pytest.mark.mpi(min_size=4)


def state(rank: int) -> dict[str, Any]:
    return {"w": torch.rand(200_000, generator=torch.Generator().manual_seed(3)), "own": torch.full((99,), float(rank))}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a byte of a local part": ("node1/*/step-*/part-*", flip),
    "a byte of a copy": ("node2/*/partner/step-*/part-*", flip),
    "a byte of parity": ("node3/*/parity/step-*/parity-*", flip),
    "a truncated part": ("node0/*/step-*/part-*", lambda path: path.write_bytes(path.read_bytes()[:-100])),
    "parity that is gone": ("node0/*/parity/step-*/parity-*", Path.unlink),
    "a copy that is gone": ("node1/*/partner/step-*/part-*", Path.unlink),
}


def is_sound(path: Path) -> bool:
    try:
        with FileSource(path) as source:
            if path.suffix == ".dpy":
                stored_parity(PosixStore(path.parent), path.name)
                ParityReader(source, where="").verify()
            else:
                PartReader(source, where="").verify()
    except deeppart.DeeppartError:
        return False
    return True


def scrubbed(comm: Any, directory: Path) -> tuple[list[str], list[str], int]:
    """Damage one file after the other; returns those that did not come back, and what the caller was told."""
    settings = config(directory, every={"parity": 1, "persistent": 0}, parity_group=4, scrub_bandwidth=1e9)
    lost = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(settings, comm) as ck:
            wait_for_all(ck.checkpoint(state(comm.rank), 1))
            for number, (name, (pattern, damage)) in enumerate(DAMAGE.items(), start=1):
                comm.Barrier()
                (path,) = (directory / "local").glob(pattern)
                comm.Barrier()
                if comm.rank == 0:
                    damage(path)
                comm.Barrier()
                deadline = time.monotonic() + 150
                while ck.scrubbed.repaired < number and time.monotonic() < deadline:
                    time.sleep(0.02)
                lost += [] if path.exists() and is_sound(path) else [name]
            comm.Barrier()
            report = ck.scrubbed
            ck.checkpoint(state(comm.rank), 2)
    assert report.cycles > 0 and report.nbytes > 0
    return (
        lost,
        [str(each.message) for each in caught if issubclass(each.category, deeppart.errors.ScrubNotice)],
        report.repaired,
    )


@pytest.mark.timeout(110)
def test_damage_is_found_and_repaired(run_on: Any, shared_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "SLICE_S", 0.05)
    results = run_on(4, scrubbed, shared_path)
    for rank, (lost, told, repaired) in enumerate(results):
        assert lost == []
        assert repaired >= len(DAMAGE)
        assert (len(told) >= len(DAMAGE)) if rank == 0 else told == [], told
    assert all("repaired from the other copies" in text for text in results[0][1])
    lineage = next((shared_path / "local" / "node0").iterdir()).name
    assert not any(take_stock(shared_path / "local" / f"node{node}", lineage, None).notes for node in range(4))


def one_thread_dies(comm: Any, directory: Path) -> tuple[int | None, list[str]]:
    """The scrubbing thread of one rank ends by itself; the job closes all the same, and another one begins."""
    settings = config(directory, every={"persistent": 0}, scrub_bandwidth=1e9, timeout=60.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(settings, comm) as ck:
            scrubber = ck._background.scrubber
            assert scrubber is not None
            if comm.rank == 1:
                scrubber._check = lambda path: 1 / 0  # type: ignore[assignment, method-assign]
            wait_for_all(ck.checkpoint(state(comm.rank), 1))
            deadline = time.monotonic() + 150
            while comm.rank == 1 and scrubber._thread.is_alive() and time.monotonic() < deadline:
                time.sleep(0.02)
            patient_barrier(comm)
            ck.checkpoint(state(comm.rank), 2)  # tells what there is to tell
    live = state(99)
    with deeppart.Checkpointer(settings, comm) as ck:
        step = ck.restore(live, per_rank="drop")
    return step, [str(each.message) for each in caught if issubclass(each.category, deeppart.errors.ScrubNotice)]


def test_a_thread_that_ends_by_itself_is_told_of_and_hinders_nobody(run_on: Any, shared_path: Path) -> None:
    results = run_on(4, one_thread_dies, shared_path)
    assert [step for step, _ in results] == [2] * 4
    assert any("scrubbing has ended: division by zero" in text for text in results[1][1]), results[1][1]
