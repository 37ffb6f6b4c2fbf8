"""What status files cost: how long ``checkpoint()`` blocks with them and without, on a state so small that it shows.

    python benchmarks/status_cost.py [--rounds N] [--checkpoints N] [--json FILE]

One process. Sessions with ``status="none"`` and with ``status="rank"`` take turns; in each the same small state is
saved again and again, each checkpoint after the one before is complete. Also measured is processor time of the whole
process per checkpoint. The first checkpoints of a session do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

if __name__ == "__main__":  # runs from a checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console

import deeppart
from benchmarks.machine import describe_machine

_NOT_COUNTED = 20
#: Between checkpoints, in seconds: training goes on.
_PAUSE_S = 0.005
_WAYS = ("none", "rank")


@dataclass(frozen=True)
class Session:
    """One session.

    Attributes:
        status: the setting.
        blocked_s: of each call of ``checkpoint()`` that counts.
        cpu_s: processor time per checkpoint, all threads.
    """

    status: str
    blocked_s: tuple[float, ...]
    cpu_s: float


def run_session(directory: Path, status: str, checkpoints: int) -> Session:
    """Save a small state so many times."""
    state = {"w": torch.randn(1000), "b": torch.zeros(10), "epoch": 1}
    blocked, began = [], 0.0
    with deeppart.Checkpointer(persistent_dir=str(directory), status=status, compression="none") as checkpointer:
        for step in range(_NOT_COUNTED + checkpoints):
            if step == _NOT_COUNTED:
                began = time.process_time()
            called = time.perf_counter()
            pending = checkpointer.checkpoint(state, step)
            blocked.append(time.perf_counter() - called)
            pending.wait()
            time.sleep(_PAUSE_S)
        cpu_s = (time.process_time() - began) / checkpoints
    return Session(status, tuple(blocked[_NOT_COUNTED:]), cpu_s)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--checkpoints", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sessions = []
    for _ in range(options.rounds):
        for status in _WAYS:
            with tempfile.TemporaryDirectory() as directory:
                sessions.append(run_session(Path(directory), status, options.checkpoints))
    console = Console()
    for status in _WAYS:
        own = [session for session in sessions if session.status == status]
        blocked = sorted(seconds for session in own for seconds in session.blocked_s)
        medians = [median(session.blocked_s) * 1e6 for session in own]
        console.print(
            f"status = {status}: blocked {median(blocked) * 1e6:.0f} us (medians of sessions {min(medians):.0f}-"
            f"{max(medians):.0f}), mean {mean(blocked) * 1e6:.0f} us, 99 of 100 within "
            f"{blocked[len(blocked) * 99 // 100] * 1e6:.0f} us; processor {median(s.cpu_s for s in own) * 1e6:.0f} us",
            highlight=False,
            soft_wrap=True,
        )
    if options.json:
        document = {
            "machine": describe_machine({"disk": tempfile.gettempdir()}),
            "sessions": [asdict(session) for session in sessions],
        }
        options.json.write_text(json.dumps(document, indent=1, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
