"""Signed checkpoints on several ranks: local parts, partner's copies, parts rebuilt from parity, and forged ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import RestoreError
from tests.fuzz.images import PartImage
from tests.mpi.lost_nodes import PARITY, PARTNER, lose, restore, save

pytestmark = pytest.mark.mpi(min_size=4)


def make_key(comm: Any, directory: Path) -> str:
    path = directory / "key"
    if comm.rank == 0:
        path.write_bytes(bytes(range(32)))
        path.chmod(0o600)
    comm.Barrier()
    return str(path)


def forge(directory: Path, pattern: str) -> list[str]:
    """Change bytes of part files, and make every digest right that needs no key."""
    paths = sorted(directory.glob(f"local/{pattern}"))
    for path in paths:
        part = PartImage.parse(path.read_bytes())
        own = next(row for row in part.chunks if not row["base"])
        own.update(encoded=bytes(len(own["encoded"])), raw_digest=None)
        path.write_bytes(part.encode())
    return [str(path) for path in paths]


def lost_and_forged(comm: Any, directory: Path, settings: dict[str, Any]) -> list[Any]:
    settings = {**settings, "compression": "none", "sign_key_file": make_key(comm, directory)}
    save(comm, directory, settings)
    lose(comm, directory, 1)
    results = [restore(comm, directory, settings)]
    forged = forge(directory, "node0/*/step-000000000002*/part-*") if comm.rank == 0 else []
    results.append(comm.bcast(forged))
    comm.Barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        results.append(restore(comm, directory, settings))
    return results


@pytest.mark.parametrize("settings", [PARTNER, PARITY], ids=["partner", "parity"])
def test_a_forged_part_gives_way_to_a_copy(run_on: Any, shared_path: Path, settings: dict[str, Any]) -> None:
    results = run_on(4, lost_and_forged, shared_path, settings)
    for lost, forged, again in results:
        assert lost[:2] == (2, True), lost
        assert len(forged) == 1
        assert again[:2] == (2, True), again
        assert any("signature of part 0 of step 2 does not hold" in line for line in again[2]), again


def all_forged(comm: Any, directory: Path) -> tuple[Any, str]:
    settings = {**PARTNER, "compression": "none", "sign_key_file": make_key(comm, directory)}
    save(comm, directory, settings)
    if comm.rank == 0:
        forge(directory, "*/*/step-000000000002*/part-*")
        forge(directory, "*/*/partner/step-000000000002*/part-*")
    comm.Barrier()
    without = restore(comm, directory, {**settings, "sign_key_file": None})
    try:
        return without, str(restore(comm, directory, settings))
    except RestoreError as error:
        return without, str(error)


def test_where_all_are_forged_nothing_is_restored(run_on: Any, shared_path: Path) -> None:
    for without, error in run_on(4, all_forged, shared_path):
        assert without[:2] == (2, False)
        assert "does not hold" in error and "no checkpoint can be recovered" in error
