"""What is written when only part of the state changes: LoRA fine-tuning, and frozen layers.

    python benchmarks/incremental.py [--quick] [--json FILE]

One process trains what is left to train of BERT-large by shapes with torch's own Adam, on made-up gradients, and saves
the whole state after every step: the frozen parameters, those in training, and their optimizer. Counted are the bytes
of all leaves that differ from the step before, and the bytes that deeppart writes at each level, tables included, with
``incremental`` on and off, taking turns. Restored bytes are compared. Exit code: 0, or 1 if a byte is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import xxhash
from rich.console import Console
from rich.table import Table

import deeppart
from benchmarks.machine import describe_machine
from benchmarks.workload import BERT_LAYERS, scaled_shapes

LORA, HALF = "LoRA, r = 8", "lower half frozen"
#: Ranks of the low-rank matrices beside the query and value projections (Hu et al., 2021, section 4.2).
_LORA_RANK = 8
_LEVELS = ("local", "persistent")
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Row:
    """One way of fine-tuning, at one level; medians over the steps but the first.

    Attributes:
        case, level: which.
        state_bytes, changed_bytes: of all leaves, and of those that differ from the step before.
        written_bytes, whole_bytes: with ``incremental`` on and off, on one rank.
        seconds, whole_seconds: until the level is complete.
    """

    case: str
    level: str
    state_bytes: int
    changed_bytes: float
    written_bytes: float
    whole_bytes: float
    seconds: float
    whole_seconds: float

    @property
    def ratio(self) -> float:
        """Bytes written to bytes changed."""
        return self.written_bytes / self.changed_bytes


class FineTuning:
    """A model by shapes, of which some is trained.

    Args:
        case: LORA or HALF.
        layers: how many of BERT-large's.
    """

    def __init__(self, case: str, layers: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parameters: dict[str, torch.Tensor] = {}
        trained = []
        for name, shape in scaled_shapes(1.0, layers).items():
            value = 0.02 * torch.randn(shape, generator=generator)
            self.parameters[name] = value
            frozen = case == LORA or not name.startswith(
                tuple(f"encoder.layer.{layer}." for layer in range(layers // 2, layers))
            )
            if not frozen:
                trained.append(value)
            if case == LORA and name.endswith(("query.weight", "value.weight")):
                for which, size in (("lora_A", (_LORA_RANK, shape[1])), ("lora_B", (shape[0], _LORA_RANK))):
                    self.parameters[f"{name}.{which}"] = 0.02 * torch.randn(size, generator=generator)
                    trained.append(self.parameters[f"{name}.{which}"])
        self._generator = generator
        self.optimizer = torch.optim.Adam([value.requires_grad_() for value in trained], lr=1e-4)
        self._trained = trained

    def step(self) -> None:
        """One step of Adam."""
        for value in self._trained:
            value.grad = torch.randn(value.shape, generator=self._generator)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """All of it."""
        return {"model": {name: value.detach() for name, value in self.parameters.items()}, "optimizer": self.optimizer}

    def leaves(self) -> dict[str, torch.Tensor]:
        """The tensors of the state."""
        moments = self.optimizer.state_dict()["state"]
        found = {name: value.detach() for name, value in self.parameters.items()}
        return found | {f"{number}.{name}": value for number, each in moments.items() for name, value in each.items()}


def digests(leaves: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """Of the bytes of each leaf."""
    return {name: xxhash.xxh3_128_digest(value.reshape(-1).numpy().data) for name, value in leaves.items()}


def measure(case: str, quick: bool, disk: Path, tmpfs: Path) -> list[Row]:
    """Train and save, with ``incremental`` on and off, taking turns; restore, and compare.

    Raises:
        ArithmeticError: a restored byte is wrong.
    """
    layers, steps = (2, 2) if quick else (BERT_LAYERS, 5)
    training = FineTuning(case, layers)
    training.step()
    where = {on: (_directory(disk), _directory(tmpfs)) for on in (True, False)}
    changed: list[int] = []
    found: dict[tuple[str, bool], list[tuple[int, float]]] = {(level, on): [] for level in _LEVELS for on in where}
    before = digests(training.leaves())
    try:
        with ExitStack() as stack:
            checkpointers = {on: stack.enter_context(_open(*where[on], on)) for on in where}
            for number in range(steps + 1):
                training.step()
                after, leaves = digests(training.leaves()), training.leaves()
                for on, checkpointer in checkpointers.items():
                    report = _save(training, checkpointer, number)
                    for level in _LEVELS if number else ():
                        found[level, on].append((report.levels[level].nbytes, report.levels[level].seconds or 0.0))
                if number:
                    changed.append(sum(leaves[name].nbytes for name in leaves if after[name] != before[name]))
                before = after
            for on, checkpointer in checkpointers.items():
                for lost in (None, where[on][1]):
                    _compare(training, checkpointer, lost)
    finally:
        for directories in where.values():
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)
    state_bytes = sum(leaf.nbytes for leaf in training.leaves().values())
    return [
        Row(
            case,
            level,
            state_bytes,
            median(changed),
            *(median(nbytes for nbytes, _ in found[level, on]) for on in (True, False)),
            *(median(seconds for _, seconds in found[level, on]) for on in (True, False)),
        )
        for level in _LEVELS
    ]


def _directory(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="deeppart-incremental-", dir=parent))


def _open(disk: Path, tmpfs: Path, on: bool) -> deeppart.Checkpointer:
    config = deeppart.Config(
        persistent_dir=str(disk), local_dir=str(tmpfs), keep={"local": 1, "persistent": 1},
        compression="none", incremental=on, timeout=_TIMEOUT_S,
    )  # fmt: skip
    return deeppart.Checkpointer(config)


def _save(training: FineTuning, checkpointer: deeppart.Checkpointer, number: int) -> deeppart.Report:
    pending = checkpointer.checkpoint(training.state(), number)
    for level in _LEVELS:
        pending.wait(level, _TIMEOUT_S)
    time.sleep(0.1)  # older steps are removed
    return pending.report


def _compare(training: FineTuning, checkpointer: deeppart.Checkpointer, lost: Path | None) -> None:
    """Restore into the live state, overwritten, and compare; without the local level if that is ``lost``."""
    if lost is not None:
        for path in lost.rglob("*.dpp"):
            path.unlink()
    right = digests(training.leaves())
    with torch.no_grad():
        for value in training.leaves().values():
            value.fill_(-7.0)
    checkpointer.restore(training.state())
    wrong = [name for name, digest in digests(training.leaves()).items() if digest != right[name]]
    if wrong:
        raise ArithmeticError(f"wrong bytes were restored in {', '.join(wrong[:5])}")


def run(quick: bool, disk: Path, tmpfs: Path) -> list[Row]:
    """All cases; LoRA alone if it is to be quick."""
    return [row for case in ((LORA,) if quick else (LORA, HALF)) for row in measure(case, quick, disk, tmpfs)]


def show(rows: list[Row], console: Console) -> None:
    """The table."""
    table = Table(title="bytes written where part of the state changes", title_justify="left")
    for column in ("case", "level", "state", "changed", "written", "written / changed", "whole", "seconds", "whole, s"):
        table.add_column(column, justify="left" if column in ("case", "level") else "right")
    for row in rows:
        sizes = (row.state_bytes, row.changed_bytes, row.written_bytes)
        table.add_row(
            row.case,
            row.level,
            *(f"{nbytes / 1e6:.1f} MB" for nbytes in sizes),
            f"{row.ratio:.3f}" + (" <= 1.1" if row.case == LORA else ""),
            f"{row.whole_bytes / 1e6:.1f} MB",
            f"{row.seconds:.3f}",
            f"{row.whole_seconds:.3f}",
        )
    console.print(table)


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two layers, two steps")
    parser.add_argument("--disk", type=Path, default=Path("build"), help="where persistent files go (default build/)")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="where local files go (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    options.disk.mkdir(parents=True, exist_ok=True)
    try:
        rows = run(options.quick, options.disk, options.tmpfs)
    except ArithmeticError as error:
        print(f"incremental: MALFUNCTION: {error}", file=sys.stderr)
        return 1
    show(rows, Console(width=None if sys.stdout.isatty() else 140))
    if options.json is not None:
        document: dict[str, Any] = {
            "machine": describe_machine({"disk": str(options.disk), "tmpfs": str(options.tmpfs)})
        }
        document |= {"rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
