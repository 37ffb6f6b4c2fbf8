"""``deeppart-sim compare``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.commands import SMALL, rows_of, sim, sim_json

JOB = (*SMALL, "--ranks", "32")
WITH = ("--with", "--machine llama3", "--with", "--compression tensor --parity 2/1")


def test_each_job_is_what_advise_says_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = sim_json(capsys, "compare", *JOB, "--step-time", "2s", *WITH)
    assert [each["label"] for each in found["jobs"]] == [
        "base",
        "--machine llama3",
        "--compression tensor --parity 2/1",
    ]
    for each, changed in zip(
        found["jobs"], ((), ("--machine", "llama3"), ("--compression", "tensor", "--parity", "2/1")), strict=True
    ):
        advised = sim_json(capsys, "advise", *JOB, "--step-time", "2s", *changed)
        assert each["machine"] == advised["machine"] and each["state"] == advised["state"]
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


def test_every_option_of_a_job_can_differ(capsys: pytest.CaptureFixture[str]) -> None:
    changes = (
        "--state gpt2", "--ranks 8", "--ranks-per-node 4", "--mtbf-factor 0.01", "--strategy rank0", "--capture lazy",
        "--files node", "--flush-bandwidth '10 MB/s'", "--no-local", "--partner",
    )  # fmt: skip
    arguments = [word for change in changes for word in ("--with", change)]
    base, *others = sim_json(capsys, "compare", *JOB, *arguments)["jobs"]
    for change, each in zip(changes, others, strict=True):
        # --no-local and --files node say what is advised anyway, or matter to larger jobs.
        same = {key for key in base if base[key] == each[key]}
        assert same != {*base} - {"label"} or change in ("--no-local", "--files node"), change
    assert others[0]["state"]["name"] == "gpt2" and others[1]["ranks"] == 8 and others[2]["nodes"] == 8
    assert others[4]["strategy"] == "rank0" and others[4]["blocked_s"] > 10 * base["blocked_s"]


def test_where_nothing_fails_times_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quiet = tmp_path / "quiet machine.toml"
    quiet.write_text('base = "frontier"\n[failures]\nnode = "never"\ngroup = "never"\nsystem = "never"\n')
    files = (
        "--csv",
        str(tmp_path / "out.csv"),
        "--report",
        str(tmp_path / "out.html"),
        "--png",
        str(tmp_path / "a.png"),
    )
    code, out, err = sim(capsys, "compare", *JOB, "--with", f"--machine '{quiet}'", *files)
    assert code == 0, err
    base, other = rows_of(tmp_path / "out.csv")
    assert base["period_s"] and not other["period_s"] and other["blocked_s"] and other["until_persistent_s"]
    assert "base" in out and "quiet machine.toml" in out
    assert "nothing fails there" in (tmp_path / "out.html").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_label_is_shown_as_it_was_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "[bold]"
    folder.mkdir()
    (folder / "m.toml").write_text('base = "frontier"\nnodes = 7\n')
    code, out, _ = sim(capsys, "compare", *JOB, "--ranks", "64", "--with", f"--machine {folder / 'm.toml'}")
    assert code == 0 and out.count("[bold]") == 2 and "a what-if: 8 nodes" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--machin llama3", "--machin"),
        ("--machine 'llama3", "quotation"),
        ("--machine nowhere", "nowhere"),
        ("llama3", "llama3"),
        ("--json", "--json"),
        ("--compression tensr", "Did you mean 'tensor'?"),
        ("--step-time never", "--step-time"),
    ],
)
def test_what_cannot_be_read_is_refused(capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    code, out, err = sim(capsys, "compare", *JOB, "--with", text)
    assert code == 2 and said in out + err


def test_a_comparison_needs_something_to_compare_with(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = sim(capsys, "compare", *JOB)
    assert code == 2 and "--with" in err
