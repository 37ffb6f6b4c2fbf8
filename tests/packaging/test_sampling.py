"""Parts of sweeps (tests/sampling.py): together they are everything, and each has something of each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.sampling import SAMPLES, is_due, part_of

ROOT = Path(__file__).parents[2]
NUMBERS = range(1, SAMPLES + 1)
PLACES = list(product(("local", "persistent"), ("once", "lasting"), range(7))) + [("rare", "once", 0)]

SWEEP = """
import pytest

@pytest.mark.sweep(3, kinds=("level",))
@pytest.mark.parametrize("code", range(6))
@pytest.mark.parametrize("level", ["local", "persistent", "node"])
def test_swept(level, code):
    assert code != 5

@pytest.mark.now_and_then(4)
def test_long():
    pass

@pytest.mark.now_and_then(2, together=True)
@pytest.mark.parametrize("one", range(4))
def test_together(one):
    pass

def test_always():
    pass

def test_too():
    pass
"""
#: Those that are in every run, of which ``--one-in 2`` takes half.
IN_ALL = {"test_always", "test_too"}


def test_all_parts_are_the_whole() -> None:
    for every, count in product(range(1, SAMPLES + 1), (0, 1, 2, 5, 8, 9, 100)):
        parts = [part_of(range(count), number, every) for number in NUMBERS]
        assert set().union(*parts) == set(range(count)) and part_of(range(count), None, every) == list(range(count))
        sizes = {len(part) for part in parts}
        assert max(sizes) <= -(-count // min(every, max(count, 1))) and max(sizes) - min(sizes) <= 1
        assert parts == [sorted(part) for part in parts], "in their order"


@pytest.mark.parametrize("every", [1, 3, 8])
def test_each_part_has_something_of_each_kind(every: int) -> None:
    parts = [part_of(PLACES, number, every, kind=lambda place: place[:2]) for number in NUMBERS]
    assert set().union(*map(set, parts)) == set(PLACES)
    assert all({place[:2] for place in part} == {place[:2] for place in PLACES} for part in parts)


@pytest.mark.parametrize("every", [2, 4, 8])
def test_now_and_then_is_as_often_as_it_says(every: int) -> None:
    for name in ("one", "another"):
        assert sum(is_due(name, number, every) for number in NUMBERS) == SAMPLES // every
        assert is_due(name, None, every)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few tests, and this project's conftest.py."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_few.py").write_text(SWEEP)
    markers = "markers =\n    mpi: x\n    sweep: x\n    now_and_then: x\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntimeout = 60\npythonpath = {ROOT}\n{markers}")
    return tmp_path


RUNS = """
import json, sys
from contextlib import redirect_stdout
from io import StringIO
import pytest
for options in json.loads(sys.argv[1]):
    with redirect_stdout(StringIO()) as said:
        pytest.main(["-p", "no:cacheprovider", "-p", "no:pytest_mpi", "-v", *options])
    print(json.dumps(said.getvalue()))
"""


def outcomes(project: Path, *runs: list[str]) -> list[tuple[set[str], str]]:
    """Of runs with these options, in one process: names of the tests that were collected, and all that was printed."""
    command = [sys.executable, "-c", RUNS, json.dumps(runs)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    printed: list[str] = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [[line for line in text.splitlines() if "::" in line and "%]" in line] for text in printed]
    assert len(printed) == len(runs) and all(lines), done.stdout
    return [({line.split("::")[1].split(" ")[0] for line in of}, text) for of, text in zip(lines, printed, strict=True)]


def test_runs_of_pytest(project: Path) -> None:
    options = "--thorough", "--sample 1 --one-in 2", "--sample 2 --one-in 2", "--sample 3"
    by_name = ["--sample", "1", "-k", "test_long or test_swept or together"]
    (whole, said), *sampled, (named, _) = outcomes(project, *(each.split() for each in options), by_name)
    assert len(whole) == 25 and "sweeps: whole" in said
    assert "3 failed" in said, "what is wrong is found by a whole run"
    parts = {}
    for number, (part, said) in enumerate(sampled, start=1):
        parts[number] = part
        assert f"again: --sample {number};" in said
        taken = [name for name in part if name.startswith("test_swept")]
        assert sorted(name.split("[")[1].split("-")[0] for name in taken) == sorted(["local", "persistent", "node"] * 2)
    swept = {name for name in whole if name.startswith("test_swept")}
    assert parts[1] | parts[2] | parts[3] >= swept
    assert parts[1] & IN_ALL != parts[2] & IN_ALL and [len(parts[n] & IN_ALL) for n in (1, 2, 3)] == [1, 1, 2]
    together = [sum(name.startswith("test_together") for name in parts[number]) for number in (1, 2, 3)]
    assert together in ([0, 4, 0], [4, 0, 4])
    assert named == whole - IN_ALL, "who asks for a test gets it"
