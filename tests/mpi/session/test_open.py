"""Starts that fail fail on every rank, with a typed error, within the timeout."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.storage import DirectoryOwner
from tests.mpi.outcomes import LONG_S, PATIENCE_S, TIMEOUT_S, config, outcome, world


def start_alone(directory: Path) -> tuple[str, str, float]:
    if world().rank == 1:
        while not (directory / "given-up").exists():
            time.sleep(0.01)
        return "", "", 0.0
    met = outcome(lambda: deeppart.Checkpointer(config(directory, timeout=TIMEOUT_S)))
    (directory / "given-up").touch()
    return met


def test_a_rank_that_never_starts_is_an_error(run_ranks: Any, tmp_path: Path) -> None:
    met = run_ranks(2, start_alone, tmp_path).values
    assert met[0][0] == "PeerTimeoutError" and met[0][2] < TIMEOUT_S + PATIENCE_S


SECRETS = (bytes(range(32)), b"another key, long enough to be one")


def bad_directories(comm: Any, directory: Path) -> dict[str, tuple[str, str, float]]:
    rank = comm.rank
    occupied = directory / "occupied"
    blocked = directory / f"local-{rank}"
    directory.mkdir(exist_ok=True)
    if rank == 0:
        occupied.write_text("a file, not a directory")
    if rank == 1:
        blocked.write_text("a file where rank 1 wants its local directory")
    keys = [directory / "key-0", directory / "key-1"]
    keys[rank].write_bytes(SECRETS[rank])
    keys[rank].chmod(0o600)
    comm.barrier()

    def open_with(**settings: Any) -> str:
        with deeppart.Checkpointer(deeppart.Config(**({"timeout": LONG_S} | settings)), comm) as ck:
            return f"open on {ck.rank}"

    def by_name(**settings: Any) -> str:
        with deeppart.Checkpointer(comm=comm, timeout=LONG_S, **settings) as ck:
            return f"open on {ck.rank}"

    def open_in_a_variable(rank: int, directory: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("ON_RANK_0", raising=False)
            if rank == 0:
                patch.setenv("ON_RANK_0", directory)
            return open_with(persistent_dir="$ON_RANK_0/ckpt")

    def open_beside_a_job(rank: int, directory: Path) -> str:
        job = DirectoryOwner(directory, "a job") if rank == 0 else None
        try:
            return open_with(persistent_dir=str(directory))
        finally:
            if job is not None:
                job.close()

    good = str(directory / "ckpt")
    return {
        "in use": outcome(lambda: open_beside_a_job(rank, directory / "ckpt")),
        "file for persistent": outcome(lambda: open_with(persistent_dir=str(occupied))),
        "no such mount": outcome(lambda: open_with(persistent_dir="/proc/deeppart")),
        "local on one rank": outcome(lambda: open_with(persistent_dir=good, local_dir=str(directory / "local-{rank}"))),
        "unset variable": outcome(lambda: open_with(persistent_dir=good, local_dir="$NOT_SET_ANYWHERE/x")),
        "variable on one rank": outcome(lambda: open_in_a_variable(rank, good)),
        "refused on one rank": outcome(lambda: by_name(persistent_dir=good, keep={"persistent": -rank})),
        "no such setting on one rank": outcome(lambda: by_name(persistent_dir=good, **({"kep": 1} if rank else {}))),
        "refused on all": outcome(lambda: by_name(persistent_dir=good, on_busy="leave")),
        "no local level on one rank": outcome(
            lambda: by_name(
                persistent_dir=good, every={"partner": 1}, local_dir=str(directory / "local") if rank == 0 else None
            )
        ),
        "not shared": outcome(lambda: open_with(persistent_dir=str(directory / "own-{rank}"))),
        "settings differ": outcome(lambda: open_with(persistent_dir=good, keep={"persistent": 1 + rank})),
        "other key": outcome(lambda: by_name(persistent_dir=good, sign_key_file=keys[rank])),
        "key on one rank": outcome(lambda: by_name(persistent_dir=good, sign_key_file=None if rank else keys[0])),
        "no key file": outcome(lambda: by_name(persistent_dir=good, sign_key_file=keys[0] if rank else good)),
        "good": outcome(lambda: open_with(persistent_dir=good)),
    }


@pytest.mark.mpi(min_size=2)
def test_bad_directories_and_settings(run_on: Any, shared_path: Path) -> None:
    met = run_on(2, bad_directories, shared_path / "d")
    kinds = {name: (met[0][name][0], met[1][name][0]) for name in met[0]}
    assert kinds == {
        "in use": ("DirectoryInUseError", "RemoteRankError"),
        "file for persistent": ("StorageError", "RemoteRankError"),
        "no such mount": ("MissingError", "RemoteRankError"),
        "local on one rank": ("RemoteRankError", "StorageError"),
        "unset variable": ("ConfigError", "ConfigError"),
        "variable on one rank": ("RemoteRankError", "ConfigError"),
        "refused on one rank": ("RemoteRankError", "ConfigError"),
        "no such setting on one rank": ("RemoteRankError", "ConfigError"),
        "refused on all": ("ConfigError", "ConfigError"),
        "no local level on one rank": ("RemoteRankError", "ConfigError"),
        "not shared": ("RemoteRankError", "StorageError"),
        "settings differ": ("ConfigError", "ConfigError"),
        "other key": ("ConfigError", "ConfigError"),
        "key on one rank": ("ConfigError", "ConfigError"),
        "no key file": ("ConfigError", "RemoteRankError"),
        "good": ("", ""),
    }
    for rank in (0, 1):
        assert all(seconds < PATIENCE_S for _, _, seconds in met[rank].values())
        assert "owned by a job" in met[rank]["in use"][1]
        assert "local-1" in met[rank]["local on one rank"][1]
        assert "ON_RANK_0" in met[rank]["variable on one rank"][1]
        assert "'persistent': -1" in met[rank]["refused on one rank"][1]
        for name in ("other key", "key on one rank"):
            assert "different keys in sign_key_file" in met[rank][name][1]
            assert not any(secret.hex() in met[rank][name][1] for secret in SECRETS)
        assert "key file cannot be opened" in met[rank]["no key file"][1]
        differing = met[rank]["settings differ"][1]
        assert (
            "different values for keep" in differing and "on rank 1" in differing and f"where: rank {rank}" in differing
        )
        assert "'persistent': 1" in differing and "'persistent': 2" in differing
