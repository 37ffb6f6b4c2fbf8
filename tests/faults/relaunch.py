"""Kills what keeps a training alive, again and again: its weights must be those of an undisturbed one, bit for bit.

    python -m tests.faults.relaunch [--kills 200] [--seed 1] [--nodes 4] [--spares 1] [--ranks 1]

``deeppart run`` on several nodes, each a process here, one of them a spare: a rank, some ranks, a zygote or an agent,
be it the one that leads, is killed or stopped (SIGSTOP) for a while, at any moment, also while ranks start, restore or
save. Agents that were killed are started again. Exit code 1 if the job ends too early, hangs, or has other weights.

With ``--spares 0`` fewer ranks go on, and more when an agent has come back and is trusted, for which the end is waited
for: sums are rounded otherwise then, and the weights must be the same to nine digits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tests.features.run_job import backward, make
from tests.ports import free_ports
from tests.states import difference

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "features" / "run_job.py"
#: Without a new step for so long the job hangs.
PATIENCE_S = 120.0
#: An agent that was started or goes on has joined after this time.
JOINED_S = 15.0
#: A node that was lost again and again gets ranks again within an hour.
TRUST_S = 3700.0
FAULTS = ("rank", "ranks", "zygote", "agent", "stop rank", "stop agent")


class Campaign:
    """One job that is disturbed.

    Attributes:
        agents: of each node.
        done: how often what was done to it.
    """

    def __init__(self, directory: Path, nodes: int, spares: int = 1, ranks: int = 1, seed: int = 1) -> None:
        self._directory, self._draw = directory, random.Random(seed)
        hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(nodes))
        self._options = ["--nodes", hosts, "--spares", str(spares), "--ranks", str(ranks)]
        self._options += ["--failures", "100000", "--hang", "20s", *(() if spares else ("--min", "1"))]
        self._most, self._has_spares = ranks * (nodes - spares), spares > 0
        self._log = (directory / "log").open("ab")
        self._came_s = 0.0  # when an agent was last started, or went on
        self.agents = [self._start(node) for node in range(nodes)]
        self._stopped: dict[int, float] = {}  # pid -> when it is to go on
        self.done: Counter[str] = Counter()

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        self._came_s = time.monotonic()
        words = [*self._options, "--node", str(node), "--log", str(self._directory / "events")]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DEEPPART_PERSISTENT_DIR": str(self._directory / "ckpt"),
            "DEEPPART_LOCAL_DIR": str(self._directory / f"local-{node}"),
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "deeppart", "run", *words, "--", sys.executable, str(SCRIPT), str(10**9),
             str(self._directory / "result"), "until enough"],
            cwd=self._directory, env=environment, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def steps(self) -> int:
        """The newest step that rank 0 has made."""
        with suppress(OSError, ValueError):
            return int((self._directory / "step").read_text())
        return 0

    def events(self) -> list[dict[str, Any]]:
        """What the agents have told."""
        with suppress(OSError):
            return [json.loads(line) for line in (self._directory / "events").read_text().splitlines()]
        return []

    def disturb(self) -> None:
        """Do something to the job."""
        fault = self._draw.choice(FAULTS)
        agent = self._draw.choice(self.agents)
        zygotes = children(agent.pid)
        ranks = [rank for zygote in zygotes for rank in children(zygote)]
        if fault.endswith("agent"):
            chosen = [agent.pid]
        elif fault == "zygote":
            chosen = zygotes[:1]
        else:
            chosen = [pid for each in self.agents for z in children(each.pid) for pid in children(z)]
            self._draw.shuffle(chosen)
            chosen = ranks[:1] or chosen[:1] if fault != "ranks" else chosen[: self._draw.randint(2, 3)]
        for pid in chosen:
            with suppress(ProcessLookupError):
                if fault.startswith("stop"):
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped[pid] = time.monotonic() + self._draw.choice((0.5, 2.0, 5.0, 8.0))
                else:
                    os.kill(pid, signal.SIGKILL)
                self.done[fault] += 1

    def repair(self) -> None:
        """Let stopped processes go on after their time, and start agents again."""
        for pid, until_s in list(self._stopped.items()):
            if time.monotonic() > until_s:
                del self._stopped[pid]
                self._came_s = time.monotonic()
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        for node, agent in enumerate(self.agents):
            if (code := agent.poll()) is not None:
                if code != -signal.SIGKILL:
                    raise AssertionError(f"the agent of node {node} has ended with exit code {code}")
                self.agents[node] = self._start(node)

    def run(self, kills: int) -> None:
        """Disturb it so often, then let it go on for a few steps and end."""
        last, at_s = 0, time.monotonic()
        next_s = at_s + 10.0
        while sum(self.done.values()) < kills or self.steps() < last + 10:
            time.sleep(0.02)
            self.repair()
            step = self.steps()
            if step > last:
                last, at_s = (step if sum(self.done.values()) < kills else last), time.monotonic()
            if time.monotonic() > at_s + PATIENCE_S:
                raise AssertionError(f"no step after {last} for {PATIENCE_S:g} s")
            if time.monotonic() > next_s and sum(self.done.values()) < kills:
                self.disturb()
                next_s = time.monotonic() + self._draw.choice((0.1, 0.5, 1.0, 2.0, 4.0))
        patience_s = PATIENCE_S if self._has_spares else TRUST_S
        until_s = time.monotonic() + patience_s
        # An agent that comes back after the end does not know that the job is done.
        while (
            self._stopped
            or time.monotonic() < self._came_s + JOINED_S
            or [each["ranks"] for each in self.events() if each["event"] == "started"][-1] < self._most
        ):
            time.sleep(0.1)
            self.repair()
            if time.monotonic() > until_s:
                raise AssertionError(f"not all ranks run again for {patience_s:g} s")
        self.finish()

    def finish(self) -> None:
        """Let it go on to its end, at the next multiple of ten steps."""
        (self._directory / "enough").touch()
        for node, agent in enumerate(self.agents):
            for pid in self._stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            code = agent.wait(PATIENCE_S)
            if code != 0:
                raise AssertionError(f"the agent of node {node} has ended with exit code {code}")

    def close(self) -> None:
        """End everything."""
        for agent in self.agents:
            for number in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    agent.send_signal(number)
            agent.wait()
        self._log.close()


def children(pid: int) -> list[int]:
    """The processes that a process with one thread has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def check_on_any_ranks(found: Any) -> None:
    """Compare what a job has come to with one process, for another number of ranks rounds sums otherwise."""
    model, optimizer = make()
    for step in range(1, found["step"] + 1):
        backward(model, step, 0, 1)
        optimizer.step()
    torch.testing.assert_close(found["model"], model.state_dict(), rtol=1e-9, atol=1e-12)


def undisturbed(directory: Path, ranks: int, steps: int) -> Any:
    """What a training of so many steps comes to on one host."""
    words = ["--ranks", str(ranks), "--", sys.executable, str(SCRIPT), str(steps), str(directory / "result"), "none"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DEEPPART_PERSISTENT_DIR": str(directory / "ckpt")}
    environment |= {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "deeppart", "run", *words], cwd=directory, env=environment, check=True)
    return torch.load(directory / "result")


def disturbed(
    directory: Path, kills: int, seed: int, nodes: int = 4, spares: int = 1, ranks: int = 1
) -> dict[str, int]:
    """Run a campaign; what was done to the job.

    Raises:
        AssertionError: the job has ended, hangs, or its weights differ.
    """
    campaign = Campaign(directory, nodes, spares, ranks, seed)
    try:
        campaign.run(kills)
    finally:
        campaign.close()
    found = torch.load(directory / "result")
    if not spares:
        check_on_any_ranks(found)
    else:
        (directory / "straight").mkdir()
        expected = undisturbed(directory / "straight", ranks * (nodes - spares), found["step"])
        assert difference(expected, found) is None, "other weights"
    return dict(campaign.done)


def main() -> int:
    """Run one campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="(default 200)")
    parser.add_argument("--seed", type=int, default=1, help="(default 1)")
    parser.add_argument("--nodes", type=int, default=4, help="(default 4)")
    parser.add_argument("--spares", type=int, default=1, help="of the nodes (default 1)")
    parser.add_argument("--ranks", type=int, default=1, help="of each node (default 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        directory, began_s = Path(text), time.monotonic()
        try:
            done = disturbed(directory, options.kills, options.seed, options.nodes, options.spares, options.ranks)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print((directory / "log").read_text(errors="replace")[-5000:])
            print(f"seed {options.seed}: {error}")
            return 1
        events = Counter(json.loads(line)["event"] for line in (directory / "events").read_text().splitlines())
        print(f"seed {options.seed}: {done}, {dict(events)}, {time.monotonic() - began_s:.0f} s: the same weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
