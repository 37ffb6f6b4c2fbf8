"""Keeps a job alive: ``deeppart run``.

An agent (without torch) has a zygote, a process that has imported the modules of the script. When a rank fails, the
agent kills the others and has all of them forked again: the script need not be changed, and no process of the failed
epoch remains.

    deeppart run (agent) ── zygote ── rank 0, rank 1, ...
          └── /dev/shm/deeppart-run-*/rank-N: 64 bytes that rank N writes its progress to

| module | concern |
|-|-|
| `command` | the command of the ranks, and the modules that it imports |
| `zygote` | imports these modules, and forks ranks |
| `starting` | the agent's side of a zygote |
| `node` | the ranks of one node |
| `watch` | detects that ranks hang |
| `job` | decides on starts, failures, restarts and stops |
| `messages` | the messages between these |
| `links` | connections between the agents of several nodes |
| `agent` | runs a node, and follows the leading agent or leads |
| `wanted` | the wanted number of ranks |
| `allocation` | starts an agent on each node of a Slurm allocation |
"""

from deeppart.agent.agent import Agent
from deeppart.agent.allocation import addresses_of, end_of_job, run_on_all_nodes
from deeppart.agent.command import Command
from deeppart.agent.job import GIVEN_UP, TOO_FEW_NODES, JobOptions, exit_text
from deeppart.agent.links import Credentials
from deeppart.agent.wanted import WantedRanks
from deeppart.progress import STOPPED

__all__ = [
    "GIVEN_UP",
    "STOPPED",
    "TOO_FEW_NODES",
    "Agent",
    "Command",
    "Credentials",
    "JobOptions",
    "WantedRanks",
    "addresses_of",
    "end_of_job",
    "exit_text",
    "run_on_all_nodes",
]
