"""The script of docs/from-torchrun.md, run as it is written there: killed, told to stop, and started again."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch

from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "from-torchrun.md"
PIPE_BYTES = 4096  # a rank that prints waits when so much is unread, so it cannot finish before it is killed
EPOCHS = 6
# Two ranks with the environment that torchrun gives them, forked after the imports to import once.
LAUNCHER = """
import os, runpy, sys
import torch.distributed, torch.nn.parallel, torchdata.stateful_dataloader, deeppart.checkpointer
pids = []
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        runpy.run_path("train.py", run_name="__main__")
        sys.exit()
    pids.append(pid)
print("pids", *pids, flush=True)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in pids]))
"""


def script() -> str:
    found = re.search(r'```python\n("""Data-parallel training that goes on.*?)```', PAGE.read_text(), re.DOTALL)
    assert found, "the page has its complete script"
    return found[1]


@contextmanager
def job(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DEEPPART_")}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(PAGE.parents[1])
    command = [sys.executable, "-c", LAUNCHER, str(EPOCHS)]
    started = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert started.stdout is not None
    fcntl.fcntl(started.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    guard = subprocess.Popen(["sh", "-c", f"sleep 120; kill -9 -{started.pid}"], start_new_session=True)
    try:
        yield started
    finally:
        for process in (guard, started):
            if process.poll() is None or process is started:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait(30)
        started.stdout.close()


def read(output: IO[str], losses: dict[int, str], until: int | None = None) -> list[str]:
    """Note what rank 0 prints, up to a step or to the end; returns the other lines."""
    others = []
    for line in output:
        if found := re.fullmatch(r"step (\d+): loss (\S+)\n", line):
            step = int(found[1])
            assert losses.setdefault(step, found[2]) == found[2], f"step {step} again, with another loss"
            if step == until:
                break
        else:
            others.append(line.strip())
    return others


def pids(lines: list[str]) -> list[int]:
    return [int(word) for line in lines if line.startswith("pids") for word in line.split()[1:]]


def test_the_script_of_the_page_goes_on_bit_for_bit_after_sigkill_and_sigterm(tmp_path: Path) -> None:
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(script())
    whole: dict[int, str] = {}
    losses: dict[int, str] = {}
    with job(tmp_path / "whole") as running:
        assert "restored step: None" in read(running.stdout, whole)
        assert running.wait(60) == 0
    folder = tmp_path / "stopped"
    with job(folder) as running:  # killed at once, with all its ranks, when it leaves the block
        read(running.stdout, losses, until=45)
    assert not (folder / "weights.pt").exists()
    with job(folder) as running:
        lines = read(running.stdout, losses, until=90)
        (resumed,) = (int(line.split()[-1]) for line in lines if line.startswith("restored"))
        assert resumed >= 30
        assert resumed % 10 == 0
        os.kill(pids(lines)[1], signal.SIGTERM)  # one rank alone: both stop
        read(running.stdout, losses)
        assert running.wait(60) == 0
    assert not (folder / "weights.pt").exists()
    stopped = max(losses)
    with job(folder) as running:
        assert f"restored step: {stopped}" in read(running.stdout, losses)
        assert running.wait(60) == 0
    assert losses == whole
    ends = [torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("whole", "stopped")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
