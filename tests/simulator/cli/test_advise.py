"""``deeppart-sim advise``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import deeppart
from tests.simulator.commands import SMALL, sim, sim_json

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
    period = sim_json(capsys, "advise", *SMALL, "--ranks", "1024", "--step-time", "0.5 s")["advised"]["period_s"]
    assert min(filter(None, config.every.values())) == pytest.approx(period / 0.5, abs=1)


def test_advice_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = sim_json(capsys, "advise", *SMALL, "--ranks", "1024")
    wastes = [choice["waste"] for choice in document["choices"]]
    assert wastes == sorted(wastes)
    assert document["advised"] in document["front"]
    assert document["advised"]["waste"] <= 1.05 * wastes[0] + 5e-4
    worse = sim_json(capsys, "advise", *SMALL, "--ranks", "1024", "--mtbf-factor", "0.1")
    assert worse["advised"]["waste"] > document["advised"]["waste"]
    factors = {each["factor"]: each for each in document["sensitivity"]}
    assert factors[0.5]["kept"] >= factors[0.5]["adapted"]


def test_what_is_given_is_advised(capsys: pytest.CaptureFixture[str]) -> None:
    def levels(*options: str) -> set[str]:
        document = sim_json(capsys, "advise", *SMALL, "--ranks", "128", *options)
        return {choice["levels"] for choice in document["choices"]}

    assert levels("--parity", "8/2", "--compression", "none") == {"local + parity 8/2 + persistent"}
    assert levels("--no-local", "--compression", "auto") == {"persistent, compressed"}
    assert all("partner" in each for each in levels("--partner"))
    plain = levels("--no-partner", "--compression", "none")
    assert plain and not any("partner" in each or "compressed" in each for each in plain)


def test_a_machine_with_fewer_nodes_is_a_what_if(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deeppart_simulator.report.page._WALL_S", 86400.0)
    file, page = tmp_path / "small.toml", tmp_path / "page.html"
    file.write_text('base = "frontier"\nnodes = 2\n[failures]\nnode = "30 days"\nshape = 0.7\n')
    some = ("advise", "--state", "tensors-8x4MB", "--machine", str(file), "--ranks", "32", "--compression", "none")
    code, out, err = sim(capsys, *some, "--report", str(page))
    assert code == 0, err
    for text in (out, page.read_text()):
        assert "a what-if: 4 nodes, and frontier has 2;" in text and "Weibull, shape 0.7" in text
    assert "what-if: 4 nodes" in sim_json(capsys, *some)["notes"][0]


@pytest.mark.now_and_then(2)
def test_the_share_of_flushes_counts_under_its_old_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    def advised(*options: str) -> object:
        return sim_json(capsys, "advise", *SMALL, "--ranks", "64", *options)["advised"]

    assert advised("--drain-share", "1e-6") == advised("--flush-share", "1e-6") != advised()


def test_advice_for_a_machine_without_failures_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "safe.toml"
    file.write_text('base = "frontier"\n[failures]\nnode = "never"\ngroup = "never"\nsystem = "never"\n')
    code, _, err = sim(capsys, "advise", *SMALL[:2], "--machine", str(file), "--ranks", "8")
    assert code == 2 and "without failures" in err
    assert "never fails" in err and "deeppart.plan" not in err  # in the words of who asks, not of the library


def test_a_job_that_leaves_the_nodes_storage_out_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    out = sim(capsys, "advise", *SMALL, "--ranks", "64", "--no-local")[1]
    assert "# nothing on the nodes' own storage; " in out and "# 0 B" not in out
    assert "# nothing" not in sim(capsys, "advise", *SMALL, "--ranks", "64", "--local")[1]


def test_advice_begins_with_a_sentence_and_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    some = ("advise", *SMALL, "--ranks", "1024")
    out, document = sim(capsys, *some)[1], sim_json(capsys, *some)
    assert out.splitlines()[0] == document["sentence"] and document["sentence"].startswith("Call checkpoint() every ")
    rows = [line.strip("\u2502 ") for line in out.splitlines() if line.startswith("\u2502")]
    assert rows[0].startswith("> " + document["advised"]["levels"]) and not any(row[:2] == "> " for row in rows[1:])
    assert document["advised"]["work_per_failure_s"] > document["advised"]["period_s"] / 3


def test_preemptions_without_notice_are_failures(capsys: pytest.CaptureFixture[str]) -> None:
    some = ("advise", *SMALL, "--ranks", "64")
    often, told, never = (
        sim_json(capsys, *some, *more)["advised"]
        for more in (("--preemption", "1h"), ("--preemption", "1h", "--notice", "10min"), ())
    )
    assert often["every_persistent"] * often["period_s"] < never["every_persistent"] * never["period_s"] / 3
    assert told["period_s"] == never["period_s"] and told["waste_rework"] < often["waste_rework"]
    assert told["waste"] > never["waste"]
    code, _, err = sim(capsys, *some, "--notice", "10min")
    assert code == 2 and "--preemption" in err
