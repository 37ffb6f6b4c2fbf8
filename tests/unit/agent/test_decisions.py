"""What the agent that leads decides, without any process."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest

from deeppart.agent import GIVEN_UP, STOPPED, TOO_FEW_NODES, JobOptions
from deeppart.agent.job import Job
from deeppart.agent.messages import (
    OBSERVER,
    Asked,
    Beat,
    Ended,
    Finish,
    Idle,
    Joined,
    Leave,
    Message,
    Over,
    Start,
)
from deeppart.progress import Progress


class Decided:
    """A job, what it has sent to its nodes, and its events."""

    def __init__(self, nodes: int, **options: Any) -> None:
        self.sent: list[tuple[int, Message]] = []
        self.events: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.importing: set[int] = set()  # nodes that would not be ready after an epoch
        listed = tuple(f"n{node}:1" for node in range(nodes))
        chosen = JobOptions(**{"ranks": 2, "nodes": listed, **options})
        self.job = Job(
            chosen,
            lambda node, message: self.sent.append((node, message)),
            self._tell,
            nodes - chosen.spares,
            60.0,
            60.0,
        )
        self.now_s = 0.0
        for node in range(nodes):
            self.join(node)

    def _tell(self, event: str, **values: Any) -> None:
        self.events.append(event)
        self.told.append(values)

    def join(self, node: int) -> None:
        self.job.join(Joined(node, f"n{node}", 2, 1000 + node))
        self.look()

    def lose(self, *nodes: int) -> None:
        self.job.lose(dict.fromkeys(nodes, "its agent has ended"))

    def beat(self, *nodes: int) -> None:
        for node in nodes:
            self.job.receive(node, Beat([], True))
        self.look()

    def want(self, ranks: int) -> None:
        self.job.want(ranks)
        self.beat(*self.job.nodes)

    def look(self, after_s: float = 0.0, left_s: float = math.inf) -> None:
        self.now_s += after_s
        self.job.look(self.now_s, left_s)

    def of(self, kind: type[Message]) -> list[tuple[int, Any]]:
        return [(node, message) for node, message in self.sent if isinstance(message, kind)]

    def starts(self) -> list[tuple[int, int, int]]:
        """Of the last epoch: node, first rank, number of ranks."""
        found = self.of(Start)
        return [(node, each.first, each.local) for node, each in found if each.epoch == found[-1][1].epoch]

    def idle(self, *nodes: int, step: int = -1) -> None:
        epoch = self.of(Start)[-1][1].epoch
        for node in nodes:
            self.job.receive(node, Idle(epoch, step, 2000 + node, node not in self.importing))
        self.look()

    def fail(self, node: int, *others: int, code: int = 1, step: int = -1) -> None:
        self.job.receive(node, Ended(self.of(Start)[-1][1].epoch, 0, code))
        self.idle(node, *others, step=step)


def test_ranks_are_divided_evenly_and_within_what_a_node_runs() -> None:
    job = Decided(3, least=1)
    assert job.starts() == [(0, 0, 2), (1, 2, 2), (2, 4, 2)]
    job.want(4)
    job.idle(0, 1, 2)  # they were done anyway
    assert job.job.code == 0
    job = Decided(3, least=1)
    job.want(4)
    assert [node for node, _ in job.of(Leave)] == [0, 1, 2] and not job.of(Finish)
    job.fail(0, 1, 2, code=STOPPED)
    assert job.of(Finish)[-1][1].within_s > 0 and job.starts() == [(0, 0, 2), (1, 2, 1), (2, 3, 1)]
    job.want(2)
    job.fail(2, 0, 1, code=STOPPED)
    assert job.starts() == [(0, 0, 1), (1, 1, 1)] and "failed" not in job.events
    job.want(4)
    job.fail(0, 1, code=1)  # nobody waits for those that are left
    assert job.of(Finish)[-1][1].within_s == 0.0 and "failed" in job.events


def test_a_node_that_comes_back_gets_ranks_once_it_is_ready() -> None:
    """At the next checkpoint of the others, which are not killed before."""
    job = Decided(3, least=1)
    job.lose(2)
    job.idle(0, 1)
    assert job.starts() == [(0, 0, 2), (1, 2, 2)]
    job.beat(0, 1)
    killed = len(job.of(Finish))
    job.join(2)
    assert not job.of(Leave) and job.events[-1] == "started"
    job.look(10.0)
    job.beat(2)
    job.beat(2)
    assert [node for node, _ in job.of(Leave)] == [0, 1], "once"
    assert job.events[-1] == "change" and job.told[-1] == {"ranks": 6} and len(job.of(Finish)) == killed
    job.fail(1, 0, code=STOPPED)
    assert job.starts() == [(0, 0, 2), (1, 2, 2), (2, 4, 2)] and job.events.count("failed") == 0


def test_a_node_that_imports_is_not_waited_for_if_others_are_enough() -> None:
    """Its storage may hang. It gets ranks later; at once, if there would be too few without it."""
    job = Decided(3, least=4, failures=9)
    job.lose(2)
    job.idle(0, 1)
    job.join(2)
    job.look(10.0)
    job.fail(0, 1)
    assert [node for node, _, _ in job.starts()] == [0, 1] and not job.of(Leave)
    job.beat(2)
    assert {node for node, _ in job.of(Leave)} == {0, 1}
    job.fail(0, 1, code=STOPPED)
    job.lose(2)
    job.idle(0, 1)
    job.lose(1)
    job.join(2)
    job.idle(0)
    assert [node for node, _, _ in job.starts()] == [0, 2]


def test_a_node_whose_process_that_forks_was_killed_is_replaced_by_a_spare() -> None:
    """At once; it is the spare then. Without a spare it is waited for, unless there may be fewer ranks."""
    job = Decided(3, spares=1, least=4)
    job.beat(0, 1, 2)
    job.importing.add(0)
    job.fail(0, 1)
    assert job.starts() == [(2, 0, 2), (1, 2, 2)]
    job.fail(1, 2)
    assert job.starts() == [(2, 0, 2), (1, 2, 2)], "0 still imports"
    job.importing = {1, 2}
    job.beat(0)
    job.fail(1, 2)
    assert job.starts() == [(2, 0, 2), (1, 2, 2)], "too few others"
    assert not job.of(Leave)


def test_a_node_that_was_lost_is_trusted_again_after_a_time_that_doubles() -> None:
    job = Decided(3, least=4, steady_s=10.0, failures=9)
    job.beat(0, 1, 2)
    for wait_s in (10.0, 20.0, 40.0):
        job.lose(2)
        job.idle(0, 1)
        job.join(2)
        job.look(wait_s - 1.0)
        job.beat(0, 1, 2)
        assert job.events[-1] == "started"
        job.look(1.0)
        assert job.events[-1] == "change"
        job.fail(0, 1, code=STOPPED)
        assert [node for node, _, _ in job.starts()] == [0, 1, 2]
    job.lose(2)
    job.idle(0, 1)
    job.join(2)
    job.lose(1)
    job.idle(0)
    assert [node for node, _, _ in job.starts()] == [0, 2], "needed"


def test_a_spare_that_comes_back_gets_none() -> None:
    job = Decided(3, least=1, spares=1)
    job.beat(0, 1, 2)
    job.lose(0)
    job.idle(1)
    job.join(0)
    job.beat(0, 1, 2)
    assert job.events[-1] == "started" and len(job.starts()) == 2


def test_a_node_that_is_done_may_be_lost() -> None:
    """Also while the others are watched for hangs; the job is done when they are."""
    job = Decided(2, hang_s=1.0)
    job.job.receive(0, Beat([Progress(1, 0.0, 50)] * 2))
    job.idle(1)
    job.lose(1)
    for _ in range(100):
        job.job.receive(0, Beat([Progress(1, 0.0, 60)] * 2))
        job.look(1.0)
    assert job.job.code is None
    job.idle(0)
    assert job.job.code == 0


def test_ranks_that_hang_after_another_node_is_done_are_found() -> None:
    """They wait for ranks that have ended with 0."""
    job = Decided(2, hang_s=1.0)
    for trained in range(30):
        for node in (0, 1):
            job.job.receive(node, Beat([Progress(1, trained, trained)] * 2))
        job.look(0.1)
    for rank in (0, 1):
        job.job.receive(0, Ended(1, rank, 0))
    job.idle(0)
    for _ in range(2):
        assert "hang" not in job.events
        job.look(1.0)
    assert job.told[job.events.index("hang")]["text"].endswith("behind: rank 2 and rank 3")
    assert [node for node, _ in job.of(Finish)] == [1]
    job.idle(1)
    assert job.starts()[-1][0] == 1 and job.told[job.events.index("failed")]["rank"] == 2


def test_what_an_epoch_before_has_sent_counts_no_more() -> None:
    job = Decided(2, failures=5)
    job.fail(0, 1)
    assert len(job.of(Start)) == 4
    job.job.receive(1, Ended(1, 0, 1))
    job.job.receive(1, Idle(1, 7, 1, True))
    job.look()
    assert not [each for each in job.of(Finish) if each[1].within_s != 0.0] and len(job.of(Finish)) == 2
    job.idle(0, 1)
    assert job.job.code == 0


def test_failures_count_in_a_row_without_a_new_step() -> None:
    job = Decided(2, failures=1)
    for step in (3, 6, 9):
        job.fail(step % 2, 1 - step % 2, step=step)
    assert job.job.code is None
    job.fail(0, 1, step=9)
    assert job.job.code == GIVEN_UP
    assert [node for node, _ in job.of(Over)] == [0, 1]


def test_an_observer_asks_and_is_no_node() -> None:
    job = Decided(2)
    job.job.receive(OBSERVER, Beat())
    job.job.receive(OBSERVER, Asked(15))
    job.job.receive(0, Asked(15))
    assert job.of(Finish) == [(0, Finish(120.0, 15)), (1, Finish(120.0, 15))], "once"
    job.job.receive(0, Asked(15))
    assert len(job.of(Finish)) == 4, "asked again"
    job.fail(0, 1, code=STOPPED)
    assert job.job.code == STOPPED


@pytest.mark.parametrize(("left", "code"), [(60.0, None), (61.0, TOO_FEW_NODES)])
def test_nodes_are_waited_for_a_minute(left: float, code: int | None) -> None:
    job = Decided(3, least=4, spares=0)
    job.lose(1)
    job.idle(0, 2)
    assert [node for node, _, _ in job.starts()] == [0, 2], "room for four"
    job.lose(2)
    job.idle(0)
    job.look(left - 0.5)
    job.look()
    assert job.job.code == code
    if code is None:
        job.join(1)
        assert [node for node, _, _ in job.starts()] == [0, 1]


def test_the_last_checkpoint_begins_in_time_for_the_end_of_the_job() -> None:
    """A minute, and twice what a checkpoint takes, before that; or, for a first one, two minutes more."""
    job = Decided(2, grace_s=1.0)
    job.look(left_s=181.0)
    job.job.receive(0, Beat([Progress(1, 0.0, 5, 0, 30.0), Progress(1, 0.0, 5, 0, 10.0)]))
    job.look(left_s=121.0)
    assert not job.of(Finish)
    job.look(left_s=119.0)
    assert job.of(Finish) == [(0, Finish(119.0, signal.SIGUSR1)), (1, Finish(119.0, signal.SIGUSR1))]
    job.look(left_s=118.0)
    job.fail(0, 1, code=STOPPED)
    assert job.job.code == STOPPED and "failed" not in job.events


def test_a_job_without_time_for_a_checkpoint_is_not_started() -> None:
    job = Decided(0)
    job.job.join(Joined(0, "n0", 2, 1000))
    job.look(left_s=170.0)
    assert job.job.code == GIVEN_UP and not job.of(Start)


def test_it_tells_once_in_an_epoch_how_long_the_slowest_ranks_took_until_they_train() -> None:
    job = Decided(2)
    job.job.receive(0, Beat([Progress(1, 0.0, 1, 0, 0.0, 2.0, 3.0, 4.0)] * 2))
    job.look()
    assert "training" not in job.events  # one node has not reported
    job.job.receive(1, Beat([Progress(1, 0.0, 1, 0, 0.0, 2.5, 2.75, 4.25)] * 2))
    job.look()
    job.look()
    assert job.told[-1] == {"epoch": 1, "step": 1, "start_s": 2.5, "restore_s": 0.5, "step_s": 1.25}
    job.job.receive(1, Ended(1, 0, -9))
    job.look(1.0)
    job.now_s += 0.5
    job.idle(0, 1)
    assert {start.why for _, start in job.of(Start)[2:]} == {"rank 2 on n1: killed by SIGKILL"}
    for node in range(2):
        job.job.receive(node, Beat([Progress(7, 0.0, 1, 0, 0.0, 0.0, 0.0, 1.0)] * 2))  # without a call of restore()
    job.look()
    assert job.told[-1] == {"epoch": 2, "step": 7, "kill_s": 0.5} and job.events.count("training") == 2
