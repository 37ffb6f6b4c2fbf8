"""The nurseries of this process (see nursery.py), started when a job first needs them, ended at its end."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.mpi.launchers import STAND_IN
from tests.mpi.stand_in import NURSERIES

#: What ranks import sooner or later, and what takes them long. torch's optimizers import its compiler.
MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "numpy",
    "pytest",
    "deeppart.checkpointer",
    "deeppart.offline.reading",
    "tests.mpi.rank_main",
)
#: What is read once, when an interpreter or a library starts: nurseries are for one choice of these.
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "TORCH", "CUDA_")
_END_S = 5.0
#: Environments that there are nurseries for at a time: each of these has 160 MB of memory of its own.
_MOST = 3


class Nurseries:
    """Nurseries with one environment, for as many jobs as like.

    Attributes:
        directory: of their sockets.
        users: jobs that may have ranks from them.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="nurseries-"))
        self.users = 0
        self._environment = dict(environment)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._owner = os.getpid()
        atexit.register(self.close)

    @property
    def python(self) -> list[str]:
        """The beginning of a command: instead of an interpreter, what stands for one that is forked."""
        return [sys.executable, "-I", "-S", str(STAND_IN), str(self.directory)]

    def provide(self, ranks: int) -> None:
        """Start those that so many ranks need."""
        for number in range(min(ranks, NURSERIES)):
            process = self._processes.get(number)
            if process is None or process.poll() is not None:
                if process is not None and process.stdin is not None:
                    process.stdin.close()
                (self.directory / str(number)).unlink(missing_ok=True)
                self._processes[number] = self._start(self.directory / str(number))

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        """A nursery; who asks it for a rank before it is ready waits in the queue of its socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(f"{path}.log", "wb") as log:
            listener.bind(str(path))
            listener.listen(100)
            return subprocess.Popen(
                [sys.executable, "-m", "tests.mpi.nursery", str(listener.fileno()), *MODULES],
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
        atexit.unregister(self.close)
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
        shutil.rmtree(self.directory, ignore_errors=True)


#: The one used last comes last.
_nurseries: dict[frozenset[tuple[str, str]], Nurseries] = {}
_lock = threading.Lock()


def borrowed(environment: Mapping[str, str], ranks: int) -> Nurseries | None:
    """Those for ranks with this environment; None when each needs an interpreter of its own."""
    if "LD_PRELOAD" in environment:
        return None  # what it does is meant for the ranks
    key = frozenset((name, value) for name, value in environment.items() if name.startswith(_READ_AT_START))
    with _lock:
        found = _nurseries.pop(key, None)
        if found is None:
            idle = [other for other, each in _nurseries.items() if not each.users]
            for other in idle[: max(0, len(_nurseries) + 1 - _MOST)]:
                _nurseries.pop(other).close()
            found = Nurseries(environment)
        _nurseries[key] = found
        found.users += 1
        found.provide(ranks)
    return found


def give_back(nurseries: Nurseries) -> None:
    """A job has no ranks any more."""
    with _lock:
        nurseries.users -= 1
