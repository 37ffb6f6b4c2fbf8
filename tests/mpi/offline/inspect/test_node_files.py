"""What lies on nodes, verified: what could not be read is not sound, or what has another name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
    document = call_json("verify", job / "ckpt", *nodes(job), code=1)
    (damage,) = document["nodes"]["damage"]
    assert "another file is in this place: part-00000-of-00003.dpp of step 2, which belongs at" in str(damage)
    assert other.exists()
