"""Tests marked ``mpi``: pytest itself runs on every rank, ``make test-mpi`` (pytest-mpi skips those
that need more ranks).

Rank 0 prints, and whichever rank fails. A failed or hanging test ends the whole job at once: the other ranks would wait
for the failed one in their next collective call until the end of time. Does nothing in an ordinary pytest run.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sampling
from tests.mpi import launchers, over_sockets
from tests.mpi.nursery import leave_processors
from tests.mpi.patience import FOR_EVER_S, patient_barrier

#: Seconds until a test counts as hanging; ``@pytest.mark.timeout(seconds)`` says otherwise.
HANG_GUARD = 60.0
#: Seconds that a rank which failed waits for the others, before it ends them.
MOST_APART_S = 120.0


def pytest_configure(config: pytest.Config) -> None:
    """Join the ranks, when mpirun started this process."""
    started = launchers.launched_ranks()
    if started is None:
        return
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        pytest.exit(f"mpi4py does not load: {error}", returncode=4)
    world = MPI.COMM_WORLD
    if world.size != started:
        pytest.exit(f"mpirun started {started} ranks, but MPI's world has {world.size}: two MPIs", returncode=4)
    config.pluginmanager.register(_Ranks(world), "deeppart-ranks")
    sampling.take(world.bcast(sampling.chosen()))  # it may have been midnight in between
    over_sockets.install()
    leave_processors()


class _Ranks:
    """The hooks of a run on several ranks."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # pytest captures fd 2 during tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self.world.rank > 0:
            reporter = session.config.pluginmanager.getplugin("terminalreporter")
            reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115 - until the end of the process

    def pytest_sessionfinish(self) -> None:
        if self.world.rank == 0:
            over_sockets.store_of_launcher().unlink(missing_ok=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        marker = item.get_closest_marker("timeout")
        limit = float(marker.args[0]) if marker and marker.args else HANG_GUARD
        # A C thread: it works while this thread is inside a blocking MPI call. Its exit makes mpirun end the others.
        faulthandler.dump_traceback_later(limit + 1.0, exit=True, file=self.stderr)
        result = yield
        faulthandler.cancel_dump_traceback_later()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.abort(f"{report.nodeid} failed in {report.when}", report.longreprtext + "\n" + report.capstderr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.abort(f"{report.nodeid} cannot be collected", report.longreprtext)

    def pytest_internalerror(self, excrepr: object) -> None:
        self.abort("pytest failed", str(excrepr))

    def abort(self, what: str, text: str) -> None:
        sys.stdout.flush()
        print(f"\nrank {self.world.rank} of {self.world.size}: {what}\n{text}", file=self.stderr)
        self.world.Abort(1)


@pytest.fixture(scope="session")
def run_on(pytestconfig: pytest.Config) -> Callable[..., list[Any]]:
    """``run_on(n, function, *args)``: call ``function(comm, *args)`` on the first n ranks, as a job of their own.

    Returns what each of them returned, on every rank. An exception on any rank fails the test on all.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    ranks = pytestconfig.pluginmanager.getplugin("deeppart-ranks")
    assert isinstance(ranks, _Ranks)

    def run(n: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        assert n <= world.size, f"needs {n} ranks, mpirun started {world.size}"
        comm = world.Split(int(world.rank >= n), world.rank)
        value, problem = None, None
        if world.rank < n:
            try:
                value = function(comm, *args)
            except Exception:
                problem = f"rank {world.rank}:\n{traceback.format_exc()}"
        if not patient_barrier(world, MOST_APART_S if problem else FOR_EVER_S):
            assert problem is not None  # the others may wait for this one, somewhere in the function
            ranks.abort("failed where others do not", problem)
        results = world.allgather((value, problem))
        comm.Free()
        problems = [text for _, text in results if text]
        assert not problems, "\n".join(problems)
        return [result for result, _ in results[:n]]

    return run


@pytest.fixture(scope="session")
def new_shared_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a fresh directory, the same on every rank."""
    from mpi4py import MPI

    def make() -> Path:
        path = tmp_path_factory.mktemp("shared") if MPI.COMM_WORLD.rank == 0 else None
        shared: Path = MPI.COMM_WORLD.bcast(path)
        return shared

    return make


@pytest.fixture
def shared_path(new_shared_path: Callable[[], Path]) -> Path:
    """A fresh directory for one test, the same on every rank."""
    return new_shared_path()


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A fresh directory on tmpfs, the same on every rank; one that an aborted run has left is another."""
    from mpi4py import MPI

    from deeppart.mapped import lies_in_memory

    memory = Path("/dev/shm")
    if not memory.is_dir() or not lies_in_memory(memory):
        pytest.skip("no tmpfs at /dev/shm")
    mine = tempfile.mkdtemp(prefix="deeppart-test-", dir=memory) if MPI.COMM_WORLD.rank == 0 else None
    directory = Path(MPI.COMM_WORLD.bcast(mine))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
