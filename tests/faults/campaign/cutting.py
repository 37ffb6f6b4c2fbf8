"""A scenario about power loss: a job is recorded by ``tests.faults.power`` in its own process, and cut everywhere."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from tests.faults.campaign.judge import ERROR, HANG, Problem
from tests.faults.campaign.records import Scenario
from tests.faults.campaign.report import Tally
from tests.mpi.launchers import ROOT

_ROW = "power lost"
_WAYS = 12
_LIMIT_S = 900.0


class Cutting:
    """One such scenario; to the campaign as a :class:`tests.faults.campaign.runner.Play` is.

    Args:
        scenario: its number decides which job is recorded.
        tally: counts: every state that was restored is a fault.
    """

    def __init__(self, scenario: Scenario, tally: Tally) -> None:
        self._scenario, self._tally = scenario, tally
        self.problems: list[Problem] = []
        self.log: list[str] = []

    def run(self) -> None:
        """Record, cut, restore."""
        seed = random.Random(f"{self._scenario.name} power").randrange(1 << 20)
        command = [sys.executable, "-m", "tests.faults.power", "--seed", str(seed), "--ways", str(_WAYS), "--json"]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, env=env, cwd=Path("/"), check=False
            )
        except subprocess.TimeoutExpired:
            self._end([Problem(HANG, f"{' '.join(command)}: longer than {_LIMIT_S:g} s")], 0, "")
            return
        if not done.stdout:
            self._end([Problem(ERROR, done.stderr[-3000:])], 0, "")
            return
        (result,) = json.loads(done.stdout)
        problems = [Problem(ERROR, example) for example in result["examples"]]
        self._end(problems, result["states"], f"{result['events']} events, {result['cuts']} cuts (seed {seed})")

    def _end(self, problems: list[Problem], states: int, detail: str) -> None:
        self.problems = problems
        self.log.append(f"{_ROW}: {states} states restored; {detail}")
        faults = [self._tally.fault(_ROW, "after every event") for _ in range(states)]
        self._tally.settle(faults if problems else [], problems)
