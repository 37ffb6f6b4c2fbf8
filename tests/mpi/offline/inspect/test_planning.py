"""What a restore would do, without doing it: explained on one process and on the nodes themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi import launchers
from tests.mpi.offline.redundant import find, nodes
from tests.unit.cli_support import call, call_json

#: One worker runs all of these, so that what they share is made once; one that has nurseries (tests/conftest.py).
pytestmark = pytest.mark.xdist_group("ranks-1")


def levels(job: Path, code: int = 0) -> list[list[str]]:
    plan = call_json("explain", job / "ckpt", *nodes(job), code=code)
    return [[source["level"] for source in part["sources"]] for part in plan["parts"]]


def test_a_restore_explained(job: Path) -> None:
    assert levels(job) == [["local", "partner", "parity"]] * 3
    text = call("explain", job / "ckpt", *nodes(job))
    assert text.startswith("step 2: 3 of 3 parts local; saved by 3 ranks") and "could be recovered too: 1" in text
    shutil.rmtree(job / "node1")
    assert levels(job) == [["local"], ["partner", "parity"], ["local", "partner"]]
    text = call("explain", job / "ckpt", *nodes(job))
    assert "2 of 3 parts local, 1 of 3 parts partner" in text
    assert "part 1" in text and "otherwise parity set of parts 0, 1, 2 (2 other parts and 2 shares of parity" in text
    shutil.rmtree(job / "node2")
    plan = call_json("explain", job / "ckpt", *nodes(job))
    assert plan["step"] == 1 and [each["step"] for each in plan["rejected"]] == [2]
    assert "part 1 of 3: found on no node" in plan["rejected"][0]["reason"]
    assert [part["sources"][0]["level"] for part in plan["parts"]] == ["persistent"] * 3
    shutil.rmtree(find(job, "ckpt/step-000000000001-*"))
    text = call("explain", job / "ckpt", *nodes(job), code=1)
    assert "step 2 cannot be recovered" in text and "no step can be recovered" in text


@pytest.mark.timeout(90)
def test_on_the_nodes_themselves(job: Path) -> None:
    """One process per node, each looking at its own directory; the first of them at the persistent level, for all."""
    find(job, "ckpt/step-000000000001-*/part-00001-*").unlink()
    argv = [sys.executable, "-m", "deeppart.cli", "explain", str(job / "ckpt"), "--local"]
    argv += [str(job / "node{rank}")]
    run = subprocess.run(
        [str(launchers.find_mpiexec()), "-n", "3", *argv], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("step 2: 3 of 3 parts local") == 1
    assert run.stdout.count("step 1 cannot be recovered: part 1 on the persistent level is missing") == 0
    assert "could be recovered too" not in run.stdout
