"""torchrun's agent on one node of an allocation: ``srun python -m deeppart.elastic.node_agent ASSIGNMENT COMMAND...``.

It forwards SIGTERM and SIGUSR1 to the ranks, kills those that have not ended after the grace period, and exits with a
code that says how they ended.

SIGURG means SIGTERM for the ranks alone. Some versions of Slurm send signals to all processes of a step, including
workers of data loaders; SIGURG is ignored by processes that do not handle it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from torch.distributed import DistError

from deeppart.config import node_name
from deeppart.errors import LaunchError

from .launching import (
    Assignment,
    RunResult,
    describe_exit_code,
    end_remaining_ranks,
    find_ranks,
    run_agent,
    send_signal,
)
from .stop_request import EXIT_CODE

#: Exit codes of the agent, after a message: a rank failed, the command cannot be started, the rendezvous port is in
#: use, the other agents did not arrive. Any other code except 0, 143 and signals means that the node or srun failed.
FAILED, NO_COMMAND, PORT_TAKEN, NOT_MET = 70, 71, 72, 73
#: Exit code: this node cannot start ranks.
_NODE_FAILED = 1
#: An error later than this fraction of the rendezvous timeout means that other agents are missing.
_TIMEOUT_FRACTION = 0.9
#: Sent by :mod:`.srun`.
STOP_RANKS = signal.SIGURG
#: The agent ends on these.
_END_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: The agent notices within this time that its ranks have ended.
_ENDED_S = 1.0


class _SignalForwarder:
    """Forwards signals from this process to the ranks."""

    def __init__(self, run: str, grace_s: float) -> None:
        self._run, self._grace_s = run, grace_s
        self._terminated = set[int]()  # pids that got SIGTERM
        self._no_ranks_since_s: float | None = None

    def start(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._forward)
        signal.signal(STOP_RANKS, self._stop_ranks)
        signal.signal(signal.SIGALRM, self._kill)

    def stop(self) -> None:
        """Ignore signals, so that a late one cannot change the exit code."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number in (signal.SIGTERM, signal.SIGUSR1, STOP_RANKS, signal.SIGALRM, *_END_SIGNALS):
            signal.signal(number, signal.SIG_IGN)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        ranks = find_ranks(self._run)
        if not ranks:
            raise SystemExit(EXIT_CODE)
        send_signal(ranks, signal.Signals(number))
        if number == signal.SIGTERM:
            self._terminated.update(ranks)
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _stop_ranks(self, number: int, frame: FrameType | None) -> None:
        """Send SIGTERM once to each rank. STOP_RANKS is repeated, since ranks may still be starting.

        Without ranks, wait before exiting: they may just have ended, and then the agent exits with their code.
        """
        ranks = find_ranks(self._run)
        if not ranks:
            if self._no_ranks_since_s is None:
                self._no_ranks_since_s = time.monotonic()
            elif time.monotonic() > self._no_ranks_since_s + _ENDED_S:
                raise SystemExit(EXIT_CODE)
            return
        self._no_ranks_since_s = None
        if not self._terminated:
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
        send_signal([pid for pid in ranks if pid not in self._terminated], signal.SIGTERM)
        self._terminated.update(ranks)

    def _kill(self, number: int, frame: FrameType | None) -> None:
        send_signal(find_ranks(self._run), signal.SIGKILL)


def exit_code(result: RunResult) -> int:
    """The exit code of the agent after its ranks ended."""
    if result.by_signal is not None:
        return 128 + int(result.by_signal)
    if result.code in (0, EXIT_CODE):
        return result.code
    return EXIT_CODE if -result.code in (signal.SIGTERM, signal.SIGUSR1) else FAILED


def main(arguments: Sequence[str]) -> int:
    """Run the ranks of this node and return the agent's exit code."""
    os.environ.pop("SLURM_EXIT_ERROR", None)  # meant for the srun that started this process, not for those of ranks
    assignment = Assignment(**json.loads(arguments[0]))
    forwarder = _SignalForwarder(assignment.run, assignment.grace_s)
    forwarder.start()
    stop_signal, began_s = signal.SIGTERM, time.monotonic()
    try:
        result = run_agent(assignment, arguments[1:], _END_SIGNALS)
        stop_signal = result.by_signal or stop_signal
        code, message = exit_code(result), f"{result.where} on {node_name()}: {describe_exit_code(result.code)}"
    except LaunchError as error:
        code, message = NO_COMMAND, f"{error.summary} on {node_name()}: {error.found}"
    except OSError as error:
        code, message = _NODE_FAILED, f"the ranks cannot be started on {node_name()}: {error}"
    except DistError as error:
        if "EADDRINUSE" in str(error):
            code, message = PORT_TAKEN, f"the agents cannot meet at {assignment.endpoint}: the port is in use"
        elif time.monotonic() < began_s + _TIMEOUT_FRACTION * assignment.meet_s:
            raise
        else:
            code, message = NOT_MET, f"{node_name()} has waited at {assignment.endpoint}: {error}"
    finally:
        forwarder.stop()
        end_remaining_ranks(assignment.run, stop_signal, assignment.grace_s)
    if code in (_NODE_FAILED, FAILED, NO_COMMAND, PORT_TAKEN, NOT_MET):
        sys.stderr.write(f"elastic-run: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
