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

#: Instead of -m, which would search the working directory for modules first.
_TEXT = """
import sys
sys.flags.safe_path or sys.path.pop(0)
from deeppart.agent.zygote import main
main(int(sys.argv[1]))
"""
#: Seconds for a process to end after SIGKILL; one that waits for storage may take longer.
KILLED_WITHIN_S = 30.0


class Zygote:
    """A process that forks ranks. Not thread-safe.

    Attributes:
        modules: the modules that it imports before.
        is_ready: true once it has imported them.
        refused: (module, reason) if importing a module has made forks unsafe, after which it has ended; otherwise None.
        has_ended: true once it has ended, and its ranks with it.
        running: number -> (pidfd, pid) of each running rank.
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
                start_new_session=True,  # so that only the agent gets the signals of a terminal
                env=dict(environment),
            )
        self._lines.send({"import": list(modules)})

    def fileno(self) -> int:
        """For a selector: readable when :meth:`receive` has something to do."""
        return self._lines.socket.fileno()

    def start(self, rank: int, environment: Mapping[str, str]) -> None:
        """Start a rank. Only once the zygote is ready."""
        order = {"arguments": list(self._command.arguments), "in_process": bool(self._command.interpreter)}
        self._lines.send({"start": rank, "environment": dict(environment), **order})

    def receive(self) -> list[tuple[int, int]]:
        """Wait for messages and handle them. Returns (rank, exit code) of the ranks that have ended; negative codes are
        signals.
        """
        messages = self._lines.receive()
        if messages is None:
            self.has_ended = True
            return []
        ended = []
        for message in messages:
            if "started" in message:
                self._groups.add(message["pid"])
                with contextlib.suppress(ProcessLookupError):  # already reaped: its end is in the next message
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
        """Send a signal to all ranks, including those whose start is still in progress."""
        self._sent = number
        for handle, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)

    def kill(self) -> None:
        """Kill all running ranks, and all processes that ranks have started, such as data loader workers."""
        for handle, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def forget(self) -> None:
        """Forget the ranks of an epoch, which have all ended."""
        self._groups.clear()
        self._sent = None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the zygote if it has ended, otherwise None."""
        return self._process.poll()

    def close(self, within_s: float = KILLED_WITHIN_S) -> None:
        """End the zygote and so its ranks.

        Raises:
            LaunchError: a rank is still running after ``within_s`` seconds, because it waits for storage that hangs.
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
