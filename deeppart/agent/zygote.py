"""A process that has imported the modules of ranks, and forks them.

It is connected to the agent by a socket (:mod:`deeppart.agent.starting`) with one JSON message per line. The agent
sends ``{"import": [...]}`` once, and ``{"start": rank, "environment": {...}, "arguments": [...], "in_process": true}``
for each rank. It receives ``{"ready": true}``, or ``{"refused": module, "why": ...}``, after which this process ends;
and for each rank ``{"started": rank, "pid": ...}`` and ``{"ended": rank, "code": ...}`` (negative for a signal).

Invariants: this process has one thread and has started neither MPI nor CUDA, so that a fork of it works. It ends when
the agent has ended, and kills its ranks; if it is killed itself, the kernel kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import importlib.util
import os
import random
import runpy
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from deeppart.agent.command import NOT_FORKED, READ_THE_RANK, SIGNALS, STACKS_SIGNAL
from deeppart.agent.messages import Lines
from deeppart.progress import DIRECTORY_VARIABLE, is_installed, stacks_file

_PR_SET_PDEATHSIG = 1


class Order(NamedTuple):
    """The order to start a rank.

    Attributes:
        rank: its number, for messages.
        environment: all environment variables.
        arguments: arguments of a Python interpreter (a script, or ``-m`` and a module), or the words of a command.
        in_process: run the arguments as Python in the fork; otherwise execute them as a command.
    """

    rank: int
    environment: dict[str, str]
    arguments: list[str]
    in_process: bool


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)


def import_all(modules: list[str]) -> tuple[str, str] | None:
    """Import modules one by one. Returns (module, reason) for the first one that makes forks unsafe, else None.

    Modules that cannot be imported are left to the script, which will report the error.
    """
    for name in modules:
        try:
            if _is_installed(name):
                importlib.import_module(name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
        if (why := _unsound()) is not None:
            return name, why
    return None


def _is_installed(name: str) -> bool:
    """Whether a module is installed in site-packages; others may be edited, so each rank imports them."""
    package = name.partition(".")[0]
    if package == "deeppart":
        return True
    spec = importlib.util.find_spec(package)
    return package not in READ_THE_RANK and spec is not None and is_installed(spec.origin)


def _unsound() -> str | None:
    """Why this process cannot be forked safely; None if it can."""
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        return f"starts {threads - 1} threads"
    if any(name in sys.modules for name in NOT_FORKED):
        return "starts MPI"
    cuda = sys.modules.get("torch.cuda")
    return "starts CUDA" if cuda is not None and cuda.is_initialized() else None


def serve(lines: Lines, waiting: list[dict[str, Any]]) -> Order | None:
    """Fork a rank for each order. Returns the order in a rank, and None in the zygote once the agent has ended."""
    ranks: dict[int, tuple[int, int]] = {}  # pidfd -> rank, pid
    poller = select.poll()
    poller.register(lines.socket, select.POLLIN)
    while True:
        for message in waiting:
            order = Order(message["start"], message["environment"], message["arguments"], message["in_process"])
            zygote, pid = os.getpid(), os.fork()
            if pid == 0:
                end_with(zygote)
                for handle in ranks:
                    os.close(handle)
                lines.socket.close()
                return order
            handle = os.pidfd_open(pid)
            ranks[handle] = order.rank, pid
            poller.register(handle, select.POLLIN)
            lines.send({"started": order.rank, "pid": pid})
        waiting = []
        for ready, _ in poller.poll():
            if ready in ranks:
                rank, pid = ranks.pop(ready)
                poller.unregister(ready)
                os.close(ready)
                lines.send({"ended": rank, "code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})
            elif (received := lines.receive()) is None:
                for _, pid in ranks.values():  # with the processes that they have started
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                return None
            else:
                waiting = received


def become(order: Order, mask: set[int | signal.Signals]) -> None:
    """Turn this fork into the process of a rank; ``mask``: the signals that it should block."""
    os.setsid()
    stacks = stacks_file(Path(order.environment[DIRECTORY_VARIABLE]), order.rank)
    # faulthandler prints in C, so this works even while a thread holds the interpreter lock. The file stays open.
    faulthandler.register(STACKS_SIGNAL, stacks.open("w"))
    os.environ.clear()
    os.environ.update(order.environment)
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if not order.in_process:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvp(order.arguments[0], order.arguments)
        except OSError as error:
            sys.stderr.write(f"deeppart run: {order.arguments[0]} cannot be started: {error.strerror}\n")
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def run_python(arguments: list[str]) -> None:
    """Run a script, or a module after ``-m``, like ``python ARGUMENT...``."""
    path = arguments[0]
    if path == "-m":
        if not sys.flags.safe_path:
            sys.path.insert(0, str(Path.cwd()))
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = arguments
    if Path(path).is_dir():
        runpy.run_path(path, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(path).resolve().parent))
    file, main = str(Path(path).absolute()), types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", file)
    main.__dict__.update(__file__=file, __builtins__=__builtins__, __cached__=None, __loader__=loader)
    sys.modules["__main__"] = main  # where multiprocessing and pickle find the script's classes
    exec(compile(Path(path).read_bytes(), file, "exec", dont_inherit=True), main.__dict__)


def _show_without_our_frames(
    show: Callable[..., object], kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Show an uncaught error without the frames of this module."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", "<string>"):
        trace = trace.tb_next
    show(kind, error.with_traceback(trace), trace)


def main(fd: int) -> None:
    """Run a zygote, and in its forks the ranks."""
    # Slurm may send signals to all processes. They stay pending until a fork has become a rank.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    lines = Lines(socket.socket(fileno=fd))
    while not (first := lines.receive()):
        if first is None:
            return
    gc.disable()  # imported objects stay anyway
    refused = import_all(first[0]["import"])
    if refused is not None:
        lines.send({"refused": refused[0], "why": refused[1]})
        return
    gc.collect()
    gc.freeze()  # collections in the ranks would write to each object, and so copy shared memory
    gc.enable()
    lines.send({"ready": True})
    order = serve(lines, first[1:])
    if order is None:
        os._exit(0)
    become(order, mask)
    sys.excepthook = functools.partial(_show_without_our_frames, sys.excepthook)  # the library's, set by its import
    run_python(order.arguments)
