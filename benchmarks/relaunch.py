"""From the death of a rank or a node to the next finished step, by what starts the ranks again.

    python benchmarks/relaunch.py [--ranks 4] [--megabytes 25,296] [--kills 5] [--only "run,torchrun"]

A DDP training on gloo with AdamW and a checkpoint every fifth step; after a random number of steps something is killed
(SIGKILL), so many times. Shown are seconds from the kill to the end of the first step after it: median (fastest,
slowest), the processor time that all processes of the job have used in between, and the phases as `deeppart run --log`
has them; and what an agent and its zygote cost while the ranks train: processor time, and memory (PSS).

- run: deeppart run; a random rank is killed
- nodes: deeppart run, an agent for each rank and a spare one; a random agent is killed, and a new one started later
- silent: the same, but the agent and its ranks are stopped (SIGSTOP), as if the node had lost its power
- torchrun: with the variable that docs/elastic-torchrun.md names; a random rank is killed
- nvrx: ft_launcher of NVIDIA's resiliency extension (pip install nvidia-resiliency-ext); a random rank is killed
- torchft: replicas of one process each (pip install torchft-nightly), without checkpoints; a random one is killed, and
  started again at once; the others go on meanwhile, and also shown is when all train again

--json FILE keeps all figures, --png FILE draws the phases.

Exit code: 0; 1 if a job has not come back within two minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OTHERS = ("torchrun", "nvrx", "torchft")
LAUNCHERS = ("run", "nodes", "silent", *OTHERS)
_NVRX = "nvidia_resiliency_ext.fault_tolerance.launcher"
_PACKAGES = {"nvrx": "nvidia_resiliency_ext", "torchft": "torchft"}
_PATIENCE_S = 120.0
#: Until a new agent has joined, and its zygote has imported what the script imports.
_SPARE_S = 12.0
#: For which the costs of an agent are measured.
_WATCHED_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
#: Of `training` events, in this order; what is left of the time until the next step is the first.
PHASES = ("detect", "kill", "start", "restore", "step")

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import deeppart

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
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


REPLICA = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

def main():
    rank = os.environ["RANK"]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(1)
    width = int((float(sys.argv[1]) * 1e6 / 4 / 3 / 4) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(4)))
    inner = torch.optim.AdamW(model.parameters())
    parts = {"model": model, "optimizer": inner}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), min_replica_size=1, replica_id=rank, rank=0, world_size=1,
        state_dict=lambda: {name: part.state_dict() for name, part in parts.items()},
        load_state_dict=lambda found: [part.load_state_dict(found[name]) for name, part in parts.items()],
        store_addr="127.0.0.1", store_port=store.port, timeout=timedelta(seconds=60),
    )
    replica, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    with open(f"pid-{rank}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"pid-{rank}.new", f"pid-{rank}")
    while True:
        step = manager.current_step()
        optimizer.zero_grad()
        replica(torch.ones(1, width)).mean().backward()
        optimizer.step()
        if manager.current_step() > step and manager.participating_rank() == 0:
            with open("steps", "a") as file:
                file.write(f"{step + 1} {time.time()} {manager.num_participants()}\\n")
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
        (directory / "train.py").write_text(REPLICA if launcher == "torchft" else SCRIPT)
        count = ranks + 1 if launcher in ("nodes", "silent", "torchft") else 1
        self._nodes = ",".join(f"127.0.0.1:{port}" for port in _free_ports(count))
        self.processes = [self._start(node) for node in range(count)]

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        if self._launcher == "torchft":  # the last is the process at which replicas meet
            address = self._nodes.split(",")[-1]
            lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--bind", address]
            lighthouse += ["--min_replicas", "1", "--join_timeout_ms", "1000"]
            words = [sys.executable, *self._words] if node < self._ranks else lighthouse
            own = {"RANK": str(node), "TORCHFT_LIGHTHOUSE": f"http://{address}", "OMP_NUM_THREADS": "1"}
            return self._run(words, own)
        if self._launcher in OTHERS:
            meeting = ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={self._nodes}"]
            words = ["-m", "torch.distributed.run" if self._launcher == "torchrun" else _NVRX, *meeting]
            words += [f"--nproc-per-node={self._ranks}", "--max-restarts=1000", *self._words]
        else:
            several = ["--nodes", self._nodes, "--node", str(node), "--spares", "1", "--ranks", "1"]
            options = ["--ranks", str(self._ranks)] if self._launcher == "run" else several
            words = ["-m", "deeppart", "run", *options, "--failures", "1000", "--log", f"events-{node}"]
            words += ["--", sys.executable, *self._words]
        environment = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "DEEPPART_PERSISTENT_DIR": str(self._directory / "ckpt"),
            "DEEPPART_LOCAL_DIR": str(self._directory / f"local-{node}"),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
        }
        return self._run([sys.executable, *words], environment)

    def _run(self, words: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words, cwd=self._directory, env=os.environ | environment, stdout=self._log, stderr=self._log
        )

    def used_s(self) -> float:
        """Processor time of all processes so far."""
        return sum(used_s(each.pid) for each in self.processes)

    def trainings(self) -> list[dict[str, Any]]:
        """The events of all agents after the first step of an epoch, in their order."""
        files = self._directory.glob("events-*")
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted((each for each in found if each["event"] == "training"), key=lambda each: int(each["epoch"]))

    def costs(self) -> dict[str, float]:
        """Of an agent and its zygote, with one rank or all of them: share of a processor, and bytes."""
        zygote = _parent(int((self._directory / "pid-0").read_text()))
        agent = _parent(zygote)
        before_s = _own_s(agent) + _own_s(zygote)
        time.sleep(_WATCHED_S)
        share = (_own_s(agent) + _own_s(zygote) - before_s) / _WATCHED_S
        return {"processor": share, "agent_bytes": _pss_bytes(agent), "zygote_bytes": _pss_bytes(zygote)}

    def kill(self, rank: int) -> int | None:
        """Kill a rank, or the node on which it runs, which is returned."""
        pid = int((self._directory / f"pid-{rank}").read_text())
        if self._launcher in ("run", *OTHERS):
            os.kill(pid, signal.SIGKILL)
            if self._launcher == "torchft":
                self.replace(rank)
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


def _own_s(pid: int) -> float:
    """Processor time of one process."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) / _TICKS


def _pss_bytes(pid: int) -> float:
    """Memory of a process, shared pages divided among those that share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


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


def kills(launcher: str, ranks: int, megabytes: float, count: int, seed: int) -> dict[str, Any]:
    """Seconds, processor time and phases from each kill to the next step, and the costs of an agent."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        job = Job(launcher, ranks, megabytes, directory)
        try:
            _wait_for_steps(directory, 12)
            costs = {} if launcher in OTHERS else job.costs()
            for _ in range(count):
                _wait_for_steps(directory, last_step(directory)[0] + draw.randint(6, 24))
                before = job.used_s()
                killed_s, node = time.time(), job.kill(draw.randrange(ranks))
                time.sleep(0.1)  # the last step of the others is not one after it
                lines = last_step(directory)[0]
                _wait_for_steps(directory, lines + 1)
                after_s = float((directory / "steps").read_text().splitlines()[lines].split()[1])
                kill: dict[str, Any] = {"seconds": after_s - killed_s}
                if launcher == "torchft":
                    kill["all_s"] = _wait_for_all(directory, lines, ranks) - killed_s
                if launcher not in ("nodes", "torchft"):  # where the processor time of the killed agent is gone
                    kill["processor_s"] = job.used_s() - before
                if launcher not in OTHERS:
                    _wait_until(lambda: len(job.trainings()) > len(found) + 1)
                    event = job.trainings()[len(found) + 1]
                    phases = {name: float(event.get(f"{name}_s", 0.0)) for name in PHASES[1:]}
                    kill["phases"] = {"detect": max(kill["seconds"] - sum(phases.values()), 0.0)} | phases
                found.append(kill)
                if node is not None:
                    job.replace(node)
                    time.sleep(_SPARE_S)
        except TimeoutError:
            print((directory / "log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            job.close()
    return {"launcher": launcher, "ranks": ranks, "megabytes": megabytes, "kills": found, "costs": costs}


def _wait_for_steps(directory: Path, count: int) -> None:
    _wait_until(lambda: last_step(directory)[0] >= count)


def _wait_for_all(directory: Path, lines: int, ranks: int) -> float:
    """When the first step was made after so many in which all replicas took part."""

    def with_all() -> list[float]:
        found = [line.split() for line in (directory / "steps").read_text().splitlines()[lines:]]
        return [float(fields[1]) for fields in found if fields[2:] == [str(ranks)]]

    _wait_until(lambda: bool(with_all()))
    return with_all()[0]


def _wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > until_s:
            raise TimeoutError(f"no step within {_PATIENCE_S:g} s")
        time.sleep(0.005)


def shown(values: Sequence[float]) -> str:
    """Median (fastest, slowest)."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def phases_of(result: dict[str, Any]) -> dict[str, float]:
    """The median of each phase; empty without an agent."""
    found = [kill["phases"] for kill in result["kills"] if "phases" in kill]
    return {name: median(each[name] for each in found) for name in PHASES} if found else {}


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the phases of each result as a bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown_results = [each for each in results if phases_of(each)]
    names = {"run": "a rank is killed", "nodes": "an agent is killed", "silent": "a node falls silent"}
    labels = [f"{names[each['launcher']]}, {each['megabytes']:g} MB" for each in shown_results]
    figure, axis = pyplot.subplots(figsize=(9, 0.55 * len(labels) + 1.2), layout="constrained")
    left = [0.0] * len(labels)
    for phase, colour in zip(PHASES, ("#c8553d", "#e0a458", "#b9c4cf", "#1b6ca8", "#7fb069"), strict=True):
        widths = [phases_of(each)[phase] for each in shown_results]
        axis.barh(labels, widths, left=left, color=colour, label=phase)
        left = [at + width for at, width in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.set_xlabel("seconds from the failure to the end of the next step (medians of each phase)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(ncols=len(PHASES), loc="upper right", fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="(default 4)")
    parser.add_argument("--megabytes", default="25", help="parameters with AdamW's state; several sizes (default 25)")
    parser.add_argument("--kills", type=int, default=5, help="of each launcher (default 5)")
    parser.add_argument("--only", default=",".join(LAUNCHERS), help="launchers (default all)")
    parser.add_argument("--seed", type=int, default=1, help="of ranks and steps (default 1)")
    parser.add_argument("--json", type=Path, help="where all figures are written to; those of other cases are kept")
    parser.add_argument("--png", type=Path, help="where the phases are drawn to")
    options = parser.parse_args()
    kept = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else []
    print(f"{options.ranks} ranks, {options.kills} kills; load {os.getloadavg()[0]:.1f}")
    for launcher, size in itertools.product(options.only.split(","), map(float, options.megabytes.split(","))):
        if launcher in _PACKAGES and importlib.util.find_spec(_PACKAGES[launcher]) is None:
            print(f"{launcher}: not installed")
            continue
        try:
            result = kills(launcher, options.ranks, size, options.kills, options.seed)
        except TimeoutError as error:
            print(f"{launcher}, {size:g} MB: {error}")
            return 1
        found = result["kills"]
        used = [each["processor_s"] for each in found if "processor_s" in each]
        processor = f", {shown(used)} s of processor time" if used else ""
        print(f"{launcher}, {size:g} MB: {shown([each['seconds'] for each in found])} s{processor}", flush=True)
        if launcher == "torchft":
            print(f"    all replicas: {shown([each['all_s'] for each in found])} s")
        if phases := phases_of(result):
            costs = result["costs"]
            print("   ", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases.items()))
            print(
                f"    agent: {costs['processor']:.2%} of a processor, {costs['agent_bytes'] / 1e6:.0f} MB, "
                f"zygote {costs['zygote_bytes'] / 1e6:.0f} MB"
            )
        same = (launcher, size, options.ranks)
        kept = [each for each in kept if (each["launcher"], each["megabytes"], each["ranks"]) != same] + [result]
        if options.json is not None:
            options.json.write_text(json.dumps(kept, indent=1) + "\n")
    if options.png is not None:
        draw(kept, options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
