"""torchrun's agent on one node of an allocation: ``srun python -m deeppart.elastic.node_agent ASSIGNMENT COMMAND...``.

It tells the ranks of SIGTERM and SIGUSR1 and goes on, as the agent on one host does when it is not asked itself: how
they end is what it ends with. Ranks that have not ended after the time for a checkpoint are killed.

SIGURG means SIGTERM to the ranks alone. Some Slurms send signals to all processes of a step, workers of data loaders,
too; this one does nothing to a process that does not know it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import FrameType

from torch.distributed import DistError

from deeppart.config import node_name
from deeppart.errors import LaunchError

from .launching import RunResult, end_those_left, name_code, ranks_of, run_agent, send
from .stop_request import EXIT_CODE

#: Of this process: a rank has failed, there is no such command, the port of the rendezvous is taken, others have
#: not come there; it has said so. Everything but these, 0, 143 and signals is of the node, or of srun.
FAILED, NO_COMMAND, PORT_TAKEN, NOT_MET = 70, 71, 72, 73
#: Ranks can not be started on this node.
_OF_THIS_NODE = 1
#: Of the time for the meeting: who gives up after that has waited for others; who fails before, fails by itself.
_LONG = 0.9
#: That :mod:`.by_srun` sends.
STOP_RANKS = signal.SIGURG
#: What the agent itself ends by.
_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: Ranks that have ended are known to have, after that.
_ENDED_S = 1.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The part of one node in one run of a job."""

    run: str  # its name, which no other run has
    ranks: int  # on this node
    node: int  # its number among those of the run
    nodes: int
    endpoint: str  # host and port at which the agents meet; the first node holds it
    grace_s: float  # that ranks have for a checkpoint
    meet_s: int = 300  # within which all agents have to be there

    def as_text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))


class _SignalForwarder:
    """What this process hears, the ranks hear."""

    def __init__(self, run: str, grace_s: float) -> None:
        self._run, self._grace_s = run, grace_s
        self._told = set[int]()  # by SIGTERM
        self._none_since_s: float | None = None

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._pass_on)
        signal.signal(STOP_RANKS, self._tell)
        signal.signal(signal.SIGALRM, self._end)

    def end(self) -> None:
        """There are no ranks to tell; what comes late is not to change the exit code."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number in (signal.SIGTERM, signal.SIGUSR1, STOP_RANKS, signal.SIGALRM, *_SIGNALS):
            signal.signal(number, signal.SIG_IGN)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        ranks = ranks_of(self._run)
        if not ranks:  # none has been started, so none has anything to lose
            raise SystemExit(EXIT_CODE)
        send(ranks, signal.Signals(number))
        if number == signal.SIGTERM:
            self._told.update(ranks)
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        """It comes again and again: ranks that are being started may miss the first one.

        Once there are none they may just have ended, and how they did is what this process is about to end with.
        """
        ranks = ranks_of(self._run)
        if not ranks:
            if self._none_since_s is None:
                self._none_since_s = time.monotonic()
            elif time.monotonic() > self._none_since_s + _ENDED_S:
                raise SystemExit(EXIT_CODE)
            return
        self._none_since_s = None
        if not self._told:
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
        send([pid for pid in ranks if pid not in self._told], signal.SIGTERM)
        self._told.update(ranks)

    def _end(self, number: int, frame: FrameType | None) -> None:
        send(ranks_of(self._run), signal.SIGKILL)


def exit_code(ended: RunResult) -> int:
    """What the process ends with."""
    if ended.by_signal is not None:
        return 128 + int(ended.by_signal)
    if ended.code in (0, EXIT_CODE):
        return ended.code
    return EXIT_CODE if -ended.code in (signal.SIGTERM, signal.SIGUSR1) else FAILED


def main(arguments: Sequence[str]) -> int:
    """Run the ranks of this node."""
    os.environ.pop("SLURM_EXIT_ERROR", None)  # for the srun of this process, and not for those of ranks
    assignment = Assignment(**json.loads(arguments[0]))
    passing = _SignalForwarder(assignment.run, assignment.grace_s)
    passing.listen()
    told, began_s = signal.SIGTERM, time.monotonic()
    try:
        ended = run_agent(
            assignment.ranks,
            arguments[1:],
            assignment.grace_s,
            min_nodes=assignment.nodes,
            max_nodes=assignment.nodes,
            run_id=assignment.run,
            rdzv_backend="static",
            rdzv_endpoint=assignment.endpoint,
            rdzv_configs={"rank": assignment.node, "timeout": assignment.meet_s},
            signals_to_handle=",".join(number.name for number in _SIGNALS),
        )
        told = ended.by_signal or told
        code, said = exit_code(ended), f"{ended.where} on {node_name()}: {name_code(ended.code)}"
    except LaunchError as error:
        code, said = NO_COMMAND, f"{error.summary} on {node_name()}: {error.found}"
    except OSError as error:
        code, said = _OF_THIS_NODE, f"the ranks cannot be started on {node_name()}: {error}"
    except DistError as error:
        if "EADDRINUSE" in str(error):
            code, said = PORT_TAKEN, f"the agents cannot meet at {assignment.endpoint}: the port is in use"
        elif time.monotonic() < began_s + _LONG * assignment.meet_s:
            raise
        else:
            code, said = NOT_MET, f"{node_name()} has waited at {assignment.endpoint}: {error}"
    finally:
        passing.end()
        end_those_left(assignment.run, told, assignment.grace_s)
    if code in (_OF_THIS_NODE, FAILED, NO_COMMAND, PORT_TAKEN, NOT_MET):
        sys.stderr.write(f"elastic-run: {said}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
