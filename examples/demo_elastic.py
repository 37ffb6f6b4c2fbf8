"""A training on 2, 4, 1 and 3 ranks in turn, by a file and a kill, beside one that is not interrupted.

python examples/demo_elastic.py [--out DIR] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

SCRIPT = Path(__file__).with_name("elastic_training.py")
SIZES = [2, 4, 1, 3]
#: Until a number of ranks has made steps, or the job has ended.
LIMIT_S = 120.0


def read_notes(directory: Path) -> list[dict[str, Any]]:
    """The lines of all ranks."""
    lines = [line for file in directory.glob("notes-*.jsonl") for line in file.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def steps_of(notes: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Step -> the lines of its ranks, in the run that made it last: a kill has lost what others had made."""
    made = [note for note in notes if "loss" in note]
    last = {note["step"]: note["run"] for note in sorted(made, key=lambda note: float(note["time"]))}
    return {step: [note for note in made if (note["step"], note["run"]) == (step, run)] for step, run in last.items()}


def wait_for(what: str, true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + LIMIT_S
    while not true():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"waiting for {what} was in vain")
        time.sleep(0.1)


def command(out: Path, options: Sequence[str], script: Sequence[str]) -> list[str]:
    """That starts a training."""
    words = [sys.executable, "-m", "deeppart", "run", *options, "--log", str(out / "log.jsonl")]
    return [*words, "--", sys.executable, str(SCRIPT), str(out), *script]


def run_changing(out: Path, script: Sequence[str], after_s: float, steps: int) -> int:
    """2 and 4 ranks by the file; 1 as a rank is killed; 3 by the file."""
    out.mkdir(parents=True)
    size = out / "SIZE"
    size.write_text("2\n")
    options = ["--ranks", "4", "--size-file", str(size)]
    began_s = time.monotonic()
    process = subprocess.Popen(command(out, options, script))

    def at(ranks: int) -> list[dict[str, Any]]:
        return [note for note in read_notes(out) if note["ranks"] == ranks and "loss" in note]

    try:
        wait_for("2 ranks", lambda: len(at(2)) > 2 * steps and time.monotonic() > began_s + after_s, process)
        size.write_text("4\n")
        wait_for("4 ranks", lambda: len(at(4)) > 4 * steps, process)
        size.write_text("1\n")
        os.kill(next(note["pid"] for note in at(4)), signal.SIGKILL)
        wait_for("1 rank", lambda: len(at(1)) > steps, process)
        size.write_text("3\n")
        return process.wait(LIMIT_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def check(straight: Path, changing: Path, samples: int, epochs: int) -> list[str]:
    """What is not as it should be."""
    wrong = list[str]()
    one, several = steps_of(read_notes(straight)), steps_of(read_notes(changing))
    sizes = [several[step][0]["ranks"] for step in sorted(several)]
    order = [size for place, size in enumerate(sizes) if not place or size != sizes[place - 1]]
    if order != SIZES:
        wrong.append(f"numbers of ranks: {order} instead of {SIZES}")
    seen = Counter((n["epoch"], sample) for lines in several.values() for n in lines for sample in n["samples"])
    if seen != Counter((epoch, sample) for epoch in range(epochs) for sample in range(samples)):
        wrong.append(f"samples: {sum(seen.values())} of {samples * epochs}, {sum(n > 1 for n in seen.values())} twice")
    if sorted(one) != sorted(several):
        wrong.append(f"steps: {len(several)} instead of {len(one)}")
    else:
        worst = max(abs(several[step][0]["loss"] / one[step][0]["loss"] - 1) for step in one)
        click.echo(f"losses differ by {worst:.1e} of their value at most, in {len(one)} steps")
        if worst > 1e-9:
            wrong.append(f"losses differ by {worst:.1e}")
    return wrong


def pieces(out: Path) -> list[dict[str, float]]:
    """Of each change that was asked for, seconds from SIGTERM on."""
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    for event in log:
        event["time"] = datetime.fromisoformat(event["time"]).timestamp()
    notes = sorted(read_notes(out), key=lambda note: float(note["time"]))
    found = []
    for place, event in enumerate(log):
        if event["event"] != "change" or log[place + 1]["event"] != "started":
            continue
        start = log[place + 1]
        before = [n for n in notes if event["time"] < n["time"] < start["time"]]
        after = [n for n in notes if n["time"] > start["time"]]
        run = after[0]["run"]
        after = [n for n in after if n["run"] == run]
        # Asked after should_stop(), ranks leave in checkpoint(), without marks.
        last = max((n["time"] for n in before), default=event["time"])
        agreed = max((n["time"] for n in before if n.get("mark") == "agreed"), default=last)
        left = max((n["time"] for n in before if n.get("mark") == "left"), default=last)
        met = [n for n in after if n.get("mark") == "met"]
        forked, imported = max(n["started"] for n in met), max(n["imported"] for n in met)
        joined = max(n["time"] for n in met)
        built = max(n["time"] for n in after if n.get("mark") == "built")
        restored = max(n["time"] for n in after if n.get("mark") == "restored")
        first = min(n["time"] for n in after if "loss" in n)
        marks = [event["time"], agreed, left, start["time"], forked, imported, joined, built, restored, first]
        names = ["agree", "checkpoint", "exit", "fork", "script", "meet", "build", "restore", "first_step"]
        row = {name: b - a for name, (a, b) in zip(names, pairwise(marks), strict=True)}
        found.append({"ranks": float(start["ranks"]), **row, "all": first - event["time"]})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/elastic"), help="where the picture goes")
    parser.add_argument("--quick", action="store_true", help="less of it, without the picture")
    parser.add_argument("--after", type=float, help="the fewest seconds with 2 ranks (default 20; --quick: 0)")
    arguments = parser.parse_args()
    samples, epochs, pace, steps = (1536, 3, "0.08", 12) if arguments.quick else (4096, 3, "0.12", 70)
    after_s = arguments.after if arguments.after is not None else 0.0 if arguments.quick else 20.0
    script = ["--samples", str(samples), "--epochs", str(epochs), "--batch", "32"]
    with tempfile.TemporaryDirectory() as directory:
        straight, changing = Path(directory) / "straight", Path(directory) / "changing"
        straight.mkdir()
        once = subprocess.run(command(straight, ["--ranks", "1"], script), check=False).returncode
        code = run_changing(changing, [*script, "--pace", pace], after_s, steps)
        wrong = check(straight, changing, samples, epochs)
        if once or code:
            wrong.append(f"exit codes {once} and {code}")
        for row in pieces(changing):
            click.echo(json.dumps({name: round(value, 2) for name, value in row.items()}))
        if not arguments.quick:
            from demo_elastic_plot import draw

            arguments.out.mkdir(parents=True, exist_ok=True)
            lines = {name: steps_of(read_notes(out)) for name, out in (("straight", straight), ("changing", changing))}
            draw(lines["straight"], lines["changing"], arguments.out / "elastic.png")
    click.echo("\n".join(f"wrong: {each}" for each in wrong) or "every sample once in each epoch, and the same losses")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
