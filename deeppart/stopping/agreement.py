"""Agreement of all ranks on a request that any of them may have received.

Either without waiting (``ask``): a request at one step is answered at the next one, and the exchange runs concurrently
with training; or at once (``agree``).
"""

from __future__ import annotations

from deeppart.comm import TIMEOUT_S, Comm, Operation, RunningOperation, finish, own_channel_of_job

_WHAT = "asking all ranks whether to stop"


class Agreement:
    """Whether any rank of a job has a request; one process always agrees with itself.

    Attributes:
        rank: this rank.
    """

    def __init__(self, comm: Comm) -> None:
        self.rank = comm.rank
        self._comm = comm
        self._operation: Operation[list[bytes]] | None = None
        self._said: list[bytes] = []

    def ask(self, mine: bool) -> bool:
        """True on every rank, at the same call, if any rank had a request at the call before (collective)."""
        if self._comm.size == 1:
            return mine
        self.finish()
        answer = b"\1" in self._said
        self._operation, self._said = self._comm.allgather(b"\1" if mine or answer else b"\0"), []
        running = RunningOperation(self._comm, self._operation, _WHAT, TIMEOUT_S)
        if running.advance(0.0):
            self._operation, self._said = None, running.result
        return answer

    def agree(self, mine: bool) -> bool:
        """True on every rank if any has a request now: waits for all (collective)."""
        self.finish()
        return b"\1" in finish(self._comm, self._comm.allgather(b"\1" if mine else b"\0"), _WHAT, TIMEOUT_S)

    def finish(self) -> None:
        """Wait for the exchange in progress (collective, if all ranks have made the same number of calls)."""
        if self._operation is not None:
            self._said = finish(self._comm, self._operation, _WHAT, TIMEOUT_S)
            self._operation = None


def agreement_of_job() -> Agreement:
    """Between the ranks that a :class:`deeppart.Checkpointer` without a communicator connects (collective)."""
    return Agreement(own_channel_of_job())
