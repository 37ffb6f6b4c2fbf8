"""Where ranks come from that need not import torch first: a process that has done so, and forks them.

    mpirun ── stand_in.py (rank 0) ───socket─── nursery 0 ── fork: rank 0
           └─ stand_in.py (rank 1) ───socket─── nursery 1 ── fork: rank 1

To mpirun a stand-in is the rank: it hands its environment and its files to the nursery of its number, passes on every
signal, and ends as the rank has ended; the rank is killed when its stand-in is. So a job costs a tenth of the
processor time that interpreters of its own would take, and goes through the same mpirun.

Invariants: a nursery imports, and does nothing else: MPI and tests are for the ranks. It has one thread. It ends with
the process that started it, and its ranks end with it.

Tests that run a script in a process of its own have that from a nursery, too (``run_python`` in launch.py).

Neighbouring ranks of a job come from different nurseries, so that they still differ in the order of their sets and in
addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import types
from dataclasses import dataclass
from pathlib import Path

#: Before the arguments of a script, or of ``-m`` and a module, that is to be run without mpi4py.
PLAIN = "--plain"
#: What each has to import itself: it starts MPI, or reads the environment.
_MODULES_OF_RANKS = ("mpi4py", "tests.conftest", "tests.mpi.conftest")

#: A stand-in's request: {"cwd": ..., "arguments": ..., "environment": ..., "files": numbers} and those files.
REQUEST_BYTES = 1 << 20
_FILES = 250
#: Below this are the files of the nursery, and those the rank gets; above it they wait in between.
_HIGH = 512
_PR_SET_PDEATHSIG = 1


@dataclass
class _Rank:
    """A rank that runs. Its stand-in is None when that has gone."""

    pid: int
    handle: int
    stand_in: socket.socket | None


@dataclass(frozen=True)
class _Order:
    """What a new rank is to be."""

    directory: str
    arguments: list[str]
    environment: dict[str, str]
    files: dict[int, int]  # number in the rank -> number here


def serve(listener: socket.socket) -> _Order | None:
    """Fork a rank for every stand-in until standard input ends.

    Returns:
        In a rank: what it is to be. In the nursery: None, when it is over.
    """
    ranks: dict[int, _Rank] = {}  # by the file descriptors that tell of them
    poller = select.poll()
    lifeline = sys.stdin.fileno()
    for each in (listener.fileno(), lifeline):
        poller.register(each, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == lifeline:
                return None
            if fd == listener.fileno():
                stand_in = listener.accept()[0]
                order = _receive(stand_in)
                if order is None:
                    stand_in.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    return order
                for file in order.files.values():
                    os.close(file)
                rank = _Rank(pid, os.pidfd_open(pid), stand_in)
                for key in (rank.handle, stand_in.fileno()):
                    ranks[key] = rank
                    poller.register(key, select.POLLIN)
            elif fd in ranks:  # not of one that has just gone
                rank = ranks[fd]
                gone = _buried(rank) if fd == rank.handle else _forwarded(rank)
                for key in gone:
                    poller.unregister(key)
                    del ranks[key]
                    os.close(key)


def _receive(stand_in: socket.socket) -> _Order | None:
    """The order of a stand-in; None from one that was killed before it could give any."""
    message, files, _, _ = socket.recv_fds(stand_in, REQUEST_BYTES, _FILES)
    if not message:
        return None
    request = marshal.loads(message)
    assert len(files) == len(request["files"]), "the kernel has handed over some files only"
    return _Order(
        request["cwd"],
        request["arguments"],
        request["environment"],
        dict(zip(request["files"], files, strict=True)),
    )


def _forwarded(rank: _Rank) -> list[int]:
    """Do to the rank what was done to its stand-in; returns the descriptors that are done with."""
    assert rank.stand_in is not None
    try:
        signals = rank.stand_in.recv(1)
    except ConnectionError:
        signals = b""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(rank.handle, signals[0] if signals else signal.SIGKILL)
    if signals:
        return []
    gone, rank.stand_in = rank.stand_in, None
    return [gone.detach()]


def _buried(rank: _Rank) -> list[int]:
    """Tell the stand-in how the rank has ended; returns the descriptors that are done with."""
    status = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
    if rank.stand_in is None:
        return [rank.handle]
    with contextlib.suppress(OSError):  # it has been killed itself
        rank.stand_in.send(marshal.dumps(status))
    return [rank.handle, rank.stand_in.detach()]


def become(order: _Order) -> None:
    """Make this process what would have been started in place of the stand-in."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    high = {number: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number, file in order.files.items()}
    os.closerange(0, _HIGH)
    for number, file in high.items():
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    os.chdir(order.directory)
    os.environ.clear()
    os.environ.update(order.environment)
    if "numpy.random" in sys.modules:  # as Python's own generator does after a fork
        sys.modules["numpy.random"].seed()


def end_early() -> None:
    """When the process ends, leave out what comes after all handlers that are younger than this one.

    Python ends as ever, and so does MPI. But torch would then take its tables apart, for which each of their pages,
    which the nursery shares with all its ranks, would be copied.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)


def run_plain(arguments: list[str]) -> None:
    """Do as ``python ARGUMENT...`` does: of a script, or of a module after ``-m``."""
    end_early()
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def run_rank(arguments: list[str]) -> None:
    """Do as ``python -m mpi4py ARGUMENT...`` does."""
    end_early()
    sys.argv[:] = ["mpi4py", *arguments]
    runpy.run_module("mpi4py", run_name="__main__", alter_sys=True)


def run_script(script: str, arguments: list[str]) -> None:
    """Do as ``python -c SCRIPT ARGUMENT...`` does, to the very end."""
    sys.argv[:] = ["-c", *arguments]
    sys.path.insert(0, "")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(script, "<string>", "exec"), module.__dict__)


def leave_processors() -> None:
    """Ranks that wait poll for a hundredth of the usual time before they sleep: several share a processor in tests."""
    importlib.import_module("deeppart.comm.waiting").POLL_S = 2e-4  # type: ignore[attr-defined]


def main(listener_fd: int, modules: list[str]) -> None:
    """Be a nursery that has imported these modules, and later each of its ranks."""
    gc.disable()  # what is imported stays
    for module in modules:
        importlib.import_module(module)
    leave_processors()
    foreign = [name for name in _MODULES_OF_RANKS if name in sys.modules]
    assert not foreign, f"{foreign}: only ranks import these"
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a fork would lose all but one, and what they hold"
    gc.collect()
    gc.freeze()  # memory that nobody writes to is shared
    gc.enable()
    order = serve(socket.socket(fileno=listener_fd))
    if order is None:
        os._exit(0)  # torch would take its tables apart, for a third of the time that its import has taken
    become(order)
    option, *arguments = order.arguments
    if option == "-c":
        run_script(arguments[0], arguments[1:])
    elif option == PLAIN:
        run_plain(arguments)
    else:
        run_rank(order.arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
