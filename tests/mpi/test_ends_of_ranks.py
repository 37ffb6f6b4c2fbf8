"""Ranks that end differently, where only the training thread may talk to MPI: nobody waits for what never comes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deeppart

#: Slow enough that the last checkpoint is under way when the process ends; a wait as long as the timeout ends the test.
SETTINGS = "timeout=600, flush_bandwidth=4e6"
START = f"""
    import sys, torch, deeppart
    from mpi4py import MPI
    from tests.mpi.patience import patient_barrier

    rank = MPI.COMM_WORLD.rank
    state = {{"x": torch.ones(1_000_000), "n": 7}}

    def begin(name):
        checkpointer = deeppart.Checkpointer(deeppart.Config(persistent_dir=sys.argv[1] + name, {SETTINGS}))
        checkpointer.checkpoint(state, 7)
        return checkpointer
"""
DROPPED = """
    a, b = begin("/a"), begin("/b")
    if rank:
        del b
        del a
    else:
        del a
        del b
"""
KEPT_BY_ONE = """
    a, b = begin("/a"), begin("/b")
    kept = [a] if rank else []
    del a
"""
SETTLED_AT_A_START = f"""{DROPPED}
    with begin("/c"):
        pass
"""
WAYS = {"dropped": DROPPED, "kept by one": KEPT_BY_ONE, "settled at a start": SETTLED_AT_A_START}


def program(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(START) + textwrap.dedent(text))
    return path


@pytest.mark.sweep(2, kinds=("way",))
@pytest.mark.parametrize("level", ["funneled", "multiple"])
@pytest.mark.parametrize("way", WAYS)
def test_checkpointers_that_ranks_leave_in_different_orders(
    run_ranks: Callable[..., Any], tmp_path: Path, way: str, level: str
) -> None:
    result = run_ranks(
        2, program(tmp_path / "train.py", WAYS[way]), str(tmp_path), env={"MPI4PY_RC_THREAD_LEVEL": level}, timeout=60
    )
    assert not any(result.logs), result.output
    for name in ("a", "b", "c") if "start" in way else ("a", "b"):
        assert deeppart.load(tmp_path / name)["n"] == 7


EXIT_ON_ONE = """
    with begin("/a"):
        if rank:
            sys.exit(3)
        patient_barrier(MPI.COMM_WORLD)
"""
EXIT_ON_ALL = """
    with begin("/a"):
        sys.exit(3)
"""


def test_one_rank_ends_with_a_code_while_another_waits_for_it(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    """It gives the other a while, not all of the timeout."""
    script = program(tmp_path / "train.py", EXIT_ON_ONE)
    env = {"MPI4PY_RC_THREAD_LEVEL": "funneled"}
    assert run_ranks(2, script, str(tmp_path), env=env, timeout=60, expect_rc=None).returncode == 3


@pytest.mark.parametrize("level", ["funneled", "multiple"])
def test_all_ranks_end_with_a_code(run_ranks: Callable[..., Any], tmp_path: Path, level: str) -> None:
    """As a job does that asks to be started again: its last checkpoint is complete."""
    script, env = program(tmp_path / "train.py", EXIT_ON_ALL), {"MPI4PY_RC_THREAD_LEVEL": level}
    assert run_ranks(2, script, str(tmp_path), env=env, timeout=60, expect_rc=None).returncode == 3
    assert deeppart.load(tmp_path / "a")["n"] == 7
