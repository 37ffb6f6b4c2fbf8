"""Saving and restoring, beside torch.save, safetensors, DCP, torchsnapshot, ZipNN and the machine's limits.

    python benchmarks/bench.py [--quick] [--case NAME ...] [--json FILE] [--png FILE]

Replicated states of several sizes on 1, 2 and 4 MPI ranks, up to BERT-large by shapes with its Adam state (4.02 GB in
1,564 float32 leaves), and 100,000 tensors of 4 KiB (benchmarks/cases.py). In each case everyone takes turns, in an
order drawn for each of five rounds, before which one does not count. What other programs and the host of the machine
use meanwhile is recorded, and a run that they disturbed says that it is no evidence. Then, in this process: the codecs
(benchmarks/codecs.py), whether they pay on storage of several speeds (benchmarks/auto.py), what is written where only
part of the state changes (benchmarks/incremental.py), what serialization costs by size and number of tensors
(benchmarks/serialization.py), and what plain Python values do (benchmarks/plain_values.py).
Speeds are shown beside their targets and never fail the run; a restore that does not bring back every byte does.

Nothing is set in the environment of the ranks: these are the figures of a user who sets nothing. With
`--bypass-caches`, the C library bypasses the caches in copies of 1 MiB and more, as docs/quickstart.md advises.

A case needs about five times its state in memory and three times on disk; those that do not fit are left out, which is
said. With `--state`, `--scale`, `--layers` or `--ranks`, one case of that kind is measured and nothing else. Exit code:
0 measured, 1 malfunction, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from benchmarks.cases import CASES, QUICK, Case, with_repetitions
from benchmarks.figures import summarize
from benchmarks.launching import (
    ROOT,
    CannotRunError,
    add_bypass_caches,
    environment_of_ranks,
    find_launcher,
    run_ranks,
    tunables_of,
)
from benchmarks.machine import Load, describe_machine
from benchmarks.memory import available_bytes
from benchmarks.report import show, show_briefly
from benchmarks.settings import CONTESTANTS, STATES, Settings
from benchmarks.workload import BERT_LAYERS, state_bytes, state_leaves

_PROCESS_BYTES = 700 << 20


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    results: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    failed = False
    try:
        _check_options(options)
        alone = _own_case(options)
        cases = with_repetitions((alone,) if alone else _cases(options), options.repeat)
        launcher = find_launcher()
        for case in cases:
            try:
                _check_room(options, case)
            except CannotRunError as problem:
                if len(cases) == 1:
                    raise
                left_out[case.name] = str(problem)
                continue
            result = _measure(options, case, launcher)
            if result is None:
                failed, left_out[case.name] = True, "the ranks failed"
                continue
            results[case.name] = result
            show(result, console)
            if not alone:
                _write(options, _all(results, left_out))  # two hours' figures are not lost with the last case
    except CannotRunError as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted, the ranks are stopped", file=sys.stderr)
        return 130
    if failed and not results:
        return 1
    if alone:
        document = results[alone.name]
    else:
        document = _all(results, left_out) | _studies(options, console)
        show_briefly(results, left_out, console)
    _write(options, document)
    if options.png is not None:
        from benchmarks.plot import draw

        for name, result in results.items():
            draw(result, options.png if alone else options.png.with_stem(f"{options.png.stem}-{name}"))
    return int(failed)


def _all(results: dict[str, dict[str, Any]], left_out: dict[str, str]) -> dict[str, Any]:
    """What was measured of all cases."""
    return {"format": "deeppart-bench-all", "version": 1, "cases": results, "left_out": left_out}


def _write(options: argparse.Namespace, document: dict[str, Any]) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _studies(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """What needs one process: codecs, whether they pay, states that change little, serialization, plain values."""
    from benchmarks import auto, codecs, incremental, plain_values, serialization

    rows = codecs.run(options.quick)
    codecs.show(rows, console)
    choices = auto.run(options.quick, options.disk)
    auto.show(choices, console)
    fine_tuning = incremental.run(options.quick, options.disk, options.tmpfs)
    incremental.show(fine_tuning, console)
    study = serialization.study(options.quick, options.tmpfs)
    serialization.show(study, console)
    if options.png is not None:
        serialization.draw(study, options.png.with_stem(f"{options.png.stem}-serialization"))
    values = plain_values.study(options.quick, options.tmpfs)
    plain_values.show(values, console)
    return {
        "codecs": [asdict(row) for row in rows],
        "auto": [asdict(row) for row in choices],
        "incremental": [asdict(row) for row in fine_tuning],
        "serialization": study,
        "plain_values": values,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small cases, short studies: under two minutes")
    parser.add_argument(
        "--case", action="append", help="only this one; again for more: " + ", ".join(c.name for c in CASES)
    )
    parser.add_argument("--state", choices=STATES, help="one case of this state (default bert-large+adam)")
    parser.add_argument("--ranks", type=int, help="one case on so many MPI ranks (default 2)")
    parser.add_argument("--scale", type=float, help="one case of this share of the state's bytes (default 1)")
    parser.add_argument("--layers", type=int, help="one case with so many of BERT's 24 layers: fewer leaves")
    parser.add_argument("--repeat", type=int, help="rounds that count (default 5, with --quick 1)")
    add_bypass_caches(parser)
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="comma separated: " + ", ".join(CONTESTANTS))
    parser.add_argument("--disk", type=Path, default=ROOT / "build", help="where persistent files go (default build/)")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="where local files go (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the results there (needs matplotlib)")
    parser.add_argument("--timeout", type=float, help="seconds after which the ranks of a case are stopped")
    return parser


def _check_options(options: argparse.Namespace) -> None:
    given = [each for each in (options.ranks, options.layers, options.repeat) if each is not None]
    unknown = set(options.only.split(",")) - set(CONTESTANTS)
    if unknown or min(given, default=1) < 1 or (options.scale is not None and options.scale <= 0):
        raise CannotRunError(f"impossible --scale, --layers, --repeat, --ranks or --only (of {', '.join(CONTESTANTS)})")


def _own_case(options: argparse.Namespace) -> Case | None:
    """The case that the options describe, if they do."""
    given = (options.state, options.ranks, options.scale, options.layers)
    if all(each is None for each in given):
        return None
    state, ranks, scale, layers = given
    return Case(
        "own",
        state or STATES[0],
        1.0 if scale is None else scale,
        2 if ranks is None else ranks,
        5,
        BERT_LAYERS if layers is None else layers,
    )


def _cases(options: argparse.Namespace) -> tuple[Case, ...]:
    if not options.case:
        return QUICK if options.quick else CASES
    known = {case.name: case for case in (*CASES, *QUICK)}
    unknown = sorted(set(options.case) - set(known))
    if unknown:
        raise CannotRunError(f"no case {unknown[0]}; there are {', '.join(known)}")
    return tuple(known[name] for name in options.case)


def _check_room(options: argparse.Namespace, case: Case) -> None:
    """Refuse what would swap or fill a disk rather than measure."""
    state = state_bytes(case.scale, case.layers, case.state)
    # Live on every rank; with a peer, again on every rank (dcp.async_save, torch.load) and once in the page cache;
    # with deeppart, once in staging memory and two checkpoints on tmpfs.
    per_scale, fixed = (case.ranks + max(case.ranks + 1, 3)) * state, case.ranks * _PROCESS_BYTES
    available = available_bytes()
    if per_scale + fixed > available:
        fits = max(0.0, 0.95 * case.scale * (available - fixed) / per_scale)
        raise CannotRunError(
            f"{(per_scale + fixed) / 1e9:.1f} GB of memory needed, {available / 1e9:.1f} GB available: "
            f"end other programs, or pass --scale {fits:.2f}"
        )
    for path, times in ((options.disk, 3), (options.tmpfs, 2)):
        path.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path).free
        if times * state > free:
            needed, found = f"{times * state / 1e9:.1f} GB", f"{free / 1e9:.1f} GB"
            raise CannotRunError(f"{needed} needed in {path}, {found} free: choose another directory")


def _measure(options: argparse.Namespace, case: Case, launcher: list[str]) -> dict[str, Any] | None:
    """Run the ranks in directories of their own, which are removed; None if they failed."""
    gigabytes = state_bytes(case.scale, case.layers, case.state) / 1e9
    leaves = state_leaves(case.scale, case.layers, case.state)
    timeout = options.timeout or 120 + (case.repetitions + 1) * (90 + 300 * gigabytes + leaves / 100)
    with (
        tempfile.TemporaryDirectory(prefix="deeppart-bench-", dir=options.disk) as disk,
        tempfile.TemporaryDirectory(prefix="deeppart-bench-", dir=options.tmpfs) as tmpfs,
        tempfile.TemporaryDirectory(prefix="deeppart-bench-") as work,
    ):
        contestants = tuple(each for each in options.only.split(",") if each not in case.without)
        settings = Settings(case.ranks, case.state, case.scale, case.layers, case.repetitions, disk, tmpfs, contestants)
        tunables = tunables_of(options)
        machine = describe_machine({"disk": disk, "local": tmpfs}) | {"tunables": tunables}
        load = Load()
        settings_path, result_path = Path(work) / "settings.json", Path(work) / "result.json"
        settings.save(settings_path)
        command = [*launcher, "-n", str(case.ranks), sys.executable, "-m", "mpi4py", "-m", "benchmarks.worker"]
        environment = environment_of_ranks(timeout, tunables)
        if not run_ranks([*command, str(settings_path), str(result_path)], work, timeout, environment):
            return None
        machine |= load.as_dict()
        session = json.loads(result_path.read_text(encoding="utf-8"))
        return summarize(session, asdict(settings), machine)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a job's time limit: no data is left behind in memory
    sys.exit(main())
