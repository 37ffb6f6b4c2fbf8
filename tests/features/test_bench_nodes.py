"""The benchmark between nodes: who takes part, what a round is made into, and peers that are missing or fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.machine import Load, why_no_evidence
from benchmarks.nodes import main
from benchmarks.nodes_contestants import LEVELS, LOSSES
from benchmarks.nodes_report import ratios
from tests.mpi import launchers

ROOT = Path(__file__).resolve().parents[2]
#: A peer that does what the programs of benchmarks/peers_c do: prints more than its result, and fails if it is told so.
PEER = """#!/bin/sh
echo "some words of the library's"
[ ! -e {failing} ] || exit 3
[ "$PMI_RANK" != 0 ] || echo '{{"blocked_s": 0.5, "complete_s": 0.5, "one_lost_s": 1.5}}'
"""
ROUNDS = [
    {
        "parity-1": {"blocked_s": 0.1, "one_lost_s": 1.0},
        "redset-xor": {"blocked_s": 0.4, "one_lost_s": 0.5},
        "veloc-xor": {"blocked_s": 0.2, "one_lost_s": 0.8},
    },
    {"parity-1": {"blocked_s": 0.3}, "redset-xor": {"blocked_s": 0.5}, "veloc-xor": {"blocked_s": 0.3}},
    {"parity-1": {"blocked_s": 0.2}, "veloc-xor": {"blocked_s": 0.2}},
]


def test_a_peer_loses_the_nodes_that_deeppart_loses() -> None:
    text = (ROOT / "benchmarks" / "peers_c" / "rounds.c").read_text()
    told = re.search(r"int lost = (.*?);", text, flags=re.DOTALL)
    assert told
    for loss in ("one", "two"):
        ranks = re.search(rf'"{loss}"\) == 0 && \(?((?:run->rank == \d(?: \|\| )?)+)', told[1])
        assert ranks and tuple(map(int, re.findall(r"\d", ranks[1]))) == LOSSES[loss]


def test_ratios_are_to_the_fastest_peer_of_each_column_round_by_round() -> None:
    (level, blocked, complete, none_lost, one_lost, two_lost), *more = ratios(ROUNDS)
    assert more == [] and level == LEVELS[2]
    assert blocked == "1.00 (0.50-1.00) veloc-xor"
    assert one_lost == "2.00 (2.00-2.00) redset-xor"
    assert complete == none_lost == two_lost == ""


def test_a_disturbed_run_is_no_evidence() -> None:
    assert why_no_evidence(busy=0.01, stolen=0.01, others=0.05) == ""
    said = why_no_evidence(busy=0.5, stolen=0.07, others=0.3)
    assert said.startswith("No evidence:") and all(part in said for part in ("50 %", "7.0 %", "30 %"))
    shares = Load(seconds=0.01).as_dict()
    assert set(shares) == {"busy", "stolen", "others", "no_evidence"} and shares["others"] >= 0


def run(tmp_path: Path, *more: str) -> int:
    """A round that counts, with peers of :data:`PEER`, of which FTI is not built."""
    programs = tmp_path / "peers" / "bin"
    programs.mkdir(parents=True)
    for name in ("redset_rounds", "veloc_rounds"):
        (programs / name).write_text(PEER.format(failing=tmp_path / f"{name}-fails"))
        (programs / name).chmod(0o755)
    options = ["--peers", str(tmp_path / "peers"), "--tmpfs", str(tmp_path), "--mib", "1", "--repeat", "1"]
    return main([*options, "--only", "redset-xor,veloc-xor,fti-1", "--json", str(tmp_path / "found.json"), *more])


@pytest.mark.skipif(launchers.unavailable() is not None, reason=str(launchers.unavailable()))
def test_a_run_has_everyone_in_every_round_and_says_who_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    names = {"redset-xor", "veloc-xor", "veloc-xor-sha", "veloc-xor-async", "veloc-xor-async-sha"}
    assert set(found["rounds"][0]) == set(found["warmup"]) == names
    assert [set(order) for order in found["orders"]] == [names, names]
    assert found["rounds"][0]["redset-xor"] == {"blocked_s": 0.5, "complete_s": 0.5, "one_lost_s": 1.5}
    assert {"busy", "stolen", "others", "no_evidence", "load_at_start"} <= set(found["machine"])
    assert found["machine"]["tunables"] == "" and found["failed"] == {}
    assert "fti-1 left out: not built" in capsys.readouterr().out
    assert not list(tmp_path.glob("deeppart-bench-*"))


@pytest.mark.skipif(launchers.unavailable() is not None, reason=str(launchers.unavailable()))
def test_a_peer_that_fails_is_said_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "redset_rounds-fails").touch()
    assert run(tmp_path) == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["failed"] == {"redset-xor": 2} and "veloc-xor" in found["rounds"][0]
    said = capsys.readouterr()
    assert "redset-xor failed in 2 of 2 rounds" in said.out and "some words of the library's" in said.err
