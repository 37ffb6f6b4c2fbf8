"""``python -m tests.faults.power``: exit code 0 only if every cut left what was promised."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.faults.power.trial import Plan, Result, cut_everywhere, record


def main(arguments: Sequence[str] | None = None) -> int:
    """Record jobs and cut them; returns the exit code."""
    options = _parse(arguments)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="deeppart-power-", dir=memory if memory.is_dir() else None) as name:
        base, well, documents = Path(name), True, []
        for seed in range(options.seed, options.seed + options.runs):
            plan = Plan.drawn(seed)
            events, first = record(plan, base / f"job-{seed}")
            (base / f"cuts-{seed}").mkdir()
            sites = sorted({event.site for event in events if event.site})
            for ignored in [(site,) for site in sites] if options.without == "all" else [()]:
                result = cut_everywhere(plan, events, first, base / f"cuts-{seed}", options.ways, ignored)
                found = {name: getattr(result, name) for name in Result.__slots__}
                documents.append({"seed": seed, "without": list(ignored)} | found)
                well = well and not result.problems
                if not options.json:
                    _show(seed, ignored, result)
    if options.json:
        print(json.dumps(documents))
    return 0 if well else 1


def _show(seed: int, ignored: Sequence[str], result: Result) -> None:
    what = f"without {', '.join(ignored)}" if ignored else "as it is"
    found = ", ".join(f"{kind} {count}" for kind, count in result.problems.items()) or "nothing wrong"
    print(f"seed {seed}, {what}: {result.events} events, {result.cuts} cuts, {result.states} states: {found}")
    for example in result.examples[:2]:
        print("   ", example.replace("\n", "\n      "), file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.power", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="of the first job (default 1)")
    add("--runs", type=int, default=1, help="jobs (default 1)")
    add("--ways", type=int, default=12, help="ways in which each cut may end that are tried (default 12)")
    add("--without", choices=("all",), help="take each sync out in turn; then something has to be wrong")
    add("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
