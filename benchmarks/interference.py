"""What checkpoints cost training: steps with them beside steps without, for deeppart and its peers.

    python benchmarks/interference.py [--quick] [--json FILE]

One process trains a transformer of BERT-large's size (335 M parameters, fused AdamW, 4.02 GB of state) on one thread;
the other processors are idle. A *period* is as many steps as take about 20 s. Every contestant in turn, in rounds: a
first checkpoint that does not count; a period with a checkpoint before its first step; for deeppart also a period in
which a checkpoint begins as soon as the one before is complete. Before and after each of them, a period without
checkpoints. Files go to a disk, and are made durable only by those that do so by themselves. *The limit* is one thread
in C code that copies the state into warm memory and writes it with O_DIRECT: no digest, no other level, no guarantee
that what it copies is of one step.

*cost* is the time of the period with checkpoints over the mean of the two without, less 1; *of it blocked* what the
calls took, and what ``optimizer.step()`` was held back; *slower* the processor time that training itself took more: it
shares memory and caches. The rest is waiting: for the interpreter's lock, or for a processor.

Exit code: 0 measured, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import deeppart
from benchmarks.bare import copy_each, cut, warm_memory, writer
from benchmarks.machine import describe_machine
from benchmarks.memory import available_bytes
from deeppart.save import NICENESS

PERIOD_S = 20.0
LIMIT, CONTINUOUS = "limit: copy and write", ", without a pause"
_TIMEOUT_S = 300.0
ROOT = Path(__file__).resolve().parents[1]


class Training:
    """A transformer encoder that is trained on random tokens."""

    def __init__(self, layers: int, width: int, vocabulary: int, tokens: int, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self._embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a fast path for inference
            self._encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.model = nn.ModuleList([self._embedding, self._encoder]).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=True)
        self._text = torch.randint(vocabulary, (1, tokens), device=device)

    @property
    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def step(self) -> None:
        """One step."""
        self.optimizer.zero_grad(set_to_none=False)
        self._encoder(self._embedding(self._text)).square().mean().backward()
        self.optimizer.step()


@dataclass(frozen=True)
class Period:
    """Seconds of a period: all of it, those in which training's thread ran, those in which it was blocked by a call;
    checkpoints begun in it.
    """

    seconds: float
    running_s: float
    blocked_s: float = 0.0
    checkpoints: int = 0


@dataclass(frozen=True)
class Turn:
    """One contestant, once."""

    who: str
    before: Period
    with_checkpoints: Period
    after: Period

    @property
    def _without_s(self) -> float:
        return (self.before.seconds + self.after.seconds) / 2

    @property
    def cost(self) -> float:
        """Of checkpoints, as a fraction of training time."""
        return self.with_checkpoints.seconds / self._without_s - 1

    @property
    def slower(self) -> float:
        """The part of it in which training's thread ran, longer than without: memory and caches are shared."""
        return (self.with_checkpoints.running_s - (self.before.running_s + self.after.running_s) / 2) / self._without_s

    @property
    def blocked(self) -> float:
        """The part of it in which training was blocked."""
        return self.with_checkpoints.blocked_s / self._without_s


class Contestant:
    """Saves; :meth:`save` returns when training may go on."""

    def __init__(self, training: Training, directory: Path) -> None:
        self._training, self._directory = training, directory
        self._saves = 0

    def save(self) -> None:
        """Begin a checkpoint."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for the last one."""

    def busy(self) -> bool:
        """Whether the last one is still under way."""
        return False

    def held_s(self) -> float:
        """Seconds that steps were held back for the last one."""
        return 0.0

    def close(self) -> None:
        """Give everything back."""

    def _path(self) -> Path:
        """A new place; what was at the one before the last is removed."""
        self._saves += 1
        old = self._directory / str(self._saves - 2)
        if old.is_dir():
            shutil.rmtree(old)
        old.unlink(missing_ok=True) if old.exists() else None
        return self._directory / str(self._saves)


class Deeppart(Contestant):
    """deeppart, straight to disk."""

    def __init__(self, training: Training, directory: Path, capture: str, compression: str = "none") -> None:
        super().__init__(training, directory)
        config = deeppart.Config(
            persistent_dir=str(directory), capture=capture, compression=compression, keep={"persistent": 1},
            timeout=_TIMEOUT_S,
        )  # fmt: skip
        self._checkpointer = deeppart.Checkpointer(config)
        self._pending: deeppart.Pending | None = None

    def save(self) -> None:
        self._saves += 1
        # The optimizer itself: what it owns is known from the first checkpoint on.
        state = {"model": self._training.model.state_dict(), "optimizer": self._training.optimizer}
        self._pending = self._checkpointer.checkpoint(state, self._saves)

    def finish(self) -> None:
        if self._pending is not None:
            self._pending.wait("persistent", _TIMEOUT_S)

    def busy(self) -> bool:
        return self._pending is not None and not self._pending.finished

    def held_s(self) -> float:
        return 0.0 if self._pending is None else self._pending.report.held_s

    def close(self) -> None:
        self._checkpointer.close()


class BareWriter(Contestant):
    """One background thread that copies and writes, and does nothing else."""

    def __init__(self, training: Training, directory: Path) -> None:
        super().__init__(training, directory)
        self._leaves = [leaf.detach().reshape(-1) for leaf in _tensors(training.state)]
        nbytes = sum(leaf.nbytes for leaf in self._leaves)
        self._memory = warm_memory(nbytes)
        self._targets = cut(torch.frombuffer(self._memory, dtype=torch.uint8), self._leaves)
        self._write = writer(directory / "file", self._memory, nbytes, direct=True)
        self._thread = ThreadPoolExecutor(1, initializer=_yield_to_training)
        self._future: Future[None] | None = None

    def save(self) -> None:
        self._future = self._thread.submit(self._work)

    def _work(self) -> None:
        copy_each(self._targets, self._leaves)
        self._write()

    def finish(self) -> None:
        if self._future is not None:
            self._future.result(_TIMEOUT_S)

    def busy(self) -> bool:
        return self._future is not None and not self._future.done()

    def close(self) -> None:
        self._thread.shutdown()


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [tensor for item in inner for tensor in _tensors(item)]


def _yield_to_training() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class TorchSave(Contestant):
    """torch.save, while training waits."""

    def save(self) -> None:
        torch.save(self._training.state, self._path())


class DcpAsync(Contestant):
    """dcp.async_save."""

    def __init__(self, training: Training, directory: Path) -> None:
        super().__init__(training, directory)
        self._future: Any = None
        if not dist.is_initialized():
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        self._future = dcp.async_save(self._training.state, checkpoint_id=self._path())

    def finish(self) -> None:
        if self._future is not None:
            self._future.result()


class TorchSnapshotAsync(Contestant):
    """torchsnapshot's async_take."""

    def __init__(self, training: Training, directory: Path) -> None:
        super().__init__(training, directory)
        self._pending: Any = None

    def save(self) -> None:
        from torchsnapshot import Snapshot, StateDict

        self._pending = Snapshot.async_take(str(self._path()), {"state": StateDict(**self._training.state)})

    def finish(self) -> None:
        if self._pending is not None:
            self._pending.wait()


MAKERS: dict[str, Callable[[Training, Path], Contestant]] = {
    LIMIT: BareWriter,
    "deeppart eager": lambda training, directory: Deeppart(training, directory, "eager"),
    "deeppart lazy": lambda training, directory: Deeppart(training, directory, "lazy"),
    "deeppart lazy + tensor codec": lambda training, directory: Deeppart(training, directory, "lazy", "tensor"),
    "dcp.async_save": DcpAsync,
    "torchsnapshot async_take": TorchSnapshotAsync,
    "torch.save": TorchSave,
}


def period(training: Training, steps: int, contestant: Contestant | None = None, *, continuous: bool = False) -> Period:
    """Train for some steps; with a contestant, a checkpoint comes before the first, or whenever none is under way."""
    blocked_s, checkpoints = 0.0, 0
    began, running = time.perf_counter(), time.thread_time()
    for step in range(steps):
        if contestant is not None and (step == 0 or (continuous and not contestant.busy())):
            blocked_s += contestant.held_s() if checkpoints else 0.0
            called = time.perf_counter()
            contestant.save()
            blocked_s += time.perf_counter() - called
            checkpoints += 1
        training.step()
    seconds, running_s = time.perf_counter() - began, time.thread_time() - running
    if contestant is not None:
        contestant.finish()
        blocked_s += contestant.held_s()
    return Period(seconds, running_s, blocked_s, checkpoints)


@contextlib.contextmanager
def opened(name: str, training: Training, disk: Path) -> Iterator[Contestant]:
    """A contestant with a first checkpoint behind it, and everything removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="deeppart-interference-", dir=disk))
    try:
        contestant = MAKERS[name](training, directory)
        contestant.save()
        training.step()
        contestant.finish()
        os.sync()
        yield contestant
        contestant.close()
    finally:
        shutil.rmtree(directory)
        os.sync()


def measure(training: Training, names: list[str], steps: int, rounds: int, disk: Path) -> list[Turn]:
    """Every contestant in turn."""
    turns = []
    for number in range(rounds):
        for name in names:
            with opened(name, training, disk) as contestant:
                before = period(training, steps)
                for kind in ("", CONTINUOUS) if name.startswith(("deeppart", LIMIT)) else ("",):
                    measured = period(training, steps, contestant, continuous=bool(kind))
                    after = period(training, steps)
                    turns.append(Turn(name + kind, before, measured, after))
                    before = after
                    print(
                        f"round {number + 1} of {rounds}: {name}{kind}: {turns[-1].cost:+.2%}, "
                        f"slower {turns[-1].slower:+.2%}",
                        file=sys.stderr,
                        flush=True,
                    )
    return turns


def show(turns: list[Turn], steps: int, console: Console) -> None:
    """One table."""
    table = Table(title=f"cost of checkpoints to training; periods of {steps} steps", title_justify="left")
    for column in ("who", "cost", "min", "max", "of it blocked", "slower", "checkpoints", "target"):
        table.add_column(column, justify="left" if column == "who" else "right")
    for name in dict.fromkeys(turn.who for turn in turns):
        mine = [turn for turn in turns if turn.who == name]
        costs = [turn.cost for turn in mine]
        target = ""
        if name.startswith("deeppart lazy"):
            target = "2 %" if name.endswith(CONTINUOUS) else "1 %"
        table.add_row(
            name,
            *(f"{value:+.2%}" for value in (median(costs), min(costs), max(costs))),
            f"{median(turn.blocked for turn in mine):.2%}",
            f"{median(turn.slower for turn in mine):+.2%}",
            f"{median(turn.with_checkpoints.checkpoints for turn in mine):g}",
            target,
        )
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, short periods, one round")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument("--tokens", type=int, default=256, help="per step (default 256)")
    parser.add_argument("--only", default=",".join(MAKERS), help=", ".join(MAKERS))
    parser.add_argument("--disk", type=Path, default=ROOT / "build", help="where files go (default build/)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name in MAKERS]
    with contextlib.suppress(ImportError):
        import torchsnapshot  # noqa: F401
    if "torchsnapshot" not in sys.modules:
        names = [name for name in names if not name.startswith("torchsnapshot")]
    needed = 1e9 if options.quick else 16e9
    if available_bytes() < needed:
        print(f"interference: {needed / 1e9:.0f} GB of memory needed", file=sys.stderr)
        return 2
    options.disk.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    training = Training(2, 256, 8000, options.tokens) if options.quick else Training(24, 1024, 30522, options.tokens)
    for _ in range(2):
        training.step()
    one = period(training, 3)
    steps = max(4, round((2.0 if options.quick else PERIOD_S) / (one.seconds / 3)))
    turns = measure(training, names, steps, options.rounds or (1 if options.quick else 3), options.disk)
    console = Console(width=None if sys.stdout.isatty() else 120)
    show(turns, steps, console)
    if options.json is not None:
        document = {"machine": describe_machine({"disk": str(options.disk)}), "steps": steps}
        text = json.dumps(document | {"turns": [asdict(turn) for turn in turns]}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
