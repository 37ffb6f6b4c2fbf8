"""One checkpoint in the pipeline: which levels are reported and settled, and what it becomes without a share."""

from __future__ import annotations

from deeppart.errors import CheckpointError
from deeppart.model import Attempt
from deeppart.pending import DONE, Pending
from deeppart.save.job import Job, Opened, Progress

ATTEMPT = Attempt("a" * 32, "b" * 32, 0, 5, 1)


def job(*due: str) -> Job:
    failure = CheckpointError("no memory")
    return Job.of(ATTEMPT, frozenset(due), Pending(5, frozenset(due), lambda: None), None, failure, None)


def test_levels_are_open_until_they_are_settled() -> None:
    progress = Progress(["local", "persistent"])
    assert progress.needs() and progress.needs("local")
    assert not progress.settle("local") and not progress.settle("local")
    assert progress.settle("persistent") and not progress.needs()


def test_other_ranks_wait_to_hear_of_levels_that_are_not_redundant() -> None:
    progress = Progress(["local", "partner", "parity", "persistent"])
    assert progress.unreported(["local", "partner", "parity", "persistent"]) == {"local", "persistent"}
    progress.report("local")
    assert progress.unreported(["local", "persistent"]) == {"persistent"} and progress.needs("persistent")


def test_without_a_share_there_is_nothing_to_write_or_to_read() -> None:
    found = job("local", "persistent")
    assert (found.layout, found.document, found.local, found.local_summary) == (None, None, None, None)
    assert found.lease.memory is None
    found.opened.set_result(Opened(found.failure))
    assert found.local is None and found.failure is not None
    found.check_capture()  # nothing was captured in the background: there is nothing to look at again


def test_it_is_on_nodes_when_all_levels_there_are_complete() -> None:
    assert not job("persistent").is_on_nodes()
    found = job("local", "partner", "persistent")
    found.pending.note_level("local", DONE)
    assert not found.is_on_nodes()
    found.pending.note_level("partner", DONE)
    assert found.is_on_nodes()
