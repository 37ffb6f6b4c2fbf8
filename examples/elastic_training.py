"""A small model of the characters in Python's standard library, trained on a number of ranks that may change.

deeppart run --ranks 4 --size-file SIZE -- python examples/elastic_training.py OUT
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

import deeppart
from deeppart.elastic import ElasticDataLoader, ElasticDataParallel, leave, remaining_epochs_until, should_stop

#: Of which the text is, how many characters a sample sees, and how many different ones there are.
SOURCES = ("abc.py", "ast.py", "bisect.py", "calendar.py", "copy.py", "csv.py")
WINDOW, CHARACTERS = 12, 128


def read_text(samples: int) -> TensorDataset:
    """Windows of characters, the ones after them, and their numbers."""
    library = Path(sysconfig.get_paths()["stdlib"])
    data = b"".join((library / name).read_bytes() for name in SOURCES)
    characters = torch.frombuffer(bytearray(data), dtype=torch.uint8).long().clamp(max=CHARACTERS - 1)
    starts = torch.arange(samples) * ((len(characters) - WINDOW - 1) // samples)
    windows = torch.stack([characters[start : start + WINDOW] for start in starts.tolist()])
    return TensorDataset(windows, characters[starts + WINDOW], torch.arange(samples))


def make_model() -> torch.nn.Module:
    """In double precision: only then are losses the same on any number of ranks, to many digits."""
    torch.manual_seed(0)
    hidden = WINDOW * 8
    layers = [torch.nn.Embedding(CHARACTERS, 8), torch.nn.Flatten(), torch.nn.Linear(hidden, 64), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, CHARACTERS)).double()


class Notes:
    """Lines of this rank: what it was at when, for the picture and the checks."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"notes-{dist.get_rank()}.jsonl"
        # Each start of a job has another port.
        self._common = {"run": os.environ.get("MASTER_PORT", ""), "ranks": dist.get_world_size()}

    def add(self, **values: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **self._common, **values}) + "\n")


def started() -> float:
    """When this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def train(arguments: argparse.Namespace, notes: Notes) -> None:
    """To the end, or until told."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = ElasticDataLoader(read_text(arguments.samples), arguments.batch)
    parallel = ElasticDataParallel(model, optimizer)
    notes.add(mark="built")  # optimizers import torch's compiler, which takes seconds
    checkpoints = str(arguments.out / "ckpt")
    with deeppart.Checkpointer(persistent_dir=checkpoints, keep={"persistent": 2}) as checkpointer:
        state = parallel.state()
        step = checkpointer.restore(state) or 0
        notes.add(mark="restored", step=step)
        for epoch in remaining_epochs_until(arguments.epochs):
            for windows, following, numbers in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(parallel(windows), following)
                loss.backward()
                optimizer.step()
                step += 1
                mean = loss.detach() * loader.weight / dist.get_world_size()
                dist.all_reduce(mean)
                squared = parallel.noise.squared_gradient()
                noise = parallel.noise.variance() / squared if squared > 0 else None  # not known
                measured = {"noise": noise, "gain": parallel.gain, "scale": parallel.scale, "batch": loader.step_size}
                seen = numbers.tolist()[: loader.counted]
                notes.add(step=step, epoch=epoch, loss=mean.item(), samples=seen, **measured)
                time.sleep(arguments.pace)
                if should_stop():
                    notes.add(mark="agreed", step=step)
                    try:
                        leave(state, step, checkpointer)
                    finally:
                        notes.add(mark="left", step=step)
                if step % arguments.every == 0:
                    checkpointer.checkpoint(state, step=step)


def main() -> None:
    imported = time.time()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory of checkpoints and notes")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=32, help="samples of a step, all ranks together")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep in each step, to watch it")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    notes = Notes(arguments.out)
    notes.add(mark="met", started=started(), imported=imported)
    train(arguments, notes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
