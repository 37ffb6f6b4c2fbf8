"""Where the ranks of a job run: what :mod:`.running` asks of a place, and this host."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Sequence
from typing import Protocol

from torch.distributed import TCPStore

from .agent import Ended, ranks_of, run_agent, send

#: What the agent passes on to the ranks, and ends by.
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


class Launcher(Protocol):
    """Starts the ranks of a job, at one place or another."""

    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that there are now; none where there is this host alone."""
        ...

    def room(self) -> int | None:
        """The most ranks that these nodes can have; None for any number."""
        ...

    def run(self, ranks: int) -> Ended:
        """Start so many, and wait until they have ended."""
        ...

    def send(self, number: signal.Signals) -> bool:
        """From another thread: a signal to those that run; whether there are any."""
        ...


class OnThisHost:
    """All ranks on this host, started by torchrun's agent in this process.

    Args:
        command: of each rank.
        grace_s: seconds that they have for a checkpoint if this process is told to end.
    """

    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        self._command, self._grace_s = command, grace_s
        self._run_id = ""

    def nodes(self) -> tuple[str, ...]:
        """None that have names."""
        return ()

    def room(self) -> int | None:
        """For any number."""
        return None

    def run(self, ranks: int) -> Ended:
        """As of :class:`Launcher`."""
        self._run_id = uuid.uuid4().hex
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        return run_agent(
            ranks,
            self._command,
            self._grace_s,
            min_nodes=1,
            max_nodes=1,
            run_id=self._run_id,
            rdzv_backend="static",  # of one node: a meeting of several takes 0.3 s
            rdzv_endpoint=f"localhost:{store.port}",  # which the agent shares: nobody else can take it
            rdzv_configs={"rank": 0},
            signals_to_handle=_SIGNALS,
        )

    def send(self, number: signal.Signals) -> bool:
        """As of :class:`Launcher`; not to the agent, which would end by it without saying how the ranks did."""
        ranks = ranks_of(self._run_id)
        send(ranks, number)
        return bool(ranks)
