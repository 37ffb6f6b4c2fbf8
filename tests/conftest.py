"""Fixtures and settings for all tests."""

from __future__ import annotations

import ctypes.util
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import sampling
from tests.mpi import launch, launchers, over_sockets

#: Limits on hanging tests are for an idle machine; on one that has ten times as much to do they would end good tests.
PATIENCE = 6.0
#: How many tests were left out, where none was kept.
_OTHERS = pytest.StashKey[int]()

# Process groups of earlier tests, which are garbage, have threads; a fork has not, and would wait for them when it
# collects the groups.
os.register_at_fork(after_in_child=gc.freeze)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is run of the sweeps (tests/sampling.py)."""
    group = parser.getgroup("sweeps")
    group.addoption("--thorough", action="store_true", help="run every sweep whole")
    text = f"which part of the sweeps to run, 1 to {sampling.SAMPLES}; by default that of the day"
    group.addoption("--sample", type=int, metavar="NUMBER", help=text)
    group.addoption("--one-in", type=int, default=1, metavar="COUNT", help="without --thorough, run so many tests only")


def pytest_report_header() -> str:
    """Which part of the sweeps is run."""
    return sampling.header()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Nothing in the shell around the tests configures the library; torch has one thread, before it is imported.

    Tests fork jobs off, and OpenMP's threads do not survive a fork: the child waits for them for good.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in [name for name in os.environ if name.startswith("DEEPPART_")]:
        del os.environ[name]
    sampling.choose(config)
    # Two busy cores make single examples slow now and then: that is no failure. A failure prints how to repeat it.
    most = sampling.examples(100)
    hypothesis.settings.register_profile("deeppart", deadline=None, print_blob=True, max_examples=most)
    hypothesis.settings.load_profile("deeppart")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under mpirun keep the tests marked mpi, elsewhere the others."""
    under_mpirun = launchers.launched_ranks() is not None
    kept = [item for item in items if (item.get_closest_marker("mpi") is not None) == under_mpirun]
    others = [item for item in items if (item.get_closest_marker("mpi") is not None) != under_mpirun]
    config.hook.pytest_deselected(items=others)
    if others and not kept:
        config.stash[_OTHERS] = len(others)
    if over_sockets.is_chosen():
        kept = [item for item in kept if item.get_closest_marker("of_mpi") is None]
    if not _is_named(config):
        number = sampling.chosen()
        if number is not None and over_sockets.is_chosen():
            number += 1  # what is run over MPI is another part: both together have more of it
        gone = sampling.left_out(kept, number, config.getoption("one_in"))
        config.hook.pytest_deselected(items=gone)
        without = set(gone)
        kept = [item for item in kept if item not in without]
    items[:] = kept
    for item in kept:
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0] if marker else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(PATIENCE * limit_s), append=False)
    for number, item in enumerate(starting_ranks(kept)):
        item.add_marker(pytest.mark.xdist_group(f"ranks-{number % 2}"))


def _is_named(config: pytest.Config) -> bool:
    """Whether somebody has asked for single tests, of which none is to be left out."""
    return any("::" in each for each in config.args) or bool(config.getoption("keyword"))


def starting_ranks(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests whose jobs have ranks from nurseries (tests/mpi/nursery.py), and no group of their own.

    Two workers run them all: each worker that did would import torch once more for each of its nurseries.
    """
    fixtures = {"run_ranks", "start_ranks", "run_python"}
    starting = [each for each in items if fixtures & set(getattr(each, "fixturenames", ()))]
    return [each for each in starting if each.get_closest_marker("xdist_group") is None]


#: Debian's packages that some tests need, and without which these are skipped.
SYSTEM_PACKAGES: dict[str, Callable[[], bool]] = {
    "slurmctld slurmd slurm-client munge": lambda: all(map(_has_command, ("slurmctld", "slurmd", "srun", "munged"))),
    "fuse3": lambda: ctypes.util.find_library("fuse3") is not None,
    "dosfstools": lambda: _has_command("mkfs.vfat"),
}


def _has_command(name: str) -> bool:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what skipped tests need, and how the tests run that were asked for and left out."""
    missing = " ".join(packages for packages, is_installed in SYSTEM_PACKAGES.items() if not is_installed())
    if missing and "skipped" in terminalreporter.stats:
        terminalreporter.write_line(f"for tests that were skipped: apt-get install {missing}")
    if left_out := config.stash.get(_OTHERS, 0):
        how = 'make test-mpi ARGS="-k NAME"' if launchers.launched_ranks() is None else "pytest, without mpirun"
        terminalreporter.write_line(f"left out, since they are to be run by {how}: {left_out}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture
def no_garbage() -> None:
    """For texts that are nested too deeply: a collection would call finalizers at the end of the stack, which fail."""
    gc.collect()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory on a tmpfs, where there is one: many tests write thousands of files."""
    where = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=where if where.is_dir() else tmp_path) as directory:
        yield Path(directory)


@pytest.fixture
def run_ranks() -> Callable[..., launch.JobResult]:
    """``run_ranks(n, function_or_script, *args, timeout=300, env={}, expect_rc=0)``: see tests/mpi/launch.py."""
    _need_mpi()
    return launch.run_ranks


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_python(script, *arguments, env=None, timeout=300)``: see tests/mpi/launch.py."""
    return launch.run_python


@pytest.fixture
def start_ranks() -> Iterator[Callable[..., launch.Job]]:
    """``start_ranks(n, function_or_script, *args, ...)`` -> job; what still runs at the end of the test is stopped."""
    _need_mpi()
    jobs: list[launch.Job] = []

    def start(*args: object, **options: object) -> launch.Job:
        jobs.append(launch.start_ranks(*args, **options))  # type: ignore[arg-type]
        return jobs[-1]

    yield start
    for job in jobs:
        job.__exit__()


def _need_mpi() -> None:
    if reason := launchers.unavailable():
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What importing and collecting makes stays: no garbage collection need look at it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
