"""Starts ranks on this host through a zygote (:mod:`deeppart.agent.zygote`)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from deeppart.agent.command import Command
from deeppart.agent.messages import Lines
from deeppart.errors import LaunchError

#: Not with -m, which would look for modules in the working directory first.
_TEXT = """
import sys
sys.flags.safe_path or sys.path.pop(0)
from deeppart.agent.zygote import main
main(int(sys.argv[1]))
"""
#: After SIGKILL: a process that waits for storage may outlive it.
KILLED_WITHIN_S = 30.0


class Zygote:
    """A process that forks ranks. Not safe to share between threads.

    Attributes:
        modules: what it imports before.
        is_ready: true once it has imported them.
        refused: a module that it must not be forked with, and why; it has ended then. None otherwise.
        has_ended: true once it has ended, and its ranks with it.
        running: number -> pidfd and pid of each rank that has been started and not ended.
    """

    def __init__(self, command: Command, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.modules, self._command = tuple(modules), command
        self.is_ready = self.has_ended = False
        self.refused: tuple[str, str] | None = None
        self.running: dict[int, tuple[int, int]] = {}
        self._groups: set[int] = set()
        self._sent: int | None = None
        ours, theirs = socket.socketpair()
        self._lines = Lines(ours)
        interpreter = command.interpreter or (sys.executable,)
        words = [*interpreter, "-c", _TEXT, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the agent alone gets the signals of a terminal
                env=dict(environment),
            )
        self._lines.send({"import": list(modules)})

    def fileno(self) -> int:
        """For a selector: readable when :meth:`receive` has something to do."""
        return self._lines.socket.fileno()

    def start(self, rank: int, environment: Mapping[str, str]) -> None:
        """Have a rank started, once this is ready."""
        order = {"arguments": list(self._command.arguments), "in_process": bool(self._command.interpreter)}
        self._lines.send({"start": rank, "environment": dict(environment), **order})

    def receive(self) -> list[tuple[int, int]]:
        """Take the messages that have come, waiting for one; the ranks that have ended, and their exit codes, below 0
        for a signal.
        """
        messages = self._lines.receive()
        if messages is None:
            self.has_ended = True
            return []
        ended = []
        for message in messages:
            if "started" in message:
                self._groups.add(message["pid"])
                with contextlib.suppress(ProcessLookupError):  # ended and reaped: its end is in the next message
                    handle = os.pidfd_open(message["pid"])
                    self.running[message["started"]] = handle, message["pid"]
                    if self._sent is not None:
                        signal.pidfd_send_signal(handle, self._sent)
            elif "ended" in message:
                if (each := self.running.pop(message["ended"], None)) is not None:
                    os.close(each[0])
                ended.append((message["ended"], message["code"]))
            elif "refused" in message:
                self.refused = message["refused"], message["why"]
            else:
                self.is_ready = True
        return ended

    def signal(self, number: int) -> None:
        """Send a signal to all ranks, and to those whose start is still under way."""
        self._sent = number
        for handle, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)

    def kill(self) -> None:
        """Kill all ranks that run, and what any rank has started, such as workers of data loaders."""
        for handle, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def forget(self) -> None:
        """All ranks have ended, and others will be started."""
        self._groups.clear()
        self._sent = None

    @property
    def exit_code(self) -> int | None:
        """That of the process, if it has ended."""
        return self._process.poll()

    def close(self, within_s: float = KILLED_WITHIN_S) -> None:
        """End it, and by that its ranks.

        Raises:
            LaunchError: a rank still runs after so many seconds: it waits for storage that hangs.
        """
        self._lines.socket.close()
        self._process.kill()
        self._process.wait()  # bounded: a killed process without storage
        self.has_ended = True
        self.kill()
        until_s = time.monotonic() + within_s
        poller = select.poll()
        for handle, _ in self.running.values():
            poller.register(handle, select.POLLIN)
        while self.running:
            for ready, _ in poller.poll(max(until_s - time.monotonic(), 0.0) * 1000):
                poller.unregister(ready)
                os.close(ready)
                self.running = {rank: each for rank, each in self.running.items() if each[0] != ready}
            if time.monotonic() >= until_s:
                break
        if self.running:
            raise LaunchError(
                "ranks cannot be killed",
                found=f"pids {[pid for _, pid in self.running.values()]}, {within_s:g} s after SIGKILL",
                todo="their storage may hang; end them before the job is started again",
            )
