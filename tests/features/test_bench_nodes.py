"""The benchmark between nodes: who takes part, what a round is made into, and peers that are missing or fail."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.build_peers import PROGRAMS, SOURCES
from benchmarks.build_peers import main as build
from benchmarks.hosts import linked_hosts
from benchmarks.launching import CannotRunError, environment_of_ranks, find_launcher
from benchmarks.machine import Load, why_no_evidence
from benchmarks.nodes import main
from benchmarks.nodes_contestants import CASES, CONTESTANTS, LEVELS, LOSSES, OURS, SOCKETS, chosen
from benchmarks.nodes_report import OTHERS, ratios, rows, spread, values_of
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


def test_contestants_are_what_tables_and_ranks_know() -> None:
    names = [one.name for one in CONTESTANTS]
    assert len(set(names)) == len(names)
    assert {one.program for one in CONTESTANTS} - {""} == set(PROGRAMS)
    ours = {one.name for one in CONTESTANTS if not one.program}
    assert {name for name in ours if not name.endswith(SOCKETS)} == {*CASES, "limits", "fewer"}
    assert {name.removesuffix(SOCKETS) for name in ours if name.endswith(SOCKETS)} <= set(CASES)
    assert {one.level for one in CONTESTANTS} == {*LEVELS, ""}
    for level in LEVELS:
        of_level = [one for one in CONTESTANTS if one.level == level and not one.name.endswith(SOCKETS)]
        assert sum(one.who == OURS for one in of_level) == 1
        assert next(one for one in CONTESTANTS if one.level == level and one.who == OURS) in of_level, "its ratios"
    assert {loss for one in CONTESTANTS for loss in one.losses} == set(LOSSES)
    assert {name for name, *_ in OTHERS} <= set(names)


def test_a_peer_loses_the_nodes_that_deeppart_loses() -> None:
    text = (ROOT / "benchmarks" / "peers_c" / "rounds.c").read_text()
    told = re.search(r"int lost = (.*?);", text, flags=re.DOTALL)
    assert told
    for loss in ("one", "two"):
        ranks = re.search(rf'"{loss}"\) == 0 && \(?((?:run->rank == \d(?: \|\| )?)+)', told[1])
        assert ranks and tuple(map(int, re.findall(r"\d", ranks[1]))) == LOSSES[loss]


def test_fti_is_started_for_each_restore() -> None:
    fti = next(one for one in CONTESTANTS if one.name == "fti-3")
    assert [loss for loss, *_ in fti.runs()] == ["save", "none", "one", "two"]
    assert all(arguments == list(fti.arguments) for _, *arguments in fti.runs())
    veloc = next(one for one in CONTESTANTS if one.name == "veloc-xor-sha")
    assert veloc.runs() == [("none,one", "mode=sync", "ec_interval=0", "chksum=true")]


def test_what_is_not_built_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "fti_rounds").touch()
    found, left_out = chosen(["fti", "redset-rs", "local"], tmp_path)
    assert [one.name for one in found] == ["local", "local-sockets", "fti-1", "fti-2", "fti-3", "fti-4"]
    assert list(left_out) == ["redset-rs"] and "build_peers.py" in left_out["redset-rs"]
    with pytest.raises(ValueError, match="no nobody; there are limits, local"):
        chosen(["local", "nobody"], tmp_path)


def test_rows_have_median_and_spread_where_something_was_measured() -> None:
    assert values_of(ROUNDS, "redset-xor", "blocked_s") == [0.4, 0.5]
    assert spread([3.0, 1.0, 2.0]) == "2.000 (1.000-3.000)" and spread([]) == ""
    found = rows(ROUNDS)
    assert [row[1] for row in found] == [OURS, "VELOC", "redset"]
    assert found[0][3:] == ["0.200 (0.100-0.300)", "", "", "1.000 (1.000-1.000)", ""]


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


def test_hosts_of_their_own_have_links_of_the_rate_and_go_away_again() -> None:
    try:
        with linked_hosts(2, 400) as hosts:
            names = hosts.launcher[hosts.launcher.index("-hosts") + 1].split(",")
            command = [*find_launcher(hosts.launcher), "-n", "2", "cat", "/proc/sys/kernel/hostname"]
            environment = environment_of_ranks(20, "") | hosts.environment
            found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
            link = ["ip", "netns", "exec", names[1], "tc", "qdisc", "show", "dev", "eth0"]
            rate = subprocess.run(link, capture_output=True, text=True, timeout=10, check=True)
    except CannotRunError as problem:
        pytest.skip(str(problem))
    assert sorted(found.stdout.split()) == sorted(names) and len(set(names)) == 2
    assert "400Mbit" in rate.stdout
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=10, check=True)
    assert not set(names) & set(left.stdout.split())


def test_hosts_that_cannot_be_made_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1)
    assert run(tmp_path, "--link-mbit", "400") == 2
    assert "need root" in capsys.readouterr().err


def test_the_sources_are_pinned_and_in_order() -> None:
    assert all(re.fullmatch("[0-9a-f]{40}", source.commit) and source.tag for source in SOURCES)
    names = [source.name for source in SOURCES]
    assert names.index("KVTree") < names.index("redset") < names.index("er") < names.index("VELOC")


def test_what_cannot_be_built_here_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert build(["--prefix", str(tmp_path / "prefix")]) == 2
    assert "no mpicc: install an MPI" in capsys.readouterr().err
