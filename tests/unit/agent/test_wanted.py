"""How many ranks are wanted, by a file; what `deeppart run` refuses; and jobs that change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from deeppart.agent import WantedRanks
from deeppart.cli import main
from tests.unit.agent.test_job import Run, run  # noqa: F401 - a fixture


def test_the_latest_number_in_the_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "SIZE"
    wanted = WantedRanks(1, 4, file)
    assert wanted.now() == 4, "there is no file yet"
    file.write_text("3\n")
    assert wanted.now() == wanted.now() == 3
    file.write_text("1")
    assert wanted.now() == 1 and wanted.refused is None


@pytest.mark.parametrize("text", ["5", "0", "-1", "two", "1.5", "9" * 2000])
def test_what_is_no_such_number_is_not_used(tmp_path: Path, text: str) -> None:
    file = tmp_path / "SIZE"
    wanted = WantedRanks(1, 4, file)
    file.write_text(text)
    assert wanted.now() == 4 and wanted.refused is not None and "not a number in 1 to 4" in wanted.refused
    wanted.refused = None
    assert wanted.now() == 4 and wanted.refused is None, "it is said once"


def test_a_file_that_goes_or_is_none_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "SIZE"
    file.write_text("2")
    wanted = WantedRanks(1, 4, file)
    assert wanted.now() == 2
    file.unlink()
    assert wanted.now() == 2
    os.mkfifo(file)
    assert wanted.now() == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "2", "--min", "3"], "--min 3"),
        (["--ranks", "2", "--size-file", "/nowhere/SIZE"], "/nowhere/SIZE"),
        (["--ranks", "2", "--size-file", "/dev/null"], "not a regular file"),
        (["--ranks", "2", "--log", "/nowhere/log"], "/nowhere/log"),
        (["--ranks", "2", "--hang", "soon"], "auto, off"),
        (["--min", "2"], "--ranks"),
        (["--ranks", "2", "--", "nowhere/train.py"], "there is no such script"),
        (["--ranks", "2", "--grce", "5"], "No such option"),
        (["--ranks", "1", "--nodes", "a:1,b:1,a:1", "--node", "0"], "listed twice"),
        (["--ranks", "1", "--nodes", "a,,b", "--node", "0"], "has no name"),
        (["--ranks", "1", "--nodes", "a,b"], "it is not known which node this is"),
        (["--ranks", "1", "--nodes", "a:1,b:1", "--node", "2"], "there is no such node"),
        (["--ranks", "1", "--nodes", "a:1,b:1", "--node", "0", "--spares", "2"], "no room for the fewest ranks"),
        (
            ["--ranks", "1", "--nodes", "a:1,b:1", "--node", "0", "--spares", "1", "--min", "2"],
            "no room for the fewest ranks",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["run", *options, "--", "true"])
    assert done.exit_code == 2 and said in done.stderr


#: Ranks stop with 143 when they are asked to; the last number of ranks is done.
BODY = """
from deeppart.progress import is_asked_to_leave
ranks = int(os.environ["WORLD_SIZE"])
note(ranks=ranks)
if rank == 0 and epoch == 1:
    while not os.path.exists(f"rank-{{ranks - 1}}-epoch-1"):
        time.sleep(0.01)
    open("SIZE", "w").write("{size}")
while epoch < {last}:
    time.sleep(0.01)
    if is_asked_to_leave():
        sys.exit({code})
"""


def two_of_three(directory: Path) -> WantedRanks:
    (directory / "SIZE").write_text("2")
    return WantedRanks(1, 3, directory / "SIZE")


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_stop_and_another_number_is_started(run: Run, size: int) -> None:  # noqa: F811
    wanted = two_of_three(run.directory)
    assert run(BODY.format(code=143, size=size, last=2), ranks=3, wanted=wanted, failures=0) == 0
    assert run.noted(1, 1) == {"ranks": 2} and run.noted(size - 1, 2) == {"ranks": size}
    assert not (run.directory / f"rank-{size}-epoch-2").exists()
    assert [event for event, _ in run.events] == ["started", "change", "started"]
    assert run.of("change") == [{"ranks": size}]


def test_ranks_that_fail_at_a_change_have_failed(run: Run) -> None:  # noqa: F811
    """And are started again, as many as are wanted then."""
    wanted = two_of_three(run.directory)
    assert run(BODY.format(code=7, size=3, last=2), ranks=3, wanted=wanted, failures=1) == 0
    (failed,) = run.of("failed")
    assert failed["exit_code"] == 7 and run.noted(2, 2) == {"ranks": 3}


def test_ranks_that_are_done_at_a_change_are_done(run: Run) -> None:  # noqa: F811
    wanted = two_of_three(run.directory)
    assert run(BODY.format(code=0, size=1, last=2), ranks=3, wanted=wanted) == 0
    assert len(run.of("started")) == 1


def test_a_number_that_does_not_fit_is_said(run: Run) -> None:  # noqa: F811
    (run.directory / "SIZE").write_text("9")
    assert run("note()", wanted=WantedRanks(1, 2, run.directory / "SIZE")) == 0
    assert "'9' in" in run.of("note")[0]["text"]
