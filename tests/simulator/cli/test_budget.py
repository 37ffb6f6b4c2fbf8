"""Node-hours, money, energy and space in what the commands print and write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deeppart_simulator.budget.bill import bill, cells
from deeppart_simulator.cli.budget import bill_document, bill_table, known

from tests.simulator.commands import rows_of, sim, sim_json
from tests.simulator.timing.jobs import MACHINE

MONEY = """base = "p4d"
[local]
capacity = "8 TB"
endurance = "50 PB"
[persistent]
capacity = "1 PB"
[power]
busy = "6 kW"
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
    """4 nodes for 720 hours at 32.77 USD and 6 kW."""
    table = tmp_path / "choices.csv"
    document = sim_json(capsys, "advise", *SOME, "--machine", priced, "--csv", str(table))
    total, lost = document["bill"]["total"], document["bill"]["not_useful"]
    assert total["node_hours"] == pytest.approx(2880) and total["money"] == pytest.approx(2880 * 32.77)
    assert total["kwh"] == pytest.approx(2880 * 6) and document["bill"]["currency"] == "USD"
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
    assert code == 0 and "in 30 days of this" in out and "94,378 USD" in out and "17.3 MWh" in out
    assert (
        "0.0064 % of its capacity, 1 PB" in out and "does not say" not in out and "not in the machine file" not in out
    )


def test_advise_names_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = sim(capsys, "advise", *SOME, "--machine", "frontier")
    assert code == 0 and "no money: [price] node_hour" in out and "MWh" in out and "USD" not in out
    document = sim_json(capsys, "advise", *SOME, "--machine", "cte-power")
    assert document["bill"]["total"]["money"] is None and document["bill"]["total"]["kwh"] is None
    assert document["space"]["drive_years"] is None and document["space"]["file_system_capacity"] is None


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


def test_a_quota_that_is_too_small_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(MONEY.replace('capacity = "1 PB"', 'quota = "63 GB"'))
    code, out, err = sim(capsys, "advise", *SOME, "--machine", str(file))
    assert code == 2 and out == "" and "[persistent] quota" in err and "keep" in err
    compressed = (*SOME[:-1], "tensor")
    assert sim(capsys, "advise", *compressed, "--machine", str(file))[0] == 0, "0.83 of 64 GB fit"


def test_a_campaign_has_its_bill(capsys: pytest.CaptureFixture[str], priced: str, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    some = ("campaign", *SOME, "--machine", priced, "--days", "5", "--seeds", "2", "--spares", "1")
    document = sim_json(capsys, *some, "--csv", str(table))
    total = document["bill"]["total"]
    assert total["node_hours"] == pytest.approx(5 * 24 * 5) and total["money"] == pytest.approx(600 * 32.77)
    assert total["kwh"] == pytest.approx(600 * 6), "as busy while it waits, since nothing else is said"
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


def test_a_campaign_that_has_no_room_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(MONEY.replace("8 TB", "12 GB"))
    some = ("campaign", *SOME, "--machine", str(file), "--days", "0.2", "--seeds", "1")
    code, out, _ = sim(capsys, *some)
    assert code == 0 and "no room: 16 GB are kept on a node" in out and "[local] capacity" in out
    (line,) = json.loads(sim(capsys, *some, "--json")[1])["space"]["too_large"]
    assert "16 GB" in line
    assert "no room" not in sim(capsys, *some, "--no-partner")[1]


def test_columns_are_only_for_what_is_known() -> None:
    plain = bill(MACHINE, 1, 3600.0, {"useful training": 1.0})
    assert [column.header for column in bill_table(plain, "").columns] == ["", "node-hours"]
    assert cells(plain.total, "") == ["1"] and bill_document(plain)["total"]["money"] is None
    assert known(float("inf")) is None and known(3.0) == 3.0
