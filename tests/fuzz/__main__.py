"""``python -m tests.fuzz --seconds 1800 --seed 7``: exit code 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.running import working


def main() -> int:
    """Run a campaign, tell and keep what it finds."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz everything that is read from files."
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="how long; 300 if left out")
    parser.add_argument("--cases", type=int, help="at most so many cases")
    parser.add_argument("--seed", type=int, default=1, help="everything but the time follows from it")
    parser.add_argument("--only", nargs="*", help="names of the seeds to begin with")
    parser.add_argument("--out", type=Path, default=Path("fuzz-finds"), help="where finds are written to")
    given = parser.parse_args()
    with working() as worker:
        played = Campaign(given.seed, worker, only=given.only)
        played.play(cases=given.cases, seconds=given.seconds, tell=lambda text: print(text, flush=True))
        played.keep(given.out)
        print(f"{played.runs} cases, {played.ways} ways to be refused, {len(played.finds)} finds")
    return 1 if played.finds else 0


if __name__ == "__main__":
    sys.exit(main())
