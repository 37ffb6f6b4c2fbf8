"""Communication between ranks, and how they find each other: only this package imports mpi4py or ZeroMQ."""

from deeppart.comm.agreement import agree, raise_together, together, unequal
from deeppart.comm.base import Operation, interleaved, rank_names
from deeppart.comm.channel import Comm
from deeppart.comm.commit import CommitMayStandError, RoundResult, commit_round
from deeppart.comm.connecting import connect
from deeppart.comm.job import TIMEOUT_S, channel_of_job, own_channel_of_job
from deeppart.comm.single import SingleComm
from deeppart.comm.waiting import RunningOperation, finish

__all__ = [
    "TIMEOUT_S",
    "Comm",
    "CommitMayStandError",
    "Operation",
    "RoundResult",
    "RunningOperation",
    "SingleComm",
    "agree",
    "channel_of_job",
    "commit_round",
    "connect",
    "finish",
    "interleaved",
    "own_channel_of_job",
    "raise_together",
    "rank_names",
    "together",
    "unequal",
]
