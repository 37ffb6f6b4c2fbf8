"""``deeppart-sim advise``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.machine.record import PIECES, WAYS

import deeppart
from tests.simulator.commands import QUIET, SMALL, rows_of, sim, sim_json


def test_advice_is_a_configuration_that_the_library_loads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = sim(capsys, "advise", *SMALL, "--ranks", "1024", "--step-time", "0.5 s", "--config", "deeppart.toml")
    assert code == 0 and "what survives" in out
    config = deeppart.Config(persistent_dir=str(tmp_path / "p"), local_dir=str(tmp_path / "l"))
    said = tomllib.loads(Path("deeppart.toml").read_text())
    assert config.every == {**said["every"]}
    assert config.kappa == said["kappa"] and config.compression == said["compression"]
    period = sim_json(capsys, "advise", *SMALL, "--ranks", "1024", "--step-time", "0.5 s")["advised"]["period_s"]
    assert min(filter(None, config.every.values())) == pytest.approx(period / 0.5, abs=1)


def test_advice_for_a_machine_without_failures_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "safe.toml"
    file.write_text(QUIET)
    code, _, err = sim(capsys, "advise", *SMALL[:2], "--machine", str(file), "--ranks", "8")
    assert code == 2 and "without failures" in err
    assert "never fails" in err and "deeppart.plan" not in err  # in the words of who asks, not of the library


JOB = (*SMALL, "--ranks", "32")
WITH = ("--with", "--machine llama3", "--with", "--compression tensor --parity 2/1")


def test_each_job_is_what_advise_says_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = sim_json(capsys, "advise", *JOB, "--step-time", "2s", *WITH)
    assert [each["label"] for each in found["jobs"]] == [
        "base",
        "--machine llama3",
        "--compression tensor --parity 2/1",
    ]
    for each, changed in zip(
        found["jobs"], ((), ("--machine", "llama3"), ("--compression", "tensor", "--parity", "2/1")), strict=True
    ):
        advised = sim_json(capsys, "advise", *JOB, "--step-time", "2s", *changed)
        assert each["machine"] == advised["machine"] and each["state"] == advised["state"]["name"]
        for key in (
            "levels",
            "waste",
            "period_s",
            "blocked_s",
            "drained_daily_bytes",
            "node_daily_bytes",
            "every_local",
        ):
            assert each[key] == advised["advised"][key], key


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--machin llama3", "--machin"),
        ("--machine 'llama3", "quotation"),
        ("--machine nowhere", "nowhere"),
        ("llama3", "llama3"),
        ("--json", "--json"),
        ("--compression tensr", "'tensor'"),
        ("--step-time never", "--step-time"),
    ],
)
def test_what_cannot_be_read_is_refused(capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    code, out, err = sim(capsys, "advise", *JOB, "--with", text)
    assert code == 2 and said in out + err


MONEY = """base = "p4d"
[local]
capacity = "8 TB"
endurance = "50 PB"
[persistent]
capacity = "1 PB"
[failures]
node = "1 day"
"""
SOME = ("--state", "tensors-64x250MB", "--ranks", "32", "--compression", "none")


@pytest.fixture
def priced(tmp_path: Path) -> str:
    file = tmp_path / "priced.toml"
    file.write_text(MONEY)
    return str(file)


def test_advise_says_what_a_month_takes(capsys: pytest.CaptureFixture[str], priced: str, tmp_path: Path) -> None:
    """4 nodes for 720 hours at 32.77 USD."""
    table = tmp_path / "choices.csv"
    document = sim_json(capsys, "advise", *SOME, "--machine", priced, "--csv", str(table))
    total, lost = document["bill"]["total"], document["bill"]["not_useful"]
    assert total["node_hours"] == pytest.approx(2880) and total["money"] == pytest.approx(2880 * 32.77)
    assert document["bill"]["currency"] == "USD"
    assert lost["money"] == pytest.approx(document["advised"]["waste"] * 2880 * 32.77)
    assert document["advised"]["lost_money"] == lost["money"]
    first = rows_of(table)[0]
    assert float(first["lost_node_hours"]) == pytest.approx(float(first["waste"]) * 2880)
    space, advised = document["space"], document["advised"]
    assert space["file_system_bytes"] == 4 * 16e9 and space["file_system_capacity"] == 1e15
    assert sum(space["node_bytes"].values()) == advised["node_bytes"]
    assert space["drive_years"] == pytest.approx(50e15 / advised["node_daily_bytes"] / 365.25)
    assert space["drive_writes_per_day"] == pytest.approx(advised["node_daily_bytes"] / 8e12)
    assert space["file_system_bandwidth_share"] == pytest.approx(advised["drained_daily_bytes"] / (100e9 * 86400))
    code, out, _ = sim(capsys, "advise", *SOME, "--machine", priced)
    assert code == 0 and "in 30 days of this, as advised" in out and "94,378 USD" in out
    assert (
        "0.0064 % of its capacity, 1 PB" in out and "does not say" not in out and "not in the machine file" not in out
    )


def test_a_plan_over_capacity_is_left_out_and_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """16 GB on 4 nodes: two steps take 8 GB on a node, with copies 16."""
    file = tmp_path / "small.toml"
    file.write_text(MONEY.replace("8 TB", "12 GB"))
    document = sim_json(capsys, "advise", *SOME, "--machine", str(file))
    assert "local + partner + persistent" in document["too_large"]
    assert not any("partner" in row["levels"] for row in [*document["front"], *document["choices"]])
    assert all(row["node_bytes"] <= 12e9 for row in [*document["front"], *document["choices"], document["advised"]])
    code, out, _ = sim(capsys, "advise", *SOME, "--machine", str(file))
    assert code == 0 and "no room for local + partner + persistent: 16 GB are kept on a node" in out
    code, out, err = sim(capsys, "advise", *SOME, "--machine", str(file), "--partner")
    assert code == 2 and out == "" and "no room" in err and "[local] capacity" in err


def test_a_campaign_has_its_bill(capsys: pytest.CaptureFixture[str], priced: str, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    some = ("campaign", *SOME, "--machine", priced, "--days", "5", "--seeds", "2", "--spares", "1")
    document = sim_json(capsys, *some, "--csv", str(table))
    total = document["bill"]["total"]
    assert total["node_hours"] == pytest.approx(5 * 24 * 5) and total["money"] == pytest.approx(600 * 32.77)
    items = {item["what"]: item["node_hours"] for item in document["bill"]["items"]}
    assert items["spare nodes"] == pytest.approx(120)
    shares = document["summary"]["shares"]
    assert items["blocked by checkpoints"] == pytest.approx(480 * shares["blocked"]["mean"])
    rows = rows_of(table)
    mean = sum(float(row["lost_money"]) for row in rows) / len(rows)
    assert [float(row["node_hours"]) for row in rows] == pytest.approx([600, 600])
    assert mean == pytest.approx(document["bill"]["not_useful"]["money"]) and rows[0]["currency"] == "USD"
    assert document["space"]["steps"]["persistent"] == 4 and document["space"]["too_large"] == []
    code, out, _ = sim(capsys, *some)
    assert code == 0 and "what the run takes" in out and "USD" in out and "spare nodes" in out


JOB_RESTART = ("restart", "--state", "tensors-64x4MB", "--machine", "byterobust", "--ranks", "64", "--no-partner")


def test_tables_documents_and_rows_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "ways.csv"
    document = sim_json(capsys, *JOB_RESTART, "--csv", str(written))
    assert (document["format"], document["version"], document["restart_mode"]) == ("deeppart-sim-restart", 1, "spares")
    ways: dict[str, Any] = {each["way"]: each for each in document["ways"]}
    assert tuple(ways) == tuple(WAYS)
    requeued = ways["job"]["after"]["node"]["pieces_s"]
    assert requeued["requeue"] == pytest.approx(397 + 64 * 0.0195) and requeued["replace"] == 0.0
    assert ways["allocation"]["after"]["node"]["pieces_s"]["replace"] == 241.0
    assert "replace" not in ways["spares"]["after"]["node"]["pieces_s"]
    rows = rows_of(written)
    for way, each in ways.items():
        of_way = {row["row"]: row for row in rows if row["way"] == way}
        assert set(of_way) == {*each["after"], "of the time"}
        for kind, back in each["after"].items():
            assert float(of_way[kind]["back"]) == pytest.approx(back["total_s"])
            for piece in PIECES:
                assert float(of_way[kind][piece]) == pytest.approx(back["pieces_s"].get(piece, 0.0))
        parts = [float(of_way["of the time"][part]) for part in each["shares"]]
        assert sum(parts) == pytest.approx(each["lost"])
    code, out, _ = sim(capsys, *JOB_RESTART)
    assert code == 0 and "first_step" not in out, "a piece that costs nothing is not shown"
    for name, way in WAYS.items():
        assert f"- {name}: {way.words}" in out
    assert "6 min 38 s" in out, "the queue"
