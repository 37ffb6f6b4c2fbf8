"""One process agrees at once; several, by torch and without it: tests/elastic/test_stop_request.py."""

from __future__ import annotations

from deeppart.comm import SingleComm
from deeppart.stopping import Alone, agreement_of_job
from deeppart.stopping.agreement import OfJob


def test_one_process_agrees_at_once() -> None:
    alone = agreement_of_job()
    assert isinstance(alone, Alone)
    assert not alone.ask(False) and alone.ask(True)
    alone.finish()


def test_the_answer_is_that_of_the_call_before() -> None:
    agreement = OfJob(SingleComm())
    assert [agreement.ask(mine) for mine in (False, True, False, False)] == [False, False, True, True]
    agreement.finish()


def test_an_answer_at_once_is_that_of_the_call() -> None:
    for agreement in (Alone(), OfJob(SingleComm())):
        assert [agreement.agree(mine) for mine in (False, True, False)] == [False, True, False]
