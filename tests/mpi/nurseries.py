"""The nurseries of this process (see nursery.py), started when a job first needs them, ended at its end."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.mpi.stand_in import NURSERIES

#: What is read once, when an interpreter or a library starts: nurseries are for one choice of these.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "TORCH", "CUDA_")
_END_S = 5.0


class Nurseries:
    """Nurseries with one environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._directory = Path(tempfile.mkdtemp(prefix="nurseries-"))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._owner = os.getpid()
        atexit.register(self.close)

    def for_ranks(self, count: int) -> Path:
        """Start those that so many ranks need; returns the directory of their sockets."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        for number in range(min(count, NURSERIES)):
            if number not in self._processes or self._processes[number].poll() is not None:
                (self._directory / str(number)).unlink(missing_ok=True)
                self._processes[number] = self._start(self._directory / str(number))
        return self._directory

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        """A nursery; who asks it for a rank before it is ready waits in the queue of its socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(f"{path}.log", "wb") as log:
            listener.bind(str(path))
            listener.listen(100)
            return subprocess.Popen(
                [sys.executable, "-m", "tests.mpi.nursery", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=self._environment,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def close(self) -> None:
        """End them, and what is left of their ranks."""
        if os.getpid() != self._owner:
            return
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        shutil.rmtree(self._directory, ignore_errors=True)


_nurseries: dict[frozenset[tuple[str, str]], Nurseries] = {}


def nurseries(environment: Mapping[str, str]) -> Nurseries | None:
    """Those for ranks with this environment; None when each needs an interpreter of its own."""
    if "LD_PRELOAD" in environment:
        return None  # what it does is meant for the ranks
    key = frozenset((name, value) for name, value in environment.items() if name.startswith(_READ_AT_START))
    if key not in _nurseries:
        _nurseries[key] = Nurseries(environment)
    return _nurseries[key]
