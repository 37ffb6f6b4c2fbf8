"""Parts that refer to older files, on several nodes: copied, lost, healed, scrubbed, and restored on other ranks.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.part import parse_base_file_name
from deeppart.repair import scrub
from tests.mpi.incremental_states import at_once, config, lose, remove, restored, save

pytestmark = pytest.mark.mpi(min_size=4)


def bases(directory: Path) -> list[Path]:
    found = [Path(place, name) for place, _, names in os.walk(directory) for name in names]
    return [path for path in found if parse_base_file_name(path.name) and path.parent.name.startswith("step-")]


def with_parity(comm: Any, directory: Path) -> tuple[list[Any], Any]:
    settings = {"every": {"persistent": 0, "partner": 0, "parity": 2}, "parity_group": 4, "keep": {"local": 0}}
    with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
        reports = [save(checkpointer, step)["local"] for step in range(1, 4)]
    at_once(comm, lose, directory, 2)
    return [(report.nbytes, report.referenced_bytes) for report in reports], restored(comm, directory, **settings)


@pytest.mark.timeout(110)
def test_parts_that_are_encoded_are_whole(run_on: Any, shared_path: Path) -> None:
    for reports, (step, good, explanation) in run_on(4, with_parity, shared_path):
        assert [bool(referenced) for _, referenced in reports] == [False, True, False]
        assert (step, good) == (3, True) and "1 of 4 parts rebuilt from parity" in explanation


def other_ranks(comm: Any, directory: Path) -> list[Any]:
    """From the persistent level, with bases of its own, and put on the nodes again from there."""
    settings: dict[str, Any] = {"every": {}}
    with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
        save(checkpointer, 1, 2)
    at_once(comm, shutil.rmtree, directory / "local")
    results = [restored(comm, directory, **settings)]
    at_once(comm, remove, directory / "ckpt", "step-000000000002-*")
    results.append(restored(comm, directory, **settings))
    fewer = comm.Split(int(comm.rank >= 3), comm.rank)
    if comm.rank < 3:
        results.append(restored(fewer, directory, **settings))
    fewer.Free()
    return results


@pytest.mark.timeout(110)
def test_from_the_persistent_level_and_back(run_on: Any, shared_path: Path) -> None:
    for rank, results in enumerate(run_on(4, other_ranks, shared_path)):
        assert [(step, good) for step, good, _ in results] == [(2, True)] * (3 if rank < 3 else 2)
        assert "4 of 4 parts persistent" in results[0][2] and "4 of 4 parts local" in results[1][2]


def to_nodes_with_parity(comm: Any, directory: Path) -> tuple[int | None, bool, str]:
    """The step comes from the persistent level, and refers there: it is put on the nodes, but has no parity yet."""
    with deeppart.Checkpointer(config(directory, every={"local": 0}), comm) as checkpointer:
        save(checkpointer, 1, 2)
    settings = {"every": {"partner": 0, "parity": 1}, "parity_group": 4}
    found = restored(comm, directory, **settings)
    at_once(comm, remove, directory / "ckpt", "step-000000000002-*")
    assert restored(comm, directory, **settings)[:2] == (2, True)
    return found


@pytest.mark.timeout(110)
def test_parity_of_what_refers_is_not_rebuilt_and_that_is_said(run_on: Any, shared_path: Path) -> None:
    for step, good, explanation in run_on(4, to_nodes_with_parity, shared_path):
        assert (step, good) == (2, True) and "its parity is not rebuilt: its parts refer to older files" in explanation
        assert "4 parts to storage" in explanation


def scrubbed(comm: Any, directory: Path) -> tuple[bool, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, scrub_bandwidth=1e9), comm) as checkpointer:
            save(checkpointer, 1, 2)
            (base,) = (path for path in bases(directory / "local" / "node1") if "partner" not in path.parts)
            good = base.read_bytes()

            def flip() -> None:
                with base.open("r+b") as file:
                    file.seek(1_000_000)
                    file.write(bytes([good[1_000_000] ^ 1]))

            at_once(comm, flip)
            deadline = time.monotonic() + 20
            while checkpointer.scrubbed.repaired < 1 and time.monotonic() < deadline:
                time.sleep(0.02)
            comm.Barrier()
            same = base.read_bytes() == good
            save(checkpointer, 3)
    return same, [str(each.message) for each in caught if issubclass(each.category, deeppart.errors.ScrubNotice)]


@pytest.mark.timeout(110)
def test_scrubbing_reads_and_repairs_bases(run_on: Any, shared_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "SLICE_S", 0.05)
    results = run_on(4, scrubbed, shared_path)
    assert all(same for same, _ in results)
    assert "repaired from the other copies" in "".join(results[0][1])


def beside_a_damaged_base(comm: Any, directory: Path) -> tuple[list[str], list[Any]]:
    """Node 1 is lost, and with it the copy of part 0, whose base is damaged where nothing refers to it."""
    with deeppart.Checkpointer(config(directory), comm) as checkpointer:
        save(checkpointer, 1, 2, 3)

    def damage() -> None:
        lose(directory, 1)
        for base in bases(directory / "local" / "node0"):
            if "partner" not in base.parts:
                data = bytearray(base.read_bytes())
                data[31] ^= 1  # of its header: chunks have digests of their own
                base.write_bytes(data)

    at_once(comm, damage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [restored(comm, directory)]
        at_once(comm, lose, directory, 2)
        results.append(restored(comm, directory))
    return [str(each.message) for each in caught], results


@pytest.mark.timeout(110)
def test_one_damaged_base_does_not_keep_the_other_parts_unprotected(run_on: Any, shared_path: Path) -> None:
    """Part 0 can be restored, and no sound copy of it be made; part 1, whose only file was on node 2, is copied."""
    told = run_on(4, beside_a_damaged_base, shared_path)
    for _, results in told:
        assert [(step, good) for step, good, _ in results] == [(3, True)] * 2
    texts = [text for text in told[0][0] if "redundancy" in text]
    assert len(texts) == 2
    assert all("no sound files of parts 0" in text and "/base-00000-of-00004-" in text for text in texts)
