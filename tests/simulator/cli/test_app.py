"""The ``deeppart-sim`` command: every sub-command, its forms of output, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path

import pytest
from deeppart_simulator.cli import main

from deeppart.cli.commands import BROKEN_PIPE
from tests.simulator.commands import sim, sim_json

# --- lists ------------------------------------------------------------------------------------------------------------


def test_lists(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = sim(capsys, "scale", "--machine", "list")
    assert code == 0 and "frontier" in out and "llama3" in out
    code, out, _ = sim(capsys, "scale", "--machine", "list:summit")
    assert code == 0 and tomllib.loads(out)["nodes"] == 4608
    assert {each["name"] for each in sim_json(capsys, "scale", "--machine", "list")} >= {"frontier", "summit", "llama3"}
    code, out, _ = sim(capsys, "scale", "--state", "list")
    assert code == 0 and "335,141,888" in out
    (one,) = sim_json(capsys, "scale", "--state", "list:gpt-1t+adam-mixed")
    assert one["parameters"] > 10**12


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("scale", "--ranks", "²"), "--ranks"),
        (("scale", "--ranks-per-node", "1000000"), "--ranks-per-node"),
        (("scale", "--ranks", "8", "--flush-bandwidth", "5 B/s"), "at least 1 MB/s"),
        (("campaign", "--ranks", "8", "--parity", "128/1"), "127"),
        (("campaign", "--ranks", "8", "--levels", "locl=1"), "did you mean local?"),
        (("campaign", "--ranks", "64", "--levels", "local=2,partner=3"), "multiple"),
        (("campaign", "--ranks", "8", "--levels", "local=0"), "without checkpoints"),
        (("campaign", "--ranks", "8", "--days", "1e9"), "takes long"),
        (("scale", "--machine", "fronteer"), "did you mean frontier?"),
        (("sclae",), "Did you mean 'scale'?"),
        (("cluster", "--policy", "polux"), "did you mean pollux?"),
        (("scale", "--state", "bert-lage+adam"), "did you mean bert-large?"),
        (("scale", "--state", "bert-large@fsdb"), "did you mean fsdp?"),
        (("scale", "--ranks", "8", "--strategy", "deepart"), "did you mean deeppart?"),
        (("scale", "--ranks", "8", "--flush-bandwidth", "slow"), "--flush-bandwidth"),
        *(
            (("campaign", "--ranks", "8", f"--parity={text}"), "--parity")
            for text in ("x", "1", "8/2/1", "8/x", "/2", "\u00b2")
        ),
        *((("scale", f"--ranks={text}"), "--ranks") for text in ("", "1,,2", "-1", "9" * 5000)),
        (("campaign", "--time-limit", "1h", "--queue", "exponential:"), "--queue"),
        (("campaign", "--ranks", "8", "--every", "often"), "--every"),
        (("campaign", "--ranks", "8", "--trace", "/nowhere.csv"), "/nowhere.csv"),
        (("advise", "--ranks", "8", "--step-time", "short"), "--step-time"),
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
import json, shlex, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("simpy", "scipy", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from deeppart_simulator.cli.app import main

for line in sys.argv[1:]:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        code = main(shlex.split(line), standalone_mode=False)
    print(json.dumps([code, errors.getvalue()]))
"""
LACKS = {
    "scale --ranks 1,16": None,
    "advise --ranks 16 --step-time 1s": None,
    "scale --ranks 1 --report page.html": "simpy",
    "scale --ranks 1 --png picture.png": "matplotlib",
    "campaign --ranks 16 --days 1": "simpy",
}


def test_what_needs_no_extra_packages_works_without(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, *LACKS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for (line, lacks), said in zip(LACKS.items(), done.stdout.splitlines(), strict=True):
        code, err = json.loads(said)
        if lacks is None:
            assert (code, err) == (0, ""), line
        else:
            assert code == 2 and lacks in err and "pip install 'deeppart[sim]'" in err, line


def test_a_reader_that_has_gone_is_no_result() -> None:
    """1 would say that a validation has missed its target."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "deeppart_simulator.cli", "scale", "--machine", "list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert done.returncode == BROKEN_PIPE and done.stderr == b""


LINES = {
    "goodput": "scale --goodput --state mlperf-8b --machine p4d --ranks 64 --every 1min,10min --days 7.5",
    "restart": "restart --state gpt2 --machine llama3 --ranks 256 --no-partner --parity 8/2",
    "compare": "advise --state gpt2 --with '--machine llama3' --with '--machine summit --no-local'",
}


def made_by(arguments: list[str], file: Path) -> tuple[str, str]:
    """The page, and the command at its end."""
    assert main([*arguments, "--report", str(file), "--csv", f"{file}.csv"], "deeppart-sim", standalone_mode=False) == 0
    text = file.read_text()
    found = re.search(r"<footer><p>Made by</p><pre>(.*?)</pre>", text)
    assert found is not None
    return text, unescape(found[1])


@pytest.mark.sweep(3)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_page_says_how_to_make_it_once_more(line: str, tmp_path: Path) -> None:
    text, command = made_by(shlex.split(line), tmp_path / "a.html")
    assert shlex.split(command)[: 1 + len(shlex.split(line))] == ["deeppart-sim", *shlex.split(line)]
    assert main(shlex.split(command)[1:], "deeppart-sim", standalone_mode=False) == 0
    assert (tmp_path / "a.html").read_text() == text
