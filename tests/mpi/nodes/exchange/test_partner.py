"""Copies of part files on other nodes: every byte, two at a time, and nobody waits for who cannot read or write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from deeppart.comm import connect, finish
from deeppart.errors import DeeppartError, StorageError
from deeppart.nodes import Arena, PartFile, exchange_copies
from deeppart.nodes.exchange.partner import BLOCK_BYTES
from deeppart.plan.redundancy import Copy
from deeppart.storage import DurableFile

pytestmark = pytest.mark.mpi(min_size=2)

TIMEOUT_S = 60.0
LENGTHS = (3 * BLOCK_BYTES + 17, 0)


def content(rank: int) -> bytes:
    return np.random.default_rng(rank).bytes(LENGTHS[rank])


def exchanged(world: Any, directory: Path, fault: str = "") -> tuple[str, list[str], bool]:
    """What came of sending each rank's part to the other: an error's name, files left, and whether they are right."""
    comm = connect(world, TIMEOUT_S)
    other = 1 - comm.rank
    part, copies = directory / f"part-{comm.rank}", directory / f"copies-{comm.rank}"
    part.write_bytes(content(comm.rank))
    digest = xxhash.xxh3_128_hexdigest(content(comm.rank))
    if fault == "cut" and comm.rank == 0:
        part.write_bytes(content(0)[: BLOCK_BYTES + 5])
    if fault == "changed" and comm.rank == 0:
        part.write_bytes(b"x" + content(0)[1:])
    if fault == "gone" and comm.rank == 0:
        part.unlink()

    def open_copy(number: int) -> DurableFile:
        assert number == other
        if fault == "full" and comm.rank == 1:
            raise StorageError("no space left")
        return DurableFile(copies / f"part-{number}")

    parts = {comm.rank: PartFile(part, LENGTHS[comm.rank], "", digest)}
    operation = exchange_copies(comm, [Copy(0, 0, 1), Copy(1, 1, 0)], parts, open_copy, Arena(), None)
    error = ""
    try:
        for file in finish(comm, operation, "a test", TIMEOUT_S):
            file.commit()
    except DeeppartError as problem:
        error = type(problem).__name__
    found = sorted(copies.iterdir()) if copies.is_dir() else []
    return error, [path.name for path in found], all(path.read_bytes() == content(other) for path in found)


def test_every_byte_arrives_both_ways(run_on: Any, shared_path: Path) -> None:
    assert run_on(2, exchanged, shared_path) == [("", ["part-1"], True), ("", ["part-0"], True)]


@pytest.mark.parametrize(
    ("fault", "errors"),
    [
        ("cut", ("CorruptFileError", "CorruptFileError")),
        ("changed", ("", "CorruptFileError")),
        ("gone", ("MissingError", "CorruptFileError")),
        ("full", ("", "StorageError")),
    ],
)
def test_what_goes_wrong_is_told_where_it_did_and_no_wrong_copy_is_left(
    run_on: Any, shared_path: Path, fault: str, errors: tuple[str, str]
) -> None:
    (first, copies, right), (second, others, _) = run_on(2, exchanged, shared_path, fault)
    assert (first, second) == errors
    assert others == [], "of a part that did not come as it was written"
    assert right and copies == ([] if first else ["part-1"])
