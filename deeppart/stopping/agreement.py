"""Agreement of all ranks on a request that any of them may have received.

Without waiting for one another (``ask``): what a rank asks at one step is answered at the next one; the reduction is
under way meanwhile, beside the training. Or at once (``agree``). torch is imported only by ranks that agree over it: a
launcher waits for signals without.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from deeppart.comm import TIMEOUT_S, Comm, Operation, RunningOperation, finish, own_channel_of_job

_WHAT = "asking all ranks whether to stop"


class Agreement(Protocol):
    """Whether any rank has a request."""

    rank: int

    def ask(self, mine: bool) -> bool:
        """True on every rank, at the same call, if any rank had a request at the call before (collective)."""
        ...

    def agree(self, mine: bool) -> bool:
        """True on every rank if any has a request now: waits for all (collective)."""
        ...

    def finish(self) -> None:
        """Wait for the operation in progress (collective, if all ranks have made the same number of calls)."""
        ...


class Alone:
    """One process, which always agrees with itself."""

    rank = 0

    def ask(self, mine: bool) -> bool:
        """This process's answer."""
        return mine

    def agree(self, mine: bool) -> bool:
        """This process's answer."""
        return mine

    def finish(self) -> None:
        """Nothing to wait for."""


class OfTorch:
    """A reduction between CPUs, in a separate gloo group, whatever the training's backend (created collectively).

    Waits end at the group's timeout.
    """

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self._group = dist.new_group(backend="gloo")
        self._flag = torch.zeros(1, dtype=torch.uint8)
        self._work: Any = None

    def ask(self, mine: bool) -> bool:
        """See :class:`Agreement`; failures are errors of torch."""
        answer = False
        if self._work is not None:
            self._work.wait()
            answer = bool(self._flag.item())
        self._begin(mine or answer)
        return answer

    def agree(self, mine: bool) -> bool:
        """See :class:`Agreement`; failures are errors of torch."""
        self.finish()
        self._begin(mine)
        self.finish()
        return bool(self._flag.item())

    def finish(self) -> None:
        """See :class:`Agreement`."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def _begin(self, mine: bool) -> None:
        import torch.distributed as dist

        self._flag.fill_(mine)
        self._work = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)


class OfJob:
    """The ranks of a launcher without torch.distributed, over the library's channel."""

    def __init__(self, comm: Comm) -> None:
        self.rank = comm.rank
        self._comm = comm
        self._operation: Operation[list[bytes]] | None = None
        self._said: list[bytes] | None = None

    def ask(self, mine: bool) -> bool:
        """See :class:`Agreement`."""
        self.finish()
        answer = self._said is not None and b"\1" in self._said
        self._operation, self._said = self._comm.allgather(b"\1" if mine or answer else b"\0"), None
        running = RunningOperation(self._comm, self._operation, _WHAT, TIMEOUT_S)
        if running.advance(0.0):
            self._operation, self._said = None, running.result
        return answer

    def agree(self, mine: bool) -> bool:
        """See :class:`Agreement`."""
        self.finish()
        said = finish(self._comm, self._comm.allgather(b"\1" if mine else b"\0"), _WHAT, TIMEOUT_S)
        return b"\1" in said

    def finish(self) -> None:
        """See :class:`Agreement`."""
        if self._operation is not None:
            self._said = finish(self._comm, self._operation, _WHAT, TIMEOUT_S)
            self._operation = None


def agreement_of_torch() -> Agreement:
    """Between the ranks of torch.distributed if it is initialized; otherwise for this process alone (collective)."""
    dist = _distributed()
    return OfTorch() if dist is not None and dist.get_world_size() > 1 else Alone()


def agreement_of_job() -> Agreement:
    """Between the ranks of torch.distributed if it is initialized, else of the launcher (collective)."""
    if _distributed() is not None:
        return agreement_of_torch()
    comm = own_channel_of_job()
    return OfJob(comm) if comm.size > 1 else Alone()


def _distributed() -> Any:
    """torch.distributed, if this process has imported and initialized it; otherwise None."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
