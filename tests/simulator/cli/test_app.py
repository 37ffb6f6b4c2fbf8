"""The ``deeppart-sim`` command: every sub-command, its forms of output, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.simulator.commands import sim, sim_json

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


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("scale", "--machine", "moon"), "frontier"),
        (("scale", "--state", "bert-huge"), "bert-large"),
        (("scale", "--ranks", "1,two"), "--ranks"),
        (("scale", "--ranks", "0"), "--ranks"),
        (("scale", "--ranks", "100000000"), "--ranks"),
        (("scale", "--ranks", "²"), "--ranks"),
        (("scale", "--ranks-per-node", "1000000"), "--ranks-per-node"),
        (("scale", "--ranks", "8", "--flush-bandwidth", "5 B/s"), "at least 1 MB/s"),
        (("campaign", "--ranks", "8", "--parity", "128/1"), "127"),
        (("campaign", "--ranks", "8", "--every", "0 s"), "above 0"),
        (("campaign", "--ranks", "8", "--levels", "locl=1"), "did you mean local?"),
        (("campaign", "--ranks", "64", "--levels", "local=2,partner=3"), "multiple"),
        (("campaign", "--ranks", "8", "--levels", "local=0"), "without checkpoints"),
        (("campaign", "--ranks", "8", "--days", "1e9"), "--anyway"),
        (("campaign", "--ranks", "8", "--days", "30", "--every", "1ms"), "--anyway"),
        (("campaign", "--ranks", "8", "--seeds", "1000000000"), "--anyway"),
        (("advise", "--ranks", "8", "--step-time", "0 s"), "above 0"),
        (("scale", "--machine", "fronteer"), "did you mean frontier?"),
        (("sclae",), "Did you mean 'scale'?"),
        (("cluster", "--policy", "polux"), "did you mean pollux?"),
        (("campaign", "--time-limit", "1 h", "--queue", "expnential:3h"), "did you mean exponential?"),
        (("scale", "--state", "bert-lage+adam"), "did you mean bert-large?"),
        (("scale", "--state", "bert-large+adm"), "did you mean +adam?"),
        (("scale", "--state", "bert-large:fp3"), "did you mean fp"),
        (("scale", "--state", "bert-large@fsdb"), "did you mean fsdp?"),
        (("scale", "--ranks", "8", "--strategy", "deepart"), "did you mean deeppart?"),
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


# --- what is not installed --------------------------------------------------------------------------------------------

_WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("simpy", "scipy", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from deeppart_simulator.cli.app import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("arguments", "lacks"),
    [
        (("scale", "--ranks", "1,16"), None),
        (("advise", "--ranks", "16", "--step-time", "1s"), None),
        (("scale", "--ranks", "1", "--report", "page.html"), "matplotlib"),
        (("scale", "--ranks", "1", "--png", "picture.png"), "matplotlib"),
        (("campaign", "--ranks", "16", "--days", "1"), "simpy"),
    ],
)
def test_what_needs_no_extra_packages_works_without(
    arguments: tuple[str, ...], lacks: str | None, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    if lacks is None:
        assert done.returncode == 0 and not done.stderr
    else:
        assert done.returncode == 2
        assert lacks in done.stderr and "pip install 'deeppart[sim]'" in done.stderr
