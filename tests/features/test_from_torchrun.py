"""The script of docs/from-torchrun.md, run as it is written there: killed, told to stop, and started again."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.mpi.launchers import environment
from tests.mpi.torchrun import LIMIT_S, interpreter
from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "from-torchrun.md"
PIPE_BYTES = 4096  # a rank that prints waits when so much is unread, so it cannot finish before it is killed
EPOCHS = 6
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


class Run:
    """Ranks of one start, and what they print."""

    def __init__(self, python: list[str], folder: Path, ranks: int = 2) -> None:
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        env = environment({}, LIMIT_S) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        env |= {"WORLD_SIZE": str(ranks)}
        command = [*python, "train.py", str(EPOCHS)]
        self.ranks = [
            subprocess.Popen(command, cwd=folder, stdout=writing, env=env | {"RANK": name, "LOCAL_RANK": name})
            for name in map(str, range(ranks))
        ]
        os.close(writing)
        self._printed = os.fdopen(reading, "rb", buffering=0)
        self.restored = ""

    def read(self, losses: dict[int, str], until: Callable[[int], bool] = lambda _: False) -> None:
        """Note what is printed, up to the first step of which ``until`` is true or until all ranks have ended."""
        for line in map(bytes.decode, self._printed):  # unbuffered: nothing is read ahead
            if found := re.fullmatch(r"step (\d+): loss (\S+)\n", line):
                step = int(found[1])
                assert losses.setdefault(step, found[2]) == found[2], f"step {step} again, with another loss"
                if until(step):
                    return
            elif line.startswith("restored"):
                self.restored = line.split()[-1]

    @property
    def codes(self) -> list[int]:
        """Exit codes."""
        return [rank.wait(LIMIT_S) for rank in self.ranks]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self._printed.close()


@pytest.mark.now_and_then(4)
def test_the_script_of_the_page_goes_on_bit_for_bit_after_sigkill_and_sigterm(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
        (folder / "train.py").write_text(script())
    expected: dict[int, str] = {}
    losses: dict[int, str] = {}
    with interpreter(environment({}, LIMIT_S), 2) as python:
        with Run(python, whole) as run:
            run.read(expected)
            assert (run.restored, run.codes) == ("None", [0, 0])
        with Run(python, stopped) as run:
            committed = stopped / "ckpt"
            run.read(losses, until=lambda step: step >= 25 and any(committed.glob("step-*/manifest")))
            killed_after = max(losses)
            for rank in run.ranks:
                rank.kill()
            run.read(losses)
            assert run.codes == [-signal.SIGKILL] * 2
        with Run(python, stopped) as run:
            run.read(losses, until=lambda step: step >= killed_after + 25)
            run.ranks[1].terminate()  # one rank alone: both stop
            run.read(losses)
            assert int(run.restored) >= 10  # what was in the background when it was killed may be lost
            assert run.codes == [0, 0]
            assert not (stopped / "weights.pt").exists()
            last = max(losses)
        with Run(python, stopped) as run:
            run.read(losses)
            assert (run.restored, run.codes) == (str(last), [0, 0])
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
    with interpreter(environment({}, LIMIT_S), 3) as python:
        for ranks in (2, 3):
            with Run(python, tmp_path, ranks) as run:
                run.read(losses)
                assert run.codes == [0] * ranks
    began = [[(tmp_path / f"began-{ranks}-{rank}").read_text() for rank in range(ranks)] for ranks in (2, 3)]
    assert began == [["0 1000000000.0 True"] * 2, ["20 0.5 True"] * 3]
