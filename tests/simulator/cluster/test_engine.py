"""The rounds: who is placed when, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from deeppart_simulator.cluster.engine import Cluster, Job, Request, placement_of, run
from deeppart_simulator.cluster.policies import Fifo

from deeppart.errors import ConfigError
from tests.simulator.cluster.toy import application, request


def cluster(nodes: int = 2, restart_s: float = 30.0) -> Cluster:
    return Cluster(nodes, 2, 60.0, lambda name: restart_s)


class Moves:
    """Gives one job the other node in each round, for some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.asked = rounds, 0

    def batch(self, request: Request) -> int:
        return int(request.batch)

    def share(
        self, now_s: float, jobs: Sequence[Job], held: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        self.asked += 1
        node = min(self.asked, self.rounds) % 2
        return {job.request.name: (node, node) for job in jobs}


def test_a_job_is_placed_at_the_first_decision_after_it_came(tmp_path: Path) -> None:
    app = application(tmp_path)
    (first,) = run(cluster(restart_s=0.0), Fifo(2, 2), [request(app, at_s=0)])
    (later,) = run(cluster(restart_s=0.0), Fifo(2, 2), [request(app, at_s=61)])
    assert later.finished_s - first.finished_s == pytest.approx(60.0)
    assert later.completion_s == pytest.approx(first.completion_s - 1)


def test_every_move_is_a_restart_and_costs_its_time(tmp_path: Path) -> None:
    app = application(tmp_path)
    calm, moved = (run(cluster(), Moves(rounds), [request(app)])[0] for rounds in (1, 5))
    assert (calm.restarts, moved.restarts) == (0, 4) and (calm.stopped_s, moved.stopped_s) == (30.0, 150.0)
    assert moved.finished_s - calm.finished_s == pytest.approx(120.0, abs=5.0)


def test_a_job_that_never_fits_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not done after a year"):
        run(Cluster(1, 2, 86_400.0, lambda name: 0.0), Fifo(1, 2), [request(application(tmp_path), gpus=3)])


def test_placements() -> None:
    assert placement_of((3, 3, 0, 5, 5)) == (2, 1, 2) and placement_of(()) == ()
