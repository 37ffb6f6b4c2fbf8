"""The simulator's ``torch.save`` beside a real one.

    python benchmarks/torch_save_model.py [--passes 3] [--processor-time]

Each pass measures one stream of ``torch.save`` as ``deeppart-sim calibrate`` does, and predicts from it the strategy
"rank0" for states of other sizes, on one rank, into memory (tmpfs). ``--processor-time`` is for machines on which other
programs run: one thread works, and waits for nothing. Exit code: 0.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest import mock

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.machine.record import Machine, Serialize
from deeppart_simulator.measure.job.pieces import measure_pieces
from deeppart_simulator.timing.published import torch_save_s
from deeppart_simulator.workload.states import read_state

from benchmarks.machine import describe_machine
from deeppart.comm import SingleComm

#: (tensors, bytes of each): large ones, many, very many, and as BERT-large has them.
CASES = ((64, 4 << 20), (2_000, 64 << 10), (16_384, 4 << 10), (391, 3_400_000))
ROUNDS = 5


def measured_s(tensors: int, nbytes: int, file: Path) -> float:
    """Median seconds of saving tensors of equal length again and again."""
    state = {f"tensor{number}": torch.randn(nbytes // 4) for number in range(tensors)}
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        torch.save(state, file)
        found.append(time.perf_counter() - began)
    return median(found)


def this_machine(scratch: Path) -> Machine:
    """A machine whose stream of ``torch.save`` is this one's, and whose storage is memory."""
    serialize = Serialize(**measure_pieces(SingleComm(), (), scratch)["serialize"])
    preset = read_machine("p4d")
    return replace(preset, serialize=serialize, local=replace(preset.local, write=1e12, file=0.0))


def compare(passes: int, scratch: Path) -> None:
    """Print each state's prediction and measurement, medians of all passes."""
    found: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in CASES}
    for _ in range(passes):
        machine = this_machine(scratch)
        for tensors, nbytes in CASES:
            state = read_state(f"tensors-{tensors}x{nbytes}")
            predicted = torch_save_s(machine, state, 1, 1, persistent=False)
            found[tensors, nbytes].append((predicted, measured_s(tensors, nbytes, scratch / "file")))
    about = describe_machine({"memory": str(scratch)})
    print(f"{about['cpu']}, torch {torch.__version__}")
    for (tensors, nbytes), pairs in found.items():
        predicted, real = (median(values) for values in zip(*pairs, strict=True))
        least, most = (pick(real for _, real in pairs) for pick in (min, max))
        text = f"{tensors:6,} x {nbytes:9,} bytes: predicted {predicted:.3f} s, measured {real:.3f} s"
        print(f"{text} ({least:.3f}-{most:.3f}), {predicted / real - 1:+.0%}")


def main() -> None:
    """Read the options and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="deeppart-save-", dir=memory if memory.is_dir() else None))
    clock = mock.patch("time.perf_counter", time.process_time) if options.processor_time else contextlib.nullcontext()
    try:
        with clock:
            compare(options.passes, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
