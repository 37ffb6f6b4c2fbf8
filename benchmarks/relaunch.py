"""From the death of a rank or a node to the next finished step, by what starts the ranks again.

    python benchmarks/relaunch.py [--ranks 4] [--megabytes 25] [--kills 5] [--only "run,nodes,silent,torchrun"]

A DDP training on gloo with AdamW and a checkpoint every fifth step; after a random number of steps something is killed
(SIGKILL), so many times. Shown are seconds from the kill to the end of the first step after it: median (fastest,
slowest), and the processor time that all processes of the job have used in between.

- run: deeppart run; a random rank is killed
- nodes: deeppart run, an agent for each rank and a spare one; a random agent is killed, and a new one started later
- silent: the same, but the agent and its ranks are stopped (SIGSTOP), as if the node had lost its power
- torchrun: with the variable that docs/elastic-torchrun.md names; a random rank is killed

Exit code: 0; 1 if a job has not come back within two minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
LAUNCHERS = ("run", "nodes", "silent", "torchrun")
_PATIENCE_S = 120.0
#: Until a new agent has joined, and its zygote has imported what the script imports.
_SPARE_S = 12.0
_TICKS = os.sysconf("SC_CLK_TCK")

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import deeppart

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    width = int((float(sys.argv[1]) * 1e6 / 4 / 3 / 4) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    replica = torch.nn.parallel.DistributedDataParallel(model, init_sync=False)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    with open(f"pid-{rank}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"pid-{rank}.new", f"pid-{rank}")
    step = deeppart.restore(state) or 0
    while True:
        step += 1
        optimizer.zero_grad()
        replica(torch.ones(1, width)).mean().backward()
        optimizer.step()
        if step % 5 == 0:
            deeppart.checkpoint(state, step=step)
        dist.barrier()
        if rank == 0:
            with open("steps", "a") as file:
                file.write(f"{step} {time.time()}\\n")
        time.sleep(0.02)

if __name__ == "__main__":
    main()
"""


class Job:
    """A training, and the processes that keep it alive."""

    def __init__(self, launcher: str, ranks: int, megabytes: float, directory: Path) -> None:
        self._launcher, self._ranks, self._directory = launcher, ranks, directory
        self._words = ["train.py", str(megabytes)]
        self._log = (directory / "log").open("w")
        (directory / "train.py").write_text(SCRIPT)
        count = ranks + 1 if launcher in ("nodes", "silent") else 1
        self._nodes = ",".join(f"127.0.0.1:{port}" for port in _free_ports(count))
        self.processes = [self._start(node) for node in range(count)]

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        if self._launcher == "torchrun":
            words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self._ranks}",
                     "--max-restarts=1000", *self._words]  # fmt: skip
        else:
            several = ["--nodes", self._nodes, "--node", str(node), "--spares", "1", "--ranks", "1"]
            options = ["--ranks", str(self._ranks)] if self._launcher == "run" else several
            words = ["-m", "deeppart", "run", *options, "--failures", "1000", "--", sys.executable, *self._words]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "DEEPPART_PERSISTENT_DIR": str(self._directory / "ckpt"),
            "DEEPPART_LOCAL_DIR": str(self._directory / f"local-{node}"),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            [sys.executable, *words], cwd=self._directory, env=environment, stdout=self._log, stderr=self._log
        )

    def used_s(self) -> float:
        """Processor time of all processes so far."""
        return sum(used_s(each.pid) for each in self.processes)

    def kill(self, rank: int) -> int | None:
        """Kill a rank, or the node on which it runs, which is returned."""
        pid = int((self._directory / f"pid-{rank}").read_text())
        if self._launcher in ("run", "torchrun"):
            os.kill(pid, signal.SIGKILL)
            return None
        zygote = _parent(pid)
        (node,) = (node for node, each in enumerate(self.processes) if each.pid == _parent(zygote))
        if self._launcher == "nodes":
            self.processes[node].kill()
        else:
            for each in (self.processes[node].pid, zygote, pid):
                os.kill(each, signal.SIGSTOP)
        return node

    def replace(self, node: int) -> None:
        """Start a new agent in the place of one that was killed, without what it had stored."""
        self.processes[node].kill()
        self.processes[node].wait()
        shutil.rmtree(self._directory / f"local-{node}", ignore_errors=True)
        self.processes[node] = self._start(node)

    def close(self) -> None:
        """End it."""
        for each in self.processes:
            each.send_signal(signal.SIGINT)
        for each in self.processes:
            try:
                each.wait(60)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        self._log.close()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def last_step(directory: Path) -> tuple[int, float]:
    """Number of lines of finished steps, and the time of the last."""
    try:
        lines = (directory / "steps").read_text().splitlines()
    except FileNotFoundError:
        return 0, 0.0
    return len(lines), float(lines[-1].split()[1]) if lines else 0.0


def used_s(session_of: int) -> float:
    """Processor time of a process and everything below it so far, ended processes that were waited for included."""
    children: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
            times[int(entry)] = sum(map(int, fields[11:15])) / _TICKS
    found, waiting = 0.0, [session_of]
    while waiting:
        pid = waiting.pop()
        found += times.get(pid, 0.0)
        waiting += children.get(pid, [])
    return found


def kills(launcher: str, ranks: int, megabytes: float, count: int, seed: int) -> list[tuple[float, float]]:
    """Seconds, and processor time, from each kill to the next step."""
    draw, found = random.Random(seed), []
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        job = Job(launcher, ranks, megabytes, directory)
        try:
            _wait_for_steps(directory, 12)
            for _ in range(count):
                _wait_for_steps(directory, last_step(directory)[0] + draw.randint(10, 40))
                before = job.used_s()
                killed_s, node = time.time(), job.kill(draw.randrange(ranks))
                time.sleep(0.1)  # the last step of the others is not one after it
                lines = last_step(directory)[0]
                _wait_for_steps(directory, lines + 1)
                after_s = float((directory / "steps").read_text().splitlines()[lines].split()[1])
                found.append((after_s - killed_s, job.used_s() - before))
                if node is not None:
                    job.replace(node)
                    time.sleep(_SPARE_S)
        except TimeoutError:
            print((directory / "log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            job.close()
    return found


def _wait_for_steps(directory: Path, count: int) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while last_step(directory)[0] < count:
        if time.monotonic() > until_s:
            raise TimeoutError(f"no step within {_PATIENCE_S:g} s")
        time.sleep(0.005)


def shown(values: Sequence[float]) -> str:
    """Median (fastest, slowest)."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="(default 4)")
    parser.add_argument("--megabytes", type=float, default=25.0, help="parameters with AdamW's state (default 25)")
    parser.add_argument("--kills", type=int, default=5, help="of each launcher (default 5)")
    parser.add_argument("--only", default=",".join(LAUNCHERS), help="launchers (default all)")
    parser.add_argument("--seed", type=int, default=1, help="of ranks and steps (default 1)")
    options = parser.parse_args()
    print(f"{options.ranks} ranks, {options.megabytes:g} MB, {options.kills} kills; load {os.getloadavg()[0]:.1f}")
    for launcher in options.only.split(","):
        try:
            found = kills(launcher, options.ranks, options.megabytes, options.kills, options.seed)
        except TimeoutError as error:
            print(f"{launcher}: {error}")
            return 1
        walls, processor = zip(*found, strict=True)
        print(f"{launcher}: {shown(walls)} s, {shown(processor)} s of processor time", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
