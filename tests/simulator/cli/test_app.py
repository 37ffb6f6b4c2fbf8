"""The ``deeppart-sim`` command: every sub-command, its forms of output, and what it refuses."""

from __future__ import annotations

import csv
import html.parser
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from deeppart_simulator.cli import main

import deeppart

SMALL = ("--state", "bert-base+adam", "--machine", "frontier")


def sim(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments], standalone_mode=False)
    out, err = capsys.readouterr()
    return code, out, err


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def sim_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = sim(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


# --- scale ------------------------------------------------------------------------------------------------------------


def test_scale(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = sim(
        capsys, "scale", *SMALL, "--ranks", "1,8,64", "--strategy", "deeppart,whole,flat,rank0", "--with-compression"
    )
    assert code == 0
    assert "1.31 GB in 796 leaves" in out
    assert len(re.findall(r"whole", out)) == 6


def test_scale_as_json_and_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "scale.csv"
    document = sim_json(
        capsys,
        "scale",
        *SMALL,
        "--ranks",
        "1,4,64,65536",
        "--ranks-per-node",
        "8",
        "--strategy",
        "deeppart,whole",
        "--csv",
        str(file),
    )
    assert [point["ranks"] for point in document["points"]] == [1, 1, 4, 4, 64, 64, 65536, 65536]
    by_strategy = {(p["ranks"], p["strategy"]): p for p in document["points"]}
    assert by_strategy[64, "deeppart"]["imbalance"] <= 1.02 < by_strategy[64, "whole"]["imbalance"]
    rows = rows_of(file)
    assert [row["ranks"] for row in rows] == ["1", "1", "4", "4", "64", "64", "65536", "65536"]
    assert float(rows[0]["capture_s"]) == document["points"][0]["stages"]["capture"]


def test_serial_stages(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = sim(capsys, "scale", *SMALL, "--ranks", "8", "--serial")
    assert code == 0 and "one after the other" in out


# --- campaign ---------------------------------------------------------------------------------------------------------


def test_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = sim(capsys, "campaign", *SMALL, "--ranks", "512", "--days", "3", "--seeds", "2", "--parity", "8/2")
    assert code == 0
    assert "useful training" in out and "mean of 2 courses" in out


def test_a_campaign_is_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("campaign", *SMALL, "--ranks", "4096", "--days", "2", "--seeds", "2", "--seed", "5", "--json")
    first, second = (sim(capsys, *arguments)[1] for _ in range(2))
    assert first == second
    other = sim(capsys, *arguments[:-3], "--seed", "6", "--json")[1]
    assert other != first


def test_a_campaign_with_a_trace_and_a_given_cadence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, table = tmp_path / "trace.csv", tmp_path / "campaign.csv"
    trace.write_text("at_s,kind,nodes\n5000,node,1\n9000,process,0\n")
    document = sim_json(
        capsys, "campaign", *SMALL, "--ranks", "32", "--days", "0.2", "--seeds", "1", "--trace", str(trace),
        "--every", "10min", "--levels", "local=1,partner=1,persistent=6", "--csv", str(table), "--spares", "1",
    )  # fmt: skip
    assert document["cadence"]["period_s"] == 600 and document["cadence"]["every"]["persistent"] == 6
    assert document["courses"][0]["recoveries"] == {"local": 1, "partner": 1}
    assert len(rows_of(table)) == 1


# --- advise -----------------------------------------------------------------------------------------------------------


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
    assert 1 in config.every.values()


def test_advice_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = sim_json(capsys, "advise", *SMALL, "--ranks", "1024")
    wastes = [choice["waste"] for choice in document["choices"]]
    assert wastes == sorted(wastes)
    assert document["advised"]["waste"] <= 1.05 * wastes[0]
    worse = sim_json(capsys, "advise", *SMALL, "--ranks", "1024", "--mtbf-factor", "0.1")
    assert worse["advised"]["waste"] > document["advised"]["waste"]
    factors = {each["factor"]: each for each in document["sensitivity"]}
    assert factors[0.5]["kept"] >= factors[0.5]["adapted"]


def test_advice_for_a_machine_without_failures_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "safe.toml"
    file.write_text('base = "frontier"\n[failures]\nnode = "never"\nsystem = "never"\n')
    code, _, err = sim(capsys, "advise", *SMALL[:2], "--machine", str(file), "--ranks", "8")
    assert code == 2 and "without failures" in err


# --- lists ------------------------------------------------------------------------------------------------------------


def test_lists(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = sim(capsys, "machines")
    assert code == 0 and "frontier" in out and "llama3" in out
    code, out, _ = sim(capsys, "machines", "summit")
    assert code == 0 and tomllib.loads(out)["nodes"] == 4608
    assert {each["name"] for each in sim_json(capsys, "machines")} >= {"frontier", "summit", "llama3"}
    code, out, _ = sim(capsys, "states")
    assert code == 0 and "335,141,888" in out
    (one,) = sim_json(capsys, "states", "gpt-1t+adam-mixed")
    assert one["parameters"] > 10**12


# --- states that exist ------------------------------------------------------------------------------------------------

MODEL = """
import torch

def build():
    with torch.device("meta"):
        last = torch.nn.Linear(500, 10).to(torch.bfloat16)
        return torch.nn.Sequential(torch.nn.Linear(1000, 500), torch.nn.ReLU(), last)

def nested():
    with torch.device("meta"):
        return {"a": [torch.empty(10, 10), torch.empty(3, dtype=torch.int64)], "n": 5}

def nothing():
    return {"a": 1}

def fails():
    raise RuntimeError("no luck")
"""


def test_a_state_from_a_python_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    found = sim_json(capsys, "scale", "--from", str(file), "--state", "+adam", "--ranks", "2")["state"]
    weights, biases = 1000 * 500 + 500, 500 * 10 + 10
    assert found["parameters"] == weights + biases
    assert found["bytes"] == 12 * weights + (2 + 8) * biases + 4 * 4
    found = sim_json(capsys, "scale", "--from", f"{file}:nested", "--ranks", "2")["state"]
    assert (found["bytes"], found["leaves"]) == (400 + 24, 2)


@pytest.mark.parametrize(
    ("function", "state", "what"),
    [(":nothing", "", "without a tensor"), (":fails", "", "no luck"), (":absent", "", "no such function"),
     (":nested", "+adam", "optimizer"), ("", "bert-base", "both --from and a model")],
)  # fmt: skip
def test_python_files_that_will_not_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, function: str, state: str, what: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    arguments = ["scale", "--from", f"{file}{function}", "--ranks", "2", *(["--state", state] if state else [])]
    code, _, err = sim(capsys, *arguments)
    assert code == 2 and what in err


def test_a_state_from_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    state = {"model": {"w": torch.zeros(1000, 10), "b": torch.zeros(10, dtype=torch.bfloat16)}, "step": 3}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as checkpointer:
        checkpointer.checkpoint(state, 1).wait()
    found = sim_json(capsys, "scale", "--from", str(tmp_path / "ckpt"), "--ranks", "2")["state"]
    assert (found["bytes"], found["leaves"]) == (40_020, 2)
    code, _, err = sim(capsys, "scale", "--from", str(tmp_path / "nowhere"), "--ranks", "2")
    assert code == 2 and "nowhere" in err


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("scale", "--machine", "moon"), "frontier"),
        (("scale", "--state", "bert-huge"), "bert-large"),
        (("scale", "--ranks", "1,two"), "--ranks"),
        (("scale", "--ranks", "0"), "--ranks"),
        (("scale", "--ranks", "1000000"), "fewer nodes"),
        (("scale", "--ranks", "8", "--strategy", "best"), "deeppart"),
        (("scale", "--ranks", "8", "--flush-bandwidth", "slow"), "--flush-bandwidth"),
        (("campaign", "--ranks", "8", "--parity", "x"), "--parity"),
        (("campaign", "--ranks", "64", "--parity", "4/4"), "parity_tolerate"),
        (("campaign", "--ranks", "8", "--every", "often"), "--every"),
        (("campaign", "--ranks", "8", "--levels", "cloud=1"), "--levels"),
        (("campaign", "--ranks", "8", "--trace", "/nowhere.csv"), "/nowhere.csv"),
        (("campaign", "--ranks", "8", "--days", "0"), "--days"),
        (("advise", "--ranks", "8", "--step-time", "short"), "--step-time"),
        (("advise", "--ranks", "-1"), "--ranks"),
        (("nonsense",), "nonsense"),
    ],
)
def test_impossible_requests_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], what: str
) -> None:
    code, _, err = sim(capsys, *arguments)
    assert code == 2 and what in err
    if arguments != ("nonsense",):
        code, out, _ = sim(capsys, *arguments, "--json")
        assert code == 2 and json.loads(out)["error"]["exit_code"] == 2


# --- pictures and pages -----------------------------------------------------------------------------------------------


class _Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.headings: list[str] = []
        self._in_heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_heading = tag == "h2"
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and value and not value.startswith("#"):
                self.outside.append(value)

    def handle_data(self, data: str) -> None:
        if self._in_heading:
            self.headings.append(data)
            self._in_heading = False


@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_a_page_has_everything_and_needs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "out.html"
    more = ("--days", "1", "--seeds", "1") if command == "campaign" else ()
    code, _, err = sim(capsys, command, *SMALL, "--ranks", "64", "--report", str(file), *more)
    assert code == 0, err
    reader = _Reader()
    reader.feed(file.read_text())
    assert reader.headings == ["How it scales", "One checkpoint", "Advice", "A campaign"]
    assert reader.outside == [] and "script" not in reader.tags
    assert reader.tags.count("svg") == 4


@pytest.mark.parametrize("command", ["scale", "campaign", "advise"])
def test_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    file = tmp_path / "out.png"
    more = ("--days", "1", "--seeds", "1") if command == "campaign" else ()
    assert sim(capsys, command, *SMALL, "--ranks", "64", "--png", str(file), *more)[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")
