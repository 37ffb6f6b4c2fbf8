"""Slurm's lists of nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from deeppart_simulator.traces.schedulers import node_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[001-003,7]", ["node001", "node002", "node003", "node7"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("a[1-2],b3,c[5]", ["a1", "a2", "b3", "c5"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("None assigned", []),
        ("", []),
    ],
)
def test_lists(text: str, names: list[str]) -> None:
    assert list(node_names(text)) == names


@pytest.mark.parametrize(
    "text", ["node[1-", "node[1-2", "node]1[", "node[a-b]", "node[3-1]", "node[]", "a,,b", ",a", "a,"]
)
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"list of nodes|brackets|upwards"):
        node_names(text)


@pytest.mark.parametrize("text", ["n[0-99999999999]", "n[1-9999]m[1-9999]", ",".join(["n[1-900000]"] * 2)])
def test_more_nodes_than_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="at most 1048576"):
        node_names(text)


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="Slurm's own reading of them needs scontrol")
@pytest.mark.parametrize("text", ["node[1-3]", "node[001-003,7]", "a[1-2],b3,c[5]", "rack[1-2]n[1-2]", "node[098-101]"])
def test_as_slurm_reads_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(tmp_path / "slurm.conf")}
    told = subprocess.run(
        ["scontrol", "show", "hostnames", text], env=env, capture_output=True, text=True, timeout=20, check=True,
    ).stdout  # fmt: skip
    assert list(node_names(text)) == told.split()
