"""Ranks that run another checkout of this repository: how they are started, and what each of them does first.

    python -m mpi4py -m benchmarks.checkout MODULE CHECKOUT SETTINGS RESULT

The deeppart of the checkout under test is imported before anything else; the module, and all of the benchmarks, come
from this one. ``MODULE.measure(SETTINGS, comm)`` returns what was measured, which rank 0 writes.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    import deeppart

    sys.path.remove(sys.argv[2])

from benchmarks.launching import ROOT, CannotRunError, environment_of_ranks, find_launcher, run_ranks
from benchmarks.settings import STATES, Settings
from benchmarks.workload import BERT_LAYERS

_TIMEOUT_S = 900.0
_PR_SET_PDEATHSIG = 1
BEFORE, NOW = "before", "now"
#: what was measured -> seconds, each time
Times = dict[str, list[float]]


class MalfunctionError(Exception):
    """The ranks of one run failed; they have said why."""


class Runs:
    """Runs of one module, with one checkout or another.

    Args:
        module: what the ranks run: the name of a module of this package.
        disk, tmpfs: where persistent and local files go.
        tunables: of the C library, for the ranks.

    Raises:
        CannotRunError: there is no launcher.
    """

    def __init__(self, module: str, disk: Path, tmpfs: Path, tunables: str) -> None:
        self._module, self._disk, self._tmpfs, self._tunables = module, disk, tmpfs, tunables
        self._launcher = find_launcher()

    def run(self, checkout: Path, ranks: int, settings_in: Callable[[str, str], str]) -> Times:
        """What so many ranks measured.

        Args:
            checkout: of which the library is measured.
            settings_in: given an empty directory on the disk and one on tmpfs, the module's settings as JSON.

        Raises:
            MalfunctionError: the ranks failed.
        """
        prefix = f"deeppart-{self._module}-"
        with (
            tempfile.TemporaryDirectory(prefix=prefix, dir=self._disk) as disk,
            tempfile.TemporaryDirectory(prefix=prefix, dir=self._tmpfs) as tmpfs,
            tempfile.TemporaryDirectory(prefix=prefix) as work,
        ):
            settings, result = Path(work) / "settings.json", Path(work) / "result.json"
            settings.write_text(settings_in(disk, tmpfs), encoding="utf-8")
            files = [str(path) for path in (checkout, settings, result)]
            module = ["-m", "mpi4py", "-m", "benchmarks.checkout", f"benchmarks.{self._module}", *files]
            command = [*self._launcher, "-n", str(ranks), sys.executable, *module]
            if not run_ranks(command, work, _TIMEOUT_S, environment_of_ranks(_TIMEOUT_S, self._tunables)):
                raise MalfunctionError
            times: Times = json.loads(result.read_text(encoding="utf-8"))
            return times


def bert_settings(ranks: int, scale: float, repeat: int, node_size: int = 0) -> Callable[[str, str], str]:
    """Settings of BERT-large with Adam at a scale, for :meth:`Runs.run`; nodes by name, or of so many ranks."""

    def settings_in(disk: str, tmpfs: str) -> str:
        state = STATES[0], scale, BERT_LAYERS
        return Settings(ranks, *state, repeat, disk, tmpfs, (), node_size=node_size).as_json()

    return settings_in


def checkouts(before: Path | None) -> dict[str, Path]:
    """The checkouts to be measured, by name; this one alone if there is no other.

    Raises:
        CannotRunError: the other one is none.
    """
    if before is None:
        return {NOW: ROOT}
    if not (before / "deeppart" / "__init__.py").is_file():
        raise CannotRunError(f"{before} is no checkout: it has no deeppart/__init__.py")
    return {BEFORE: before.resolve(), NOW: ROOT}


def main(module: str, checkout: Path, settings_path: Path, result_path: Path) -> None:
    """Measure as this rank; rank 0 writes the result."""
    import torch
    from mpi4py import MPI

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the launcher
    torch.set_num_threads(1)
    assert Path(deeppart.__file__).is_relative_to(checkout), f"{deeppart.__file__} was imported instead"
    comm = MPI.COMM_WORLD.Dup()
    found: Times = import_module(module).measure(settings_path, comm)
    if comm.rank == 0:
        result_path.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
