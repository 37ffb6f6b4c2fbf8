"""The ranks of one node: forked from a zygote, monitored, ended, and forked again."""

from __future__ import annotations

import fcntl
import math
import os
import selectors
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deeppart.agent.command import NOT_FORKED, STACKS_SIGNAL, Command
from deeppart.agent.messages import Ended, Finish, Idle, Leave, Message, Start
from deeppart.agent.starting import KILLED_WITHIN_S, Zygote
from deeppart.errors import LaunchError
from deeppart.progress import (
    DIRECTORY_VARIABLE,
    STOPPED,
    WHY_VARIABLE,
    Progress,
    leave_file,
    make_cell,
    read_cell,
    read_modules,
    stacks_file,
)

#: Seconds after which ranks that have not ended are killed again.
_KILL_AGAIN_S = 0.1
_DIRECTORY = "deeppart-run-"


class Node:
    """The ranks of this node. Not thread-safe.

    Args:
        command: the command of each rank.
        ranks: most ranks.
        preload: modules that the zygote imports; None for those of the script.
        directory: for the progress of the ranks.
        report: called with each :class:`Ended`, and with :class:`Idle` once all ranks of an epoch have ended.
        say: prints a line for the user.

    Attributes:
        last: the last requested start.
        newest: newest step that its ranks have reported; -1 for none.
    """

    def __init__(
        self,
        command: Command,
        ranks: int,
        preload: tuple[str, ...] | None,
        directory: Path,
        report: Callable[[Message], object],
        say: Callable[[str], object],
    ) -> None:
        self._command, self._ranks, self._directory = command, ranks, directory
        self._report, self._say = report, say
        self.last = Start("", 0, 0, 0, 0, 0, 0, "", 0)
        self._learns = preload is None and bool(command.interpreter)
        self._zygote = self._new_zygote(command.imports() if preload is None else list(preload))
        self._next: Zygote | None = None
        self._is_due, self._left = False, 0  # the last start has yet to be carried out; number of running ranks
        self._fails, self._shows_stacks, self._kill_at_s = False, False, math.inf
        self.newest = -1

    @property
    def is_idle(self) -> bool:
        """Whether no rank is running or about to be started."""
        return not self._is_due and not self._left

    @property
    def is_ready(self) -> bool:
        """Whether ranks can be forked at once."""
        return self._zygote.is_ready

    def progress(self) -> list[Progress]:
        """The progress that the ranks have reported."""
        found = [read_cell(self._directory, rank) for rank in range(self.last.local)]
        self.newest = max([self.newest, *(each.step for each in found)])
        return found

    def do(self, message: Message) -> None:
        """Carry out a message of the leader; messages for agents are ignored."""
        if isinstance(message, Start):
            self.last, self._is_due = message, True
            self._fails, self._shows_stacks, self._kill_at_s = False, False, math.inf
            try:
                leave_file(self._directory).unlink(missing_ok=True)
                for rank in range(message.local):
                    make_cell(self._directory, rank)
            except OSError as error:
                where, todo = str(self._directory), "make room there"
                raise LaunchError(
                    "the agent's files cannot be written", found=str(error.strerror), where=where, todo=todo
                ) from error
            self._start_when_ready()
        elif isinstance(message, Leave):
            with suppress(OSError):  # reaching the ranks of one node is enough
                leave_file(self._directory).touch()
        elif isinstance(message, Finish) and not self.is_idle:
            self._fails = True
            self._kill_at_s = min(self._kill_at_s, time.monotonic() + message.within_s)
            self._shows_stacks |= message.first == STACKS_SIGNAL
            if self._is_due:  # no rank has been started
                self._is_due = False
                self._report(Ended(self.last.epoch, None, STOPPED))
                self._be_idle()
            elif message.first:
                self._zygote.signal(message.first)
            self.look()

    def register(self, selector: selectors.BaseSelector) -> None:
        """Register the zygotes; call :meth:`receive` with one that is readable."""
        for each in (self._zygote, self._next):
            if each is not None and not each.has_ended:
                selector.register(each, selectors.EVENT_READ, self)

    def receive(self, zygote: Zygote) -> None:
        """Handle the messages of a zygote."""
        if zygote is self._next:
            zygote.receive()
            if zygote.has_ended:
                zygote.close()
                self._next = None if zygote.refused is None else self._in_place_of(zygote)
        if zygote is not self._zygote:
            return
        for rank, code in zygote.receive():
            self._left -= 1
            self._fails |= code != 0
            self._report(Ended(self.last.epoch, rank, code))
            if not self._left:
                self._be_idle()
        if zygote.has_ended:
            self._replace()
        self._start_when_ready()

    def look(self) -> None:
        """Do what is due. Call it at least each second."""
        if self._left and time.monotonic() >= self._kill_at_s:
            if self._shows_stacks:
                self._show_stacks()
            self._zygote.kill()
            if time.monotonic() > self._kill_at_s + KILLED_WITHIN_S:
                self._zygote.close(0.0)  # names those that cannot be killed
                self._replace()  # since it has not reported their end
        modules = read_modules(self._directory) if self._learns else None
        if modules is not None:
            self._learns = False
            known = {*self._zygote.modules, "__main__", *NOT_FORKED}
            self._next = self._new_zygote([*self._zygote.modules, *(name for name in modules if name not in known)])

    def due_in_s(self) -> float:
        """Seconds until :meth:`look` has something to do."""
        if not self._left:
            return math.inf
        left_s = self._kill_at_s - time.monotonic()
        return left_s if left_s > 0 else _KILL_AGAIN_S

    def close(self) -> None:
        """End everything."""
        for each in (self._zygote, self._next):
            if each is not None:
                each.close()

    def _be_idle(self) -> None:
        """All ranks of the epoch have ended."""
        if self._fails:
            self._zygote.kill()  # processes that ended ranks have left behind
        self._zygote.forget()
        self.progress()
        self._kill_at_s = math.inf
        self._report(Idle(self.last.epoch, self.newest, free_port(), self.is_ready))

    def _start_when_ready(self) -> None:
        """Carry out a due start, with the zygote that has the modules of the last epoch if it is ready."""
        if not self._is_due:
            return
        if self._next is not None and self._next.is_ready:
            self._zygote.close()
            self._zygote, self._next = self._next, None
        if self._zygote.is_ready and not self._zygote.has_ended:
            self._is_due, self._left = False, self.last.local
            for rank in range(self.last.local):
                self._zygote.start(rank, self._environment(rank, self.last))

    def _show_stacks(self) -> None:
        """Print the stacks of all ranks."""
        self._shows_stacks = False
        for rank in range(self.last.local):
            with suppress(OSError):
                text = stacks_file(self._directory, rank).read_text(errors="replace")
                text = text or "  no stacks: it has ended, is stopped, or waits in a system call, as for storage\n"
                sys.stderr.write(f"deeppart run: rank {self.last.first + rank}:\n{text}")

    def _environment(self, rank: int, start: Start) -> dict[str, str]:
        """The variables of a rank, named as torchrun names them."""
        own, ranks = str(start.first + rank), str(start.ranks)
        return os.environ | self._threads() | {
            "RANK": own, "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": str(start.local),
            "ROLE_RANK": own, "ROLE_WORLD_SIZE": ranks, "ROLE_NAME": "default",
            "GROUP_RANK": str(start.group), "GROUP_WORLD_SIZE": str(start.groups),
            "MASTER_ADDR": start.address, "MASTER_PORT": str(start.port),
            "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(start.epoch - 1),
            "TORCHELASTIC_MAX_RESTARTS": str(start.epoch), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            DIRECTORY_VARIABLE: str(self._directory), "DEEPPART_RUN": start.run,
            "DEEPPART_EPOCH": str(start.epoch), WHY_VARIABLE: start.why,
        }  # fmt: skip

    def _threads(self) -> dict[str, str]:
        """Like torchrun: one OpenMP thread for each of several ranks, unless OMP_NUM_THREADS is set."""
        return {"OMP_NUM_THREADS": "1"} if self._ranks > 1 and "OMP_NUM_THREADS" not in os.environ else {}

    # --- zygotes ---

    def _new_zygote(self, modules: list[str]) -> Zygote:
        # Otherwise numpy's BLAS would start threads when it is imported.
        return Zygote(self._command, modules, {"OPENBLAS_NUM_THREADS": "1"} | os.environ | self._threads())

    def _replace(self) -> None:
        """Replace a zygote that has ended, and its ranks with it."""
        old = self._zygote
        old.close()
        code = old.exit_code or 1
        was_killed = old.is_ready or (old.refused is None and code < 0)
        if was_killed and self._next is not None:
            self._zygote, self._next = self._next, None
        else:
            self._zygote = self._new_zygote(list(old.modules)) if was_killed else self._in_place_of(old)
        if was_killed and not self.is_idle:
            self._is_due, self._left, self._fails = False, 0, True
            self._report(Ended(self.last.epoch, None, code))
            self._be_idle()

    def _in_place_of(self, zygote: Zygote) -> Zygote:
        """Another zygote, for one that has ended by itself before it was ready."""
        if zygote.refused is not None:
            module, why = zygote.refused
            self._say(f"{module} {why} when it is imported: ranks import it themselves, and what follows")
            return self._new_zygote(list(zygote.modules[: zygote.modules.index(module)]))
        if not self._command.interpreter:
            raise LaunchError("the process that starts ranks has ended", found=f"exit code {zygote.exit_code}")
        self._say("the command's Python cannot import deeppart: ranks start without what is preloaded")
        self._command = Command((), (*self._command.interpreter, *self._command.arguments))
        return self._new_zygote([])


@contextmanager
def own_directory() -> Iterator[Path]:
    """Create a directory in memory, and remove it on exit. Also removes directories of this user's killed agents."""
    memory = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    for left in memory.glob(f"{_DIRECTORY}*"):
        with suppress(OSError), _locked(left):
            if left.lstat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{_DIRECTORY}", dir=memory))
    with _locked(made):  # before other agents can see it under its final name
        directory = made.rename(made.with_name(made.name[1:]))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; raises OSError while another process does."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def free_port() -> int:
    """A port that is free now, for rank 0."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        found: int = listener.getsockname()[1]
        return found
