"""One training, run whole, killed and resumed, and told to end: in processes forked from one that has the imports.

A module that trains has ``train(run: Run) -> weights`` and calls :func:`main`; a test calls :func:`results`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeppart
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
LIMIT_S = 240.0
EVERY, STEPS = 4, 30
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Run:
    """One process of a training.

    Attributes:
        folder: of this training, whose processes share it.
        rank, ranks: of the process.
        end: the signal to be sent to the process itself after a checkpoint is safe, or None.
        after: the step before which it may not be sent.
        variant: which training, where a module has several.
    """

    folder: Path
    rank: int
    ranks: int
    end: signal.Signals | None
    after: int
    variant: str = ""

    @property
    def config(self) -> deeppart.Config:
        return deeppart.Config(persistent_dir=str(self.folder / "ckpt"), timeout=60.0)

    def note(self, line: list[Any]) -> None:
        """Append to the log of rank 0."""
        if self.rank == 0:
            with (self.folder / "log").open("a") as log:
                log.write(json.dumps(line) + "\n")

    def stepped(self, step: int) -> None:
        """Send the signal if it is time: by then a checkpoint can be resumed from, whatever the disk's speed."""
        if self.end is None or step != self.after or self.rank != self.ranks - 1:
            return
        limit = time.monotonic() + LIMIT_S / 2
        while not any((self.folder / "ckpt").glob("step-*/manifest")):
            assert time.monotonic() < limit, "no checkpoint was committed"
            time.sleep(0.01)
        os.kill(os.getpid(), self.end)


class Data(torch.utils.data.Dataset[Any]):
    """22 samples."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, place: int) -> Any:
        draw = torch.Generator().manual_seed(place)
        return torch.randn(4, generator=draw), torch.randn(1, generator=draw)


def network() -> nn.Sequential:
    """With dropout, for which each rank draws its own numbers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))


def main(
    train: Callable[[Run], Weights],
    refusals: Callable[[Path], list[str]],
    *,
    sigterm: bool = True,
    sizes: Sequence[int] = (1, 2),
    variants: Sequence[str] = ("",),
    grows: bool = False,
) -> None:
    """Run all trainings, on one rank and on two, and print what came of them as JSON.

    Args:
        grows: one of two ranks goes on by three, too.
    """
    torch.set_num_threads(1)
    top = Path(sys.argv[1])
    found: dict[str, Any] = {}
    for ranks, variant in itertools.product(sizes, variants):
        name = f"{ranks}{variant}"
        _processes(train, Run(top / f"whole-{name}", 0, ranks, None, 0, variant))
        for end, after in ((signal.SIGKILL, 17), *([(signal.SIGTERM, 14)] if sigterm else [])):
            run = Run(top / f"{end.name}-{name}", 0, ranks, end, after, variant)
            ended = _processes(train, run)
            _processes(train, replace(run, end=None))
            found[run.folder.name] = {"ended": ended, **_compared(run.folder, top / f"whole-{name}")}
    if grows:
        run = Run(top / "grown", 0, 2, signal.SIGKILL, 17)
        _processes(train, run)
        before = len((run.folder / "log").read_text().splitlines())
        _processes(train, replace(run, ranks=3, end=None))
        found["grown"] = list(map(json.loads, (run.folder / "log").read_text().splitlines()[before:]))
    found["refusals"] = refusals(top)
    print(json.dumps(found))


def results(
    module: str,
    needs: tuple[str, ...],
    folder: Path,
    install: str = "pip install 'deeppart[trainers]'",
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """What :func:`main` of a module has printed, in a process of its own; skips where a package is missing."""
    for name in needs:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: {install}")
    left_out = ("MASTER_", "SLURM_", "PMI_", "OMPI_", "DEEPPART_", "TORCHELASTIC_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", f"tests.unit.interop.{module}", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def refused(*calls: Callable[[], Any]) -> list[str]:
    """What the library said to each of these calls that it refused."""
    found = []
    for call in calls:
        try:
            call()
        except deeppart.DeeppartError as error:
            found.append(str(error))
    return found


def _processes(train: Callable[[Run], Weights], run: Run) -> list[int]:
    """How the ranks ended: exit codes, or signals as negative numbers. Where one fails, the others are killed."""
    run.folder.mkdir(exist_ok=True)
    port, ranks = str(free_port()), run.ranks
    running = {_fork(train, replace(run, rank=rank), port): rank for rank in range(ranks)}
    codes = [0] * ranks
    while running:
        process, status = os.wait()
        rank = running.pop(process)
        codes[rank] = os.waitstatus_to_exitcode(status)
        if codes[rank]:
            for other in running:
                os.kill(other, signal.SIGKILL)
    assert run.end == signal.SIGKILL or not any(codes), f"{run.folder.name}: ranks ended with {codes}"
    return codes


def _fork(train: Callable[[Run], Weights], run: Run, port: str) -> int:
    if child := os.fork():
        return child
    code = 1
    try:
        if run.ranks > 1:
            os.environ |= {"RANK": str(run.rank), "LOCAL_RANK": str(run.rank), "WORLD_SIZE": str(run.ranks)}
            os.environ |= {"LOCAL_WORLD_SIZE": str(run.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}
        os.dup2(2, 1)  # the results alone go to standard output
        warnings.simplefilter("error", deeppart.DeeppartWarning)
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        weights = train(run)
        if run.rank == 0:
            torch.save(weights, run.folder / "weights")
        deeppart.close()
        code = 0
    except BaseException:  # the child ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _compared(folder: Path, whole: Path) -> dict[str, Any]:
    """Whether weights and log are those of the training that was never ended; what was done twice must be the same."""
    one, other = torch.load(folder / "weights"), torch.load(whole / "weights")
    lines, expected = ((each / "log").read_text().splitlines() for each in (folder, whole))
    return {
        "weights": one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one),
        "log": list(dict.fromkeys(lines)) == expected,
        "lines_twice": len(lines) - len(expected),
        "lines": len(expected),
    }


def check(
    found: dict[str, Any], *, sigterm: bool = True, sizes: Sequence[int] = (1, 2), variants: Sequence[str] = ("",)
) -> None:
    """Every training that was ended came to the same bits, and went on in its middle; after SIGTERM, where it ended."""
    ends = ("SIGKILL", "SIGTERM") if sigterm else ("SIGKILL",)
    for name in (f"{end}-{ranks}{variant}" for end in ends for ranks in sizes for variant in variants):
        came = found[name]
        assert came["weights"] and came["log"], (name, came)
        assert 0 <= came["lines_twice"] < came["lines"] / 2, (name, came)
        if name.startswith("SIGTERM"):
            assert came["lines_twice"] == 0 and not any(came["ended"]), (name, came)
        else:
            assert came["ended"][-1] == -signal.SIGKILL, (name, came)
