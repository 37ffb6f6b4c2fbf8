"""Files of a forger, who computes all digests anew: refused by name, at no cost, before anything live is touched."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.codec.zstd import read_frame
from deeppart.config import Config
from deeppart.errors import CorruptFileError, DirectoryInUseError, FormatError, StateError, StorageError
from deeppart.extension.export import export
from deeppart.model import Attempt
from deeppart.part import MemorySource, PartReader
from deeppart.plan.restart import Inventory, StoredPart, survey
from deeppart.storage import DirectoryOwner, read_owner
from tests.fuzz.images import PartImage, reforge
from tests.fuzz.seeds import tie
from tests.golden import forge
from tests.unit import cli_support
from tests.unit.cli_support import live_for_forged

Edit = Callable[[PartImage], object]


def refused_by_all(root: Path, error: type[Exception] = FormatError) -> None:
    """Neither loaded nor restored; the live state stays as it is, and ``verify`` knows."""
    with pytest.raises(error):
        deeppart.load(root)
    state = live_for_forged()
    with deeppart.Checkpointer(Config(persistent_dir=str(root))) as checkpointer:
        with pytest.raises(deeppart.DeeppartError):
            checkpointer.restore(state)
    assert all(not torch.count_nonzero(item) for item in state.values() if isinstance(item, torch.Tensor))
    cli_support.call("verify", root, code=1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One rank's, with a leaf and a value of its own."""
    cli_support.forge(tmp_path / "ckpt", 4, 1)
    return tmp_path / "ckpt"


def test_forging_alone_changes_nothing(checkpoint: Path) -> None:
    reforge(checkpoint, lambda part: None)
    state = live_for_forged()
    with deeppart.Checkpointer(Config(persistent_dir=str(checkpoint))) as checkpointer:
        checkpointer.restore(state)
    assert state["a"][899] == 899 and state["position"] == 1000


def own_leaf_in_the_shared_table(part: PartImage) -> None:
    next(row for row in part.spans if row["leaf"] == 2)["table"] = 0


def shared_leaf_in_the_own_table(part: PartImage) -> None:
    next(row for row in part.spans if row["leaf"] == 1)["table"] = 1


def own_leaf_not_marked(part: PartImage) -> None:
    """Its chunk would be sent to all, and taken by none: the leaf would be what lay in memory before."""
    next(row for row in part.chunks if row["flags"])["flags"] = 0


def shared_leaf_marked(part: PartImage) -> None:
    next(row for row in part.chunks if not row["flags"])["flags"] = 1


def elements_cut_in_two(part: PartImage) -> None:
    row = next(row for row in part.spans if row["leaf"] == 0)
    rest = {**row, "start": row["start"] + 6, "length": row["length"] - 6, "raw_offset": row["raw_offset"] + 6}
    row["length"] = 6
    part.spans.insert(part.spans.index(row) + 1, rest)


def a_chunk_that_ends_within_an_element(part: PartImage) -> None:
    place = next(i for i, row in enumerate(part.chunks) if row["raw_length"] > 100)
    row = part.chunks[place]
    encoded = row["encoded"]
    part.chunks[place] = {**row, "encoded": encoded[:6], "raw_length": 6, "raw_digest": None}
    part.chunks.insert(place + 1, {**row, "encoded": encoded[6:], "raw_length": len(encoded) - 6, "raw_digest": None})


@pytest.mark.parametrize(
    "edit",
    [
        own_leaf_in_the_shared_table,
        shared_leaf_in_the_own_table,
        own_leaf_not_marked,
        shared_leaf_marked,
        elements_cut_in_two,
        a_chunk_that_ends_within_an_element,
    ],
)
def test_spans_of_the_wrong_kind(checkpoint: Path, edit: Edit) -> None:
    reforge(checkpoint, edit)
    refused_by_all(checkpoint)


@pytest.mark.parametrize(
    ("leaf", "here"),
    [
        ([4], [1 << 20]),  # within its owner on rank 0, and beside it here: other memory would be read
        ([4], [5]),
        ([4], [2, 2]),
        ([1 << 20], [4]),
        ([4], [1 << 61]),
    ],
)
def test_a_tie_beyond_its_owner_is_refused(checkpoint: Path, leaf: list[int], here: list[int]) -> None:
    reforge(checkpoint, *tie(["numpy", "|u1", leaf, [2, 12, [1]]], ["numpy", "|u1", here]))
    refused_by_all(checkpoint)


def test_what_repeats_its_elements_is_not_written_out(tmp_path: Path) -> None:
    whole = torch.zeros(1, 8)
    state = {"owner": whole, "wide": whole.expand(1 << 30, 8), "narrow": torch.ones(8)}
    with deeppart.Checkpointer(Config(persistent_dir=str(tmp_path / "ckpt"))) as checkpointer:
        checkpointer.checkpoint(state, step=1).wait("persistent", timeout=200)
    with pytest.raises(StateError, match="repeats its few bytes"):
        export(tmp_path / "ckpt", tmp_path / "out.h5")
    assert export(tmp_path / "ckpt", tmp_path / "out.h5", keys=["narrow"]).leaves == 1


@pytest.mark.parametrize("into", [None, memoryview(bytearray(100))])
def test_a_frame_that_asks_for_a_window_of_two_tebibytes(into: memoryview | None) -> None:
    frame = b"\x28\xb5\x2f\xfd\xc0\xf8" + (100).to_bytes(8, "little") + b"\x01\0\0"
    with pytest.raises(CorruptFileError):
        read_frame(memoryview(frame), 100, into)


def test_more_raw_bytes_than_any_codec_can_hold() -> None:
    payload = bytes(100)
    row = forge.chunk_row(payload, raw_length=101 << 15, codec=1, raw_digest=bytes(16))
    data = forge.part(payload, [row], [forge.span_row(0, 0, 101 << 15, 0)], raw_bytes=101 << 15)
    with pytest.raises(CorruptFileError, match="no codec has"):
        PartReader(MemorySource(data), where="here")


BOMB = """
import resource, sys
from pathlib import Path
import deeppart
from deeppart.errors import DeeppartError
deeppart.load(sys.argv[2])
vm = next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (vm + (512 << 20),) * 2)
before = resource.getrusage(resource.RUSAGE_SELF)
try:
    deeppart.load(sys.argv[1])
except DeeppartError as error:
    print(type(error).__name__)
after = resource.getrusage(resource.RUSAGE_SELF)
print((after.ru_maxrss - before.ru_maxrss) >> 10, after.ru_utime - before.ru_utime < 20)
"""


def claim_a_long_stream(part: PartImage) -> None:
    part.raw_bytes = 1 << 50


def claim_many_chunks(part: PartImage) -> None:
    part.counts[0] = 1 << 24


def claim_a_long_leaf(part: PartImage) -> None:
    row = next(row for row in part.spans if row["leaf"] == 0)
    row["length"] = 1 << 49


def zeros_for_ever(part: PartImage) -> None:
    """A frame that gives 128 KiB for every four bytes, and says that there are 2^40 of them."""
    block = (1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    row = part.chunks[0]
    row["encoded"] = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + block * 1000
    row["codec"], row["raw_digest"], row["raw_length"] = 1, bytes(16), 60 << 20


@pytest.mark.sweep(4)
@pytest.mark.parametrize("edit", [claim_a_long_stream, claim_many_chunks, claim_a_long_leaf, zeros_for_ever])
def test_claims_cost_no_memory(
    checkpoint: Path, tmp_path: Path, edit: Edit, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    cli_support.forge(tmp_path / "sound", 4, 1)
    reforge(checkpoint, edit)
    told = run_python(BOMB, str(checkpoint), str(tmp_path / "sound"))
    assert told.returncode == 0, told.stderr
    error, mebibytes, soon = told.stdout.split()
    assert error == "CorruptFileError" and int(mebibytes) < 64 and soon == "True"


def test_one_part_of_sixteen_million() -> None:
    attempt = Attempt("ab" * 16, "cd" * 16, 0, 5, 1 << 24)
    part = StoredPart("local", attempt, 7, "/local/part", 5000, "ef" * 16)
    outlook = survey(Inventory(((part,),), (0,), ()))
    assert not outlook.candidates and "1 of 16777216 parts" in outlook.rejected[0][1]


def test_a_lock_record_cannot_steer_a_terminal(tmp_path: Path) -> None:
    holder = DirectoryOwner(tmp_path, "job")
    try:
        (tmp_path / ".deeppart.lock").write_text(json.dumps({"who": "\x1b[2J" + "x" * 5000, "since": ["\n"]}))
        owner = read_owner(tmp_path)
        assert owner is not None and owner.who.startswith("\\x1b[2J") and len(owner.who) == 200
        with pytest.raises(DirectoryInUseError):
            holder.check()
        (tmp_path / ".deeppart.lock").write_bytes(b" " * (1 << 20))
        with pytest.raises(StorageError):
            holder.check()
    finally:
        holder.close()


@pytest.mark.parametrize("own", [["torch", "float32", [3]], ["value", 5]], ids=["leaf", "value"])
def test_a_part_that_names_what_the_structure_lacks(checkpoint: Path, own: list[Any]) -> None:
    reforge(checkpoint, lambda part: part.meta["leaves"].update({"99": own}))
    refused_by_all(checkpoint)
