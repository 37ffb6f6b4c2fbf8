"""Scripts that finalize MPI themselves: the last checkpoint is finished before."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deeppart

SCRIPT = """
    import sys, threading
    import torch, deeppart
    from mpi4py import MPI

    saver = deeppart.Checkpointer() if sys.argv[1] == "object" else deeppart
    state = {"x": torch.zeros(2_000_000), "rank": 0}
    assert saver.restore(state) is None
    for step in (1, 2, 3):
        state["x"] += 1
        state["rank"] = MPI.COMM_WORLD.rank
        saver.checkpoint(state, step)
    left = []
    name_threads = lambda *_: left.extend(each.name for each in threading.enumerate() if "deeppart" in each.name)
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=name_threads), None)  # called before older ones
    MPI.Finalize()
    if left:
        sys.exit(f"in MPI when MPI_Finalize has begun: {left}")
    for expected in (deeppart.errors.CheckpointError, deeppart.errors.LaunchError):
        try:
            saver.checkpoint(state, 99)
        except expected as error:
            assert "closed" in str(error) or "MPI is finalized" in str(error)
        else:
            sys.exit("a checkpoint without MPI")
        deeppart.close()
        saver = deeppart
"""


@pytest.mark.parametrize(("thread_level", "form"), [("multiple", "object"), ("multiple", ""), ("funneled", "object")])
def test_the_last_checkpoint_is_finished(
    run_ranks: Callable[..., Any], tmp_path: Path, thread_level: str, form: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    env = {"DEEPPART_PERSISTENT_DIR": str(tmp_path / "p"), "MPI4PY_RC_THREAD_LEVEL": thread_level}
    run_ranks(2, script, form, env=env)
    assert deeppart.load(tmp_path / "p", rank=1)["rank"] == 1
    assert deeppart.load(tmp_path / "p")["x"][-1] == 3


INITIALIZED_LATER = """
    import sys
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    import torch, deeppart

    for comm in [MPI.COMM_WORLD] + ([None] if sys.argv[1] == "2" else []):
        try:
            deeppart.Checkpointer(comm=comm)
        except deeppart.errors.LaunchError as error:
            assert "MPI is not initialized" in str(error) and "Init_thread" in str(error), error
        else:
            sys.exit("a communicator before MPI is initialized")
    if sys.argv[1] == "1":
        deeppart.Checkpointer(persistent_dir="alone").close()  # one process needs no MPI
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    saver = deeppart.Checkpointer(comm=MPI.COMM_WORLD, flush_bandwidth=8e6)
    pending = saver.checkpoint({"x": torch.ones(500_000)}, 1)
    assert not pending.finished
    MPI.Finalize()
    assert pending.finished
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_mpi_that_a_script_initializes_itself(run_ranks: Callable[..., Any], tmp_path: Path, ranks: int) -> None:
    """A checkpointer before that does not keep a later one from being finished."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(INITIALIZED_LATER))
    run_ranks(ranks, script, str(ranks), env={"DEEPPART_PERSISTENT_DIR": str(tmp_path / "p")})
    assert deeppart.load(tmp_path / "p")["x"][-1] == 1
