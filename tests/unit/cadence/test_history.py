"""The file of earlier runs: what later ones learn from it, and what it survives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deeppart.cadence import History, Run
from deeppart.model import RunsFile, StepKey
from deeppart.storage import MANIFEST_NAME, PosixStore
from tests.histories import often_failing
from tests.unit.commits import step_directory

# --- history ----------------------------------------------------------------------------------------------------------


def commit(root: Path, step: int) -> None:
    directory = step_directory(root, StepKey(step, "a" * 32, 0))
    directory.mkdir(parents=True)
    (directory / MANIFEST_NAME).write_text("a manifest")


def test_runs_are_known_to_later_ones(tmp_path: Path) -> None:
    first = History(PosixStore(tmp_path), "a" * 32, 4)
    assert first.runs == ()
    first.end(failed=False)
    second = History(PosixStore(tmp_path), "b" * 32, 4)  # dies without a word
    assert second.runs == (Run(pytest.approx(0, abs=5), 4),)  # type: ignore[arg-type]
    commit(tmp_path, 7)
    third = History(PosixStore(tmp_path), "c" * 32, 2)
    assert [run.failed for run in third.runs] == [False, True]
    assert third.runs[1].needed is None
    third.restored("partner")
    assert third.runs[1].needed == "partner"
    third.end(failed=True)
    fourth = History(PosixStore(tmp_path), "d" * 32, 2)
    assert [run.failed for run in fourth.runs] == [False, True, False], "the third has not committed anything"
    assert fourth.runs[1].needed == "partner" and fourth.problem is None


def test_a_run_that_ends_after_the_next_one_has_begun_takes_nothing_from_it(tmp_path: Path) -> None:
    overtaken = History(PosixStore(tmp_path), "a" * 32, 4)
    successor = History(PosixStore(tmp_path), "b" * 32, 2)
    successor.restored("partner")
    overtaken.end(failed=False)
    runs = json.loads((tmp_path / RunsFile.NAME).read_text())["runs"]
    assert [(run["session"][0], run["restored"], run["ended"] is not None) for run in runs] == [
        ("a", None, True),
        ("b", "partner", False),
    ]


def test_a_run_that_died_before_its_first_commit_is_no_failure(tmp_path: Path) -> None:
    """Such as one that stops at a mistake in the training script: it had nothing to lose."""
    History(PosixStore(tmp_path), "a" * 32, 1)
    failed = History(PosixStore(tmp_path), "b" * 32, 1)
    failed.end(failed=True)
    assert [run.failed for run in History(PosixStore(tmp_path), "c" * 32, 1).runs] == [False, False]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": "other", "version": 1, "runs": []}',
        '{"format": "deeppart-runs", "version": 1, "runs": [{"session": "x"}]}',
    ],
)
def test_a_file_that_cannot_be_read_is_begun_anew_and_said(tmp_path: Path, text: str) -> None:
    """What of a run cannot be read: tests/unit/model/test_records.py."""
    (tmp_path / RunsFile.NAME).write_text(text)
    history = History(PosixStore(tmp_path), "a" * 32, 1)
    assert history.runs == () and history.problem is not None and RunsFile.NAME in history.problem
    assert History(PosixStore(tmp_path), "b" * 32, 1).problem is None


def test_only_so_many_runs_are_kept(tmp_path: Path) -> None:
    often_failing(tmp_path / "p", RunsFile.MOST)
    History(PosixStore(tmp_path / "p"), "a" * 32, 1).end(failed=False)
    runs = json.loads((tmp_path / "p" / RunsFile.NAME).read_text())["runs"]
    assert len(runs) == RunsFile.MOST and runs[-1]["session"] == "a" * 32 and runs[-1]["ended"]
