"""Sharded states on several ranks under torchrun: saved, and restored on as many and on one fewer, beside DCP.

    python benchmarks/fsdp.py [--ranks 4] [--scale 0.25] [--repeat 5] [--only NAME,NAME] [--json FILE]

BERT-large by shapes with Adam, 4.02 GB in all, as DTensors over a gloo mesh, sharded by rows as FSDP2 does. In each of
five rounds, after one that does not count, everyone takes turns in drawn order: three saves, of which the last counts,
each of a state of which every element has changed; then a restore on all ranks, and one on one fewer, by a group of
these, the page cache warm. Every byte that is restored is compared. Times are those of the slowest rank:

- *blocked*: until the call has returned; *may change*: until training may change the state (with `capture="lazy"` an
  optimizer steps at once, and what it waits is added; with DCP's async staging, until that is complete);
- *safe*: until all files are synced to the disk, DCP's by `FileSystemWriter(sync_files=True)`;
- *safe / that*: beside what the disk takes for as many bytes in a file of each rank, `O_DIRECT`, synced;
- *restore*: deeppart's with the start of its session, which a restart pays for, too.

*memory* is what a rank needs beyond its part of the state, at most: resident memory at its peak (`VmHWM`, reset before)
less what was resident before; from before the contestant's first save to its last, so that what it keeps is counted.
Of DCP's process, all that it does not share with its rank is added.

deeppart has a persistent directory alone, on the same disk, uncompressed. DCP makes its plans once
(`DefaultSavePlanner(enable_plan_caching=True)`). Of `dcp.async_save` there are two rows, both with a `DefaultStager`
that is kept: *staging*, a thread that writes, and `use_async_staging`, with which the call returns first; *process*, a
process of DCP's own that writes (`AsyncCheckpointerType.PROCESS`), and `use_shared_memory`, without which the staged
state would be copied once more on its way there. `use_pinned_memory` does nothing without a GPU, and
`use_non_blocking_copy` asks for one. `--only` has the other ways to try, `... plans` without plans that are kept.

Exit code: 0 measured, 1 malfunction, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.checkout import MalfunctionError
from benchmarks.commands import parser_for, run_command
from benchmarks.launching import CannotRunError, environment_of_ranks, run_ranks, tunables_of
from benchmarks.memory import available_bytes
from benchmarks.settings import STATES, Settings
from benchmarks.workload import BERT_LAYERS, state_bytes

CONTESTANTS = ("deeppart", "deeppart lazy", "dcp.save", "dcp.async_save staging", "dcp.async_save process")
_OURS = ("deeppart", "deeppart lazy")
_PROCESS_BYTES = 700 << 20
#: How often the state is there: live, live on fewer ranks, and staged; on disk the old one and the new one.
_TIMES_IN_MEMORY, _TIMES_ON_DISK = 3.2, 2.5


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What the ranks measured, and the ratios to DCP.

    Raises:
        CannotRunError: too little memory or room, or no such contestant. MalfunctionError: the ranks failed.
    """
    names = tuple(options.only.split(","))
    _check(options, names)
    gigabytes = state_bytes(options.scale) / 1e9
    timeout = 120 + (options.repeat + 1) * len(names) * (20 + 40 * gigabytes)
    prefix = "deeppart-fsdp-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=options.disk) as disk,
        tempfile.TemporaryDirectory(prefix=prefix) as work,
    ):
        settings = Settings(options.ranks, STATES[0], options.scale, BERT_LAYERS, options.repeat, disk, "", names)
        settings_path, result_path = Path(work) / "settings.json", Path(work) / "result.json"
        settings.save(settings_path)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
        torchrun += ["--log-dir", work]  # or a temporary folder would be left
        module = ["-m", "benchmarks.fsdp_rank", str(settings_path), str(result_path)]
        environment = environment_of_ranks(timeout, tunables_of(options))
        if not run_ranks([sys.executable, *torchrun, *module], work, timeout, environment):
            raise MalfunctionError
        found: dict[str, Any] = json.loads(result_path.read_text(encoding="utf-8"))
    return found | {"ranks": options.ranks, "scale": options.scale, "ratios": ratios(found["rounds"])}


def _check(options: argparse.Namespace, names: tuple[str, ...]) -> None:
    """Refuse what would swap or fill a disk rather than measure."""
    from benchmarks.fsdp_contestants import CONTESTANTS as KNOWN

    if unknown := sorted(set(names) - set(KNOWN)):
        raise CannotRunError(f"there is no {unknown[0]!r}; there are {', '.join(KNOWN)}")
    if options.ranks < 2 or options.repeat < 1 or options.scale <= 0:
        raise CannotRunError("impossible --ranks, --repeat or --scale")
    state, available = state_bytes(options.scale), available_bytes()
    fixed = options.ranks * _PROCESS_BYTES * (2 if any("process" in name for name in names) else 1)
    if _TIMES_IN_MEMORY * state + fixed > available:
        fits = max(0.0, 0.95 * options.scale * (available - fixed) / (_TIMES_IN_MEMORY * state))
        raise CannotRunError(
            f"{(_TIMES_IN_MEMORY * state + fixed) / 1e9:.1f} GB of memory needed, {available / 1e9:.1f} GB available: "
            f"end other programs, or pass --scale {fits:.2f}"
        )
    options.disk.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(options.disk).free
    if _TIMES_ON_DISK * state > free:
        raise CannotRunError(
            f"{_TIMES_ON_DISK * state / 1e9:.1f} GB needed in {options.disk}, {free / 1e9:.1f} GB free"
        )


def ratios(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """deeppart's -> DCP's -> metric -> deeppart / DCP, round by round."""
    names = list(rounds[0])
    return {
        one: {
            other: {
                metric: [turns[one][metric] / turns[other][metric] for turns in rounds]
                for metric in rounds[0][one]
                if all(turns[other][metric] > 0 for turns in rounds)
            }
            for other in names
            if other not in _OURS
        }
        for one in names
        if one in _OURS
    }


def show(found: dict[str, Any], console: Console) -> None:
    """What was measured, and below it the ratios: seconds first, then memory."""
    ranks, rounds = found["ranks"], found["rounds"]
    seconds = {"blocked_s": "blocked", "free_s": "may change", "safe_s": "safe"}
    seconds |= {f"restore_{ranks}_s": f"restore on {ranks}", f"restore_{ranks - 1}_s": f"on {ranks - 1}"}
    memory = {"save_memory_bytes": "save", f"restore_{ranks}_memory_bytes": f"restore on {ranks}"}
    memory |= {f"restore_{ranks - 1}_memory_bytes": f"on {ranks - 1}"}
    size = f"{found['state_bytes'] / 1e9:.2f} GB sharded over {ranks} ranks"
    for what, columns in (("seconds", seconds), ("MB of memory per rank, beyond the state", memory)):
        table = _table(f"{size}: {what}", columns)
        for name in sorted(rounds[0]):
            values = {metric: [turns[name][metric] for turns in rounds] for metric in columns}
            table.add_row(name, *(_cell(metric, each) for metric, each in values.items()))
        for one, others in found["ratios"].items():
            table.add_section()
            for other, metrics in others.items():
                table.add_row(f"{one} / {other}", *(_ratio(metrics.get(metric)) for metric in columns))
        console.print(table)
    bare_s = found["bare_write_s"]
    console.print(f"The same bytes written by {ranks} ranks around the page cache: {_cell('s', bare_s)} s")
    for name in _OURS:
        if name in rounds[0]:
            safe = [turns[name]["safe_s"] / bare for turns, bare in zip(rounds, bare_s, strict=True)]
            console.print(f"{name}, safe / that: {_ratio(safe)}")
    console.print(f"{found['restores_compared']} restores, every byte of each compared: all exact.")


def _table(title: str, columns: dict[str, str]) -> Table:
    table = Table(title=f"{title}; median (least-most), ratios round by round", title_justify="left")
    table.add_column("", no_wrap=True)
    for column in columns.values():
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _cell(metric: str, values: list[float]) -> str:
    if metric.endswith("_bytes"):
        return f"{median(values) / 1e6:.0f} ({min(values) / 1e6:.0f}-{max(values) / 1e6:.0f})"
    digits = 3 if median(values) < 1 else 2
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def _ratio(values: list[float] | None) -> str:
    return "" if not values else f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> int:
    """Measure; returns the exit code."""
    parser = parser_for(__doc__, local=False)
    parser.add_argument("--ranks", type=int, default=4, help="ranks that save (default 4)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the state's 4.02 GB (default 1)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds that count (default 5)")
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="comma separated (default: %(default)s)")
    options = parser.parse_args()
    return run_command(options, lambda: measure(options), show)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a job's time limit: no ranks are left
    sys.exit(main())
