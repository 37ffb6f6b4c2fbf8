"""The rig is what the other tests take it for: a Slurm whose nodes MPI tells apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launchers import is_mpich
from tests.slurm.rig import Rig

pytestmark = [
    pytest.mark.skipif(not is_mpich(), reason="Open MPI asks Slurm for PMIx, which is not there"),
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
]

HELLO = """
import json, os
from mpi4py import MPI

world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
mine = {"rank": world.rank, "size": world.size, "node": os.environ["SLURMD_NODENAME"]}
mine["beside"] = node.allgather(world.rank)
print(json.dumps(mine), flush=True)
"""


def hello(rig: Rig, directory: Path, *options: str) -> list[dict[str, Any]]:
    script = directory / "hello.py"
    script.write_text(HELLO)
    env = {"MPIR_CVAR_CH4_NETMOD": "ofi"}  # as in slurm/train.sbatch
    printed = rig.srun("--mpi=pmi2", *options, sys.executable, "-m", "mpi4py", str(script), env=env)
    return sorted((json.loads(line) for line in printed.splitlines()), key=lambda line: line["rank"])


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["--nodes=2", "--ntasks=4", "--ntasks-per-node=2"], [[0, 1], [2, 3]]),
        (["--nodes=4", "--ntasks=4"], [[0], [1], [2], [3]]),
    ],
)
def test_ranks_know_their_virtual_node(slurm: Rig, tmp_path: Path, options: list[str], nodes: list[list[int]]) -> None:
    ranks = hello(slurm, tmp_path, *options)
    assert [rank["size"] for rank in ranks] == [4] * 4
    for rank in ranks:
        assert rank["beside"] == next(node for node in nodes if rank["rank"] in node)
    assert len({rank["node"] for rank in ranks}) == len(nodes)
