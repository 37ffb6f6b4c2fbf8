"""How fast checkpoints go to other formats and come from them, beside the libraries whose formats they are.

    python benchmarks/formats.py [--gigabytes G] [--rounds N] [--disk DIR] [--json FILE]

One process; random float32 values in 64 tensors; what is read has been read before, so that it is in the page cache,
where nothing is still to be written. Exports and imports read and write files and check every digest; the peers write a
state that is in memory, or read into memory. `copy` is a copy of the part with fsync, by 8 MiB, around the page cache
unless DIR is on /dev/shm. Shown are medians of seconds, GB/s, and the memory that was taken beside what was there
before. Exit code: 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table

import deeppart
from benchmarks.machine import describe_machine
from deeppart.extension.export import export
from deeppart.interop.formats import writer_for
from deeppart.interop.importing import import_checkpoint

_TENSORS = 64
_OUT = {"safetensors": "x.safetensors", "torch": "x.pt", "dcp": "x.dcp", "hdf5": "x.h5"}
_Told = Callable[[int, int], None]


def used_bytes() -> int:
    """Memory of this process that is its own."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def tasks(directory: Path, state: dict[str, torch.Tensor]) -> dict[str, Callable[[_Told], object]]:
    """What is measured, by name; each makes something in the directory, and reads what an earlier one has made."""
    step = directory / "ckpt"

    def exports(form: str) -> Callable[[_Told], object]:
        out = directory / _OUT[form]
        writer = writer_for(form, out)
        return lambda told: export(step, out, writer, overwrite=True, progress=told)

    def imports(form: str) -> Callable[[_Told], object]:
        return lambda told: import_checkpoint(directory / _OUT[form], directory / "imported", progress=told)

    found: dict[str, Callable[[_Told], object]] = {
        "copy": lambda told: copy(next(step.rglob("part-*")), directory / "copy")
    }
    found |= {f"export {form}": exports(form) for form in _OUT}
    found |= {f"import {form}": imports(form) for form in _OUT}
    found["torch.save"] = lambda told: torch.save(state, directory / "theirs.pt")
    found["torch.load"] = lambda told: torch.load(directory / "theirs.pt", weights_only=True)
    found["dcp.save"] = lambda told: dcp.save(state, checkpoint_id=directory / "theirs")
    found["dcp.load"] = lambda told: dcp.load(
        {key: torch.empty_like(x) for key, x in state.items()}, checkpoint_id=directory / "theirs"
    )
    with contextlib.suppress(ImportError):
        from safetensors.torch import load_file, save_file

        found["safetensors save_file"] = lambda told: save_file(state, directory / "theirs.safetensors")
        found["safetensors load_file"] = lambda told: [
            x.clone() for x in load_file(directory / "theirs.safetensors").values()
        ]
    return found


def copy(source: Path, target: Path) -> None:
    """A copy, durable when this returns."""
    flags = ["oflag=direct"] if not str(target).startswith("/dev/shm") else []
    command = ["dd", f"if={source}", f"of={target}", "bs=8M", "conv=fsync", "status=none", *flags]
    subprocess.run(command, check=True)


def study(state_bytes: int, rounds: int, disk: Path) -> dict[str, dict[str, list[float]]]:
    """Seconds and bytes of memory of each round, by name, after one that does not count."""
    directory = Path(tempfile.mkdtemp(prefix="deeppart-formats-", dir=disk))
    state = {f"layer{n}": torch.randn(state_bytes // 4 // _TENSORS) for n in range(_TENSORS)}
    found: dict[str, dict[str, list[float]]] = {}
    try:
        config = deeppart.Config(persistent_dir=str(directory / "ckpt"), compression="none")
        with deeppart.Checkpointer(config) as checkpointer:
            checkpointer.checkpoint(state, 1).wait()
        for number in range(rounds + 1):
            for name, task in tasks(directory, state).items():
                if number and "gzip" in name:
                    continue  # many times slower than all others together: the first round counts
                shutil.rmtree(directory / "imported", ignore_errors=True)
                read_once(directory / _OUT.get(name.removeprefix("import "), "ckpt"))
                seconds, most = measured(task)
                if number or "gzip" in name:
                    entry = found.setdefault(name, {"seconds": [], "memory": []})
                    entry["seconds"].append(seconds)
                    entry["memory"].append(most)
        found["file of hdf5, gzip"] = {"bytes": [(directory / _OUT["hdf5, gzip"]).stat().st_size]}
    finally:
        shutil.rmtree(directory)
    return found


def read_once(path: Path) -> None:
    """Have a file, or those of a folder, in the page cache: of a virtual machine, not all that was written is."""
    for each in path.rglob("*") if path.is_dir() else (path,):
        if each.is_file():
            with each.open("rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass


def measured(task: Callable[[_Told], object]) -> tuple[float, float]:
    """Seconds, and the memory that was taken, as far as the task tells of its progress; else at its end."""
    most = [0]

    def told(done: int, total: int) -> None:
        most[0] = max(most[0], used_bytes())

    os.sync()  # else who flushes its own file waits for those that the task before has left to the system
    before, began = used_bytes(), time.monotonic()
    kept = task(told)
    seconds = time.monotonic() - began
    told(0, 0)
    del kept
    return seconds, max(0, most[0] - before)


def main() -> int:
    """Measure, print a table, and write the JSON file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the state")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="where files are written")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    os.environ.setdefault("DEEPPART_TIMEOUT", "600")
    state_bytes = int(options.gigabytes * 1e9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = study(state_bytes, options.rounds, options.disk)
    table = Table("", "seconds", "GB/s", "memory, MB")
    for name, figures in found.items():
        if "seconds" in figures:
            seconds = median(figures["seconds"])
            table.add_row(
                name, f"{seconds:.2f}", f"{state_bytes / 1e9 / seconds:.2f}", f"{median(figures['memory']) / 1e6:.0f}"
            )
    console = Console()
    console.print(table)
    console.print(f"gzip: {found['file of hdf5, gzip']['bytes'][0] / state_bytes:.3f} of the bytes, of random numbers")
    if options.json is not None:
        document: dict[str, Any] = {
            "machine": describe_machine({"disk": str(options.disk)}),
            "bytes": state_bytes,
            "found": found,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
