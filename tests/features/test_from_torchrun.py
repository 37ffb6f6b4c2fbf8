"""The script of docs/from-torchrun.md, run as it is written there: killed, told to stop, and started again."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "from-torchrun.md"
PIPE_BYTES = 4096  # a rank that prints waits when so much is unread, so it cannot finish before it is killed
EPOCHS = 6
LIMIT_S = 300
# Starts ranks for each line on its input, with the environment that torchrun gives them. They are forked, so that
# torch is imported once.
LAUNCHER = """
import os, runpy, sys
import torch.distributed, torch.nn.parallel, torchdata.stateful_dataloader, deeppart.checkpointer
for line in sys.stdin:
    folder, port, ranks = line.split()
    pids = []
    for rank in range(int(ranks)):
        pid = os.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks, "MASTER_PORT": port}
            runpy.run_path("train.py", run_name="__main__")
            sys.exit()
        pids.append(pid)
    print("pids", *pids, flush=True)
    print("ended", *[os.waitpid(pid, 0)[1] for pid in pids], flush=True)
"""


# A loop like nanoGPT's, with the names that the added lines use; those come at the dots.
LIKE_NANOGPT = """
...
import os
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
raw_model = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(raw_model.parameters())
scaler = torch.amp.GradScaler("cpu", enabled=False)
torch.manual_seed(1337 + rank)
for parameter in raw_model.parameters():
    dist.broadcast(parameter.data, 0)
iter_num, best_val_loss, local_iter_num = 0, 1e9, 0
X, Y = torch.rand(4, 2), torch.rand(4, 1)
fetched = X.clone()
...
with open(f"began-{dist.get_world_size()}-{rank}", "w") as file:
    print(iter_num, float(best_val_loss), torch.equal(X, fetched), sep=" ", end="", file=file)
while iter_num < 20:
    if iter_num % 5 == 0 and rank == 0:
        best_val_loss = torch.tensor(0.5)
    loss = (raw_model(X) - Y).square().mean()
    loss.backward()
    for parameter in raw_model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    X, Y = torch.rand(4, 2), torch.rand(4, 1)
    iter_num += 1
    local_iter_num += 1
...
deeppart.close()
"""


def script() -> str:
    found = re.search(r'```python\n("""Data-parallel training that goes on.*?)```', PAGE.read_text(), re.DOTALL)
    assert found, "the page has its complete script"
    return found[1]


@dataclass
class Run:
    """What ranks of one start have printed so far."""

    pids: list[int] = field(default_factory=list)
    restored: str = ""
    ended: list[int] = field(default_factory=list)


@contextmanager
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DEEPPART_")}
    environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PAGE.parents[1])}
    command = [sys.executable, "-c", LAUNCHER, str(EPOCHS)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        guard = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            os.killpg(process.pid, signal.SIGKILL)  # it has not been waited for


def start(process: subprocess.Popen[bytes], folder: Path, ranks: int = 2) -> Run:
    assert process.stdin is not None
    process.stdin.write(f"{folder} {free_port()} {ranks}\n".encode())
    return Run()


def read(
    process: subprocess.Popen[bytes], run: Run, losses: dict[int, str], until: Callable[[int], bool] = lambda _: False
) -> None:
    """Note what is printed, up to the first step of which `until` is true or until both ranks have ended."""
    assert process.stdout is not None
    for line in map(bytes.decode, process.stdout):  # unbuffered: nothing is read ahead
        if found := re.fullmatch(r"step (\d+): loss (\S+)\n", line):
            step = int(found[1])
            assert losses.setdefault(step, found[2]) == found[2], f"step {step} again, with another loss"
            if until(step):
                return
        elif line.startswith("pids"):
            run.pids = [int(word) for word in line.split()[1:]]
        elif line.startswith("restored"):
            run.restored = line.split()[-1]
        elif line.startswith("ended"):
            run.ended = [int(word) for word in line.split()[1:]]
            return
    raise AssertionError(f"the launcher has ended: {run}")


@pytest.mark.now_and_then(4)
def test_the_script_of_the_page_goes_on_bit_for_bit_after_sigkill_and_sigterm(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
        (folder / "train.py").write_text(script())
    expected: dict[int, str] = {}
    losses: dict[int, str] = {}
    with launcher() as process:
        run = start(process, whole)
        read(process, run, expected)
        assert (run.restored, run.ended) == ("None", [0, 0])

        run = start(process, stopped)
        committed = stopped / "ckpt"
        read(process, run, losses, until=lambda step: step >= 25 and any(committed.glob("step-*/manifest")))
        killed_after = max(losses)
        for pid in run.pids:
            os.kill(pid, signal.SIGKILL)
        read(process, run, losses)
        assert run.ended == [signal.SIGKILL] * 2

        run = start(process, stopped)
        read(process, run, losses, until=lambda step: step >= killed_after + 25)
        os.kill(run.pids[1], signal.SIGTERM)  # one rank alone: both stop
        read(process, run, losses)
        assert int(run.restored) >= 10  # what was in the background when it was killed may be lost
        assert run.ended == [0, 0]
        assert not (stopped / "weights.pt").exists()
        last = max(losses)

        run = start(process, stopped)
        read(process, run, losses)
        assert (run.restored, run.ended) == (str(last), [0, 0])
    assert losses == expected
    ends = [torch.load(folder / "weights.pt", weights_only=True) for folder in (whole, stopped)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@pytest.mark.now_and_then(2)
def test_nanogpts_best_loss_is_restored_on_another_number_of_ranks(tmp_path: Path) -> None:
    diff = PAGE.read_text().partition("## A public script: nanoGPT")[2].partition("```diff\n")[2].partition("```")[0]
    added = iter(re.findall(r"(?:^\+.*\n)+", diff, re.MULTILINE))
    lines = re.sub(
        r"^\.\.\.\n", lambda _: next(added).replace("+", "", 1).replace("\n+", "\n"), LIKE_NANOGPT, flags=re.MULTILINE
    )
    (tmp_path / "train.py").write_text(lines)
    losses: dict[int, str] = {}
    with launcher() as process:
        for ranks in (2, 3):
            run = start(process, tmp_path, ranks)
            read(process, run, losses)
            assert run.ended == [0] * ranks
    began = [[(tmp_path / f"began-{ranks}-{rank}").read_text() for rank in range(ranks)] for ranks in (2, 3)]
    assert began == [["0 1000000000.0 True"] * 2, ["20 0.5 True"] * 3]
