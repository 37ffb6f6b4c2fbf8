"""Keeps a job alive: ``deeppart run``.

An agent (no torch) has a zygote, a process that has imported what the script imports. When a rank fails, the agent
kills the others and has all of them forked again: the script is not changed, and nothing of the failed epoch is left.

    deeppart run (agent) ── zygote ── rank 0, rank 1, ...
          └── /dev/shm/deeppart-run-*/rank-N: 64 bytes that rank N writes its progress to

| module | concern |
|-|-|
| `command` | what the ranks run, and which modules that imports |
| `zygote` | imports these, and forks ranks |
| `starting` | the agent's side of a zygote |
| `node` | the ranks of one node |
| `watch` | whether the ranks hang |
| `job` | decides: start, failure, start again, stop |
| `messages` | what is sent between these |
| `links` | the connections between the agents of several nodes |
| `agent` | runs a node; follows the agent that leads, or leads |
| `wanted` | how many ranks are wanted |
| `allocation` | starts an agent on each node of Slurm's allocation |
"""

from deeppart.agent.agent import Agent
from deeppart.agent.allocation import addresses_of, end_of_job, run_on_all_nodes
from deeppart.agent.command import Command
from deeppart.agent.job import GIVEN_UP, TOO_FEW_NODES, JobOptions, exit_text
from deeppart.agent.links import Credentials
from deeppart.agent.wanted import WantedRanks, read_schedule
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
    "read_schedule",
    "run_on_all_nodes",
]
