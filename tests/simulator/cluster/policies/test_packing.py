"""GPUs on nodes: what fits, what does not, and what is given back."""

from __future__ import annotations

from deeppart_simulator.cluster.pollux import Packing


def test_small_jobs_go_where_they_leave_least() -> None:
    packing = Packing(3, 4)
    packing.put((1,))
    assert packing.place(3) == (1, 1, 1) and packing.place(4) == (0, 0, 0, 0)
    packing.put((0, 0))
    assert packing.place(2) == (0, 0)


def test_one_job_with_others_elsewhere_on_a_node() -> None:
    packing = Packing(3, 4)
    packing.put((0, 0, 0, 1))
    assert packing.place(3) == (1, 1, 1)  # alone on its node: it shares no network
    assert packing.place(5) is None and not packing.fits((1, 2)) and packing.fits((1, 1))
    packing.remove((0, 0, 0, 1))
    assert packing.place(5) == (0, 0, 0, 0, 1)


def test_not_scattered_over_more_nodes_than_allowed() -> None:
    packing = Packing(6, 4)
    for node in range(6):
        packing.put((node,) * 3)
    assert packing.place(3) == (0, 1, 2)
    assert packing.place(4) is None and packing.place(4, scattered=3) is not None


def test_only_free_gpus_fit() -> None:
    packing = Packing(1, 2)
    assert packing.fits((0, 0)) and not packing.fits((0, 0, 0))
    packing.put((0,))
    assert packing.fits((0,)) and not packing.fits((0, 0))
