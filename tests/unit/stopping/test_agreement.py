"""One process agrees at once; several: tests/elastic/test_stop_request.py, tests/mpi/comm/test_mpi.py."""

from __future__ import annotations

from deeppart.stopping import agreement_of_job


def test_one_process_agrees_at_once() -> None:
    alone = agreement_of_job()
    assert [alone.ask(mine) for mine in (False, True, False)] == [False, True, False]
    assert [alone.agree(mine) for mine in (False, True, False)] == [False, True, False]
    alone.finish()
