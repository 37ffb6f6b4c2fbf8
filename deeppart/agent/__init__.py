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
| `watch` | whether the ranks hang |
| `job` | epochs: start, failure, start again, stop |
"""

from deeppart.agent.command import Command
from deeppart.agent.job import GIVEN_UP, STOPPED, Job, JobOptions

__all__ = ["GIVEN_UP", "STOPPED", "Command", "Job", "JobOptions"]
