"""What lies on nodes, verified: what could not be read is not sound, what has another name, or is of other bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import xxhash

from deeppart.part import FileSource, ParityReader, ParityWriter
from tests.mpi.offline.redundant import find, nodes
from tests.unit.cli_support import call, call_json

#: One worker runs all of these, so that what they share is made once; one that has nurseries (tests/conftest.py).
pytestmark = pytest.mark.xdist_group("ranks-1")


def test_what_could_not_be_read_is_not_sound(job: Path) -> None:
    """A mistyped or unmounted directory; a step directory that cannot be listed."""
    document = call_json("verify", job / "ckpt", "--local", job / "nodeX", code=1)
    assert not document["good"] and document["nodes"]["files"] == 0
    assert document["nodes"]["unread"] == [f"{job / 'nodeX'}: No such file or directory"]
    (job / "empty").mkdir()
    document = call_json("verify", job / "ckpt", "--local", job / "empty")
    assert document["nodes"]["remarks"] == [f"{job / 'empty'}: no parts that belong to this checkpoint directory"]
    step = find(job, "node0/*/step-000000000002-*/part-*").parent
    step.rename(job / "elsewhere")
    step.write_text("what fsck made of it")
    for repair in ([], ["--repair"]):
        document = call_json("verify", job / "ckpt", *nodes(job), *repair, code=1)
        (line,) = document["nodes"]["unread"]
        assert "cannot list a checkpoint directory" in line and str(step) in line
        assert document["nodes"]["damage"] == []
        assert "not read" in call("verify", job / "ckpt", *nodes(job), *repair, code=1)


def test_files_under_wrong_names_are_named(job: Path) -> None:
    part = find(job, "node0/*/step-000000000002-*/part-*")
    other = part.parent.parent / part.parent.name.replace("000000000002", "000000000009")
    other.mkdir()
    shutil.copy(part, other / part.name)
    shutil.copytree(part.parent, part.parent.parent.parent / ("f" * 32) / part.parent.name)
    document = call_json("verify", job / "ckpt", *nodes(job))
    (remark,) = document["nodes"]["remarks"]
    assert "not used: by its contents it is part-00000-of-00003.dpp of step 2; to have it used: mv -n" in remark
    assert other.exists()


def test_parity_that_is_sound_and_of_other_bytes(job: Path) -> None:
    """A part that changed while it was encoded leaves such: all digests hold, and it would give nothing back."""
    path = find(job, "node1/*/parity/step-000000000002-*/parity-*")
    sound = path.read_bytes()
    with FileSource(path) as source:
        reader = ParityReader(source, where="")
        blocks = [np.empty(reader.stripes.length(0), dtype=np.uint8) for _ in range(reader.stripes.tolerate)]
        assert reader.stripes.rows == 1 and all(reader.read_block(0, j, block) for j, block in enumerate(blocks))
    blocks[0][100] ^= 1  # of a data block, too: with one block of parity it is their exclusive or
    digests = reader.digests[0].copy()
    digests[0, 0] = np.frombuffer(bytes(16), dtype=np.uint8)
    digests[0, -1] = np.frombuffer(xxhash.xxh3_128_digest(blocks[0].data), dtype=np.uint8)
    with path.open("wb") as file:
        writer = ParityWriter(file, reader.identity)
        writer.add_row(blocks, digests)
        writer.finish()
    with FileSource(path) as source:
        ParityReader(source, where="").verify()
    document = call_json("verify", job / "ckpt", *nodes(job), code=1)
    (damage,) = document["nodes"]["damage"]
    assert damage["path"] == str(path) and "parity of other bytes than part" in damage["message"]
    assert call_json("verify", job / "ckpt", "--local", job / "node1")["good"], "that part is not there to compare"
    call("verify", job / "ckpt", *nodes(job), "--repair")
    assert path.read_bytes() == sound
