"""From the death of a rank to the next finished step, by what starts the ranks again.

    python benchmarks/relaunch.py [--ranks 4] [--megabytes 25] [--kills 5] [--only "run,elastic-run,torchrun"]

A DDP training on gloo with AdamW and a checkpoint every fifth step; a random rank is killed (SIGKILL) after a random
number of steps, so many times. Shown are seconds from the kill to the end of the first step after it: median (fastest,
slowest), and the processor time that all processes of the job have used in between. torchrun runs with the variable
that docs/elastic-torchrun.md names. Exit code: 0; 1 if a job has not come back within two minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
LAUNCHERS = ("run", "elastic-run", "torchrun")
_PATIENCE_S = 120.0
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


def command(launcher: str, ranks: int, megabytes: float) -> list[str]:
    """The command of a job."""
    words = ["train.py", str(megabytes)]
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                "--max-restarts=1000", *words]  # fmt: skip
    options = ["--ranks", str(ranks)] if launcher == "run" else ["--max", str(ranks)]
    return [sys.executable, "-m", "deeppart", launcher, *options, "--failures", "1000", "--", sys.executable, *words]


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
        (directory / "train.py").write_text(SCRIPT)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "DEEPPART_PERSISTENT_DIR": str(directory / "ckpt"),
            "DEEPPART_LOCAL_DIR": str(directory / "local"),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
        }
        log = (directory / "log").open("w")
        job = subprocess.Popen(
            command(launcher, ranks, megabytes), cwd=directory, env=environment, stdout=log, stderr=log
        )
        try:
            _wait_for_steps(directory, 12)
            for _ in range(count):
                _wait_for_steps(directory, last_step(directory)[0] + draw.randint(10, 40))
                before = used_s(job.pid)
                os.kill(int((directory / f"pid-{draw.randrange(ranks)}").read_text()), signal.SIGKILL)
                killed_s = time.time()
                time.sleep(0.1)  # the last step of the others is not one after it
                lines = last_step(directory)[0]
                _wait_for_steps(directory, lines + 1)
                after_s = float((directory / "steps").read_text().splitlines()[lines].split()[1])
                found.append((after_s - killed_s, used_s(job.pid) - before))
        except TimeoutError:
            print((directory / "log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            job.send_signal(signal.SIGINT)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
            log.close()
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
