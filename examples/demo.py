"""deeppart's demo: train, lose a rank in the middle of a write, restart, compare.  `make demo`, or

    python examples/demo.py [--out DIR] [--quick] [--keep]

Needs two processors for about two minutes, and room for a few GB in the folder for temporary files (TMPDIR). It checks
what it claims: the exit code is 0 only if all of it was seen to be true.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_jobs import Job, JobError, run, swept_shared_memory
from demo_telling import Telling, committed_steps, read_losses
from rich.console import Console
from rich.markup import escape
from rich.table import Table

try:
    from demo_plot import Curves, draw, with_range
except ModuleNotFoundError as error:
    sys.exit(f"the demo needs {error.name}: pip install 'deeppart[mpich,demo]'")

HERE = Path(__file__).resolve().parent
#: Seconds that one job may take.
PATIENCE = 180.0
#: The rank that is killed.
VICTIM = 1


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    steps: int = 80
    every: int = 16
    megabytes: int = 300
    rounds: int = 5
    #: Bytes/s to the persistent directory in the run that is killed: slow, so that there is a middle to be killed in.
    bandwidth: float = 16e6
    model: tuple[str, ...] = ("--layers", "4", "--width", "192", "--batch", "6")


QUICK = Plan(steps=50, every=10, megabytes=60, rounds=3)


@dataclass(kw_only=True)
class Demo(Telling):
    """What the parts of the demo share.

    Attributes:
        plan: how much.
        disk: temporary folder, for everything persistent.
        memory: temporary folder that stands for the nodes' own storage.
    """

    plan: Plan
    disk: Path
    memory: Path

    def arguments(self, name: str, *more: str) -> list[str]:
        """The command line of examples/train_lm.py for a run of that name."""
        folders = ["--checkpoint-dir", self.disk / name / "persistent", "--local-dir", self.memory / name]
        log = ["--loss-log", self.disk / name / "losses.jsonl", "--steps", self.plan.steps]
        return [str(argument) for argument in (HERE / "train_lm.py", *folders, *log, *self.plan.model, *more)]

    def train(self, ranks: int, name: str, *more: str) -> str:
        """One training to its end; returns what it printed."""
        began = time.monotonic()
        output = run(ranks, self.arguments(name, *more), self.disk / name / f"job-{ranks}", PATIENCE)
        for line in output.splitlines():
            if shown := re.search(r"^(resumed|starting|  step).*|checkpoint \d+: blocked.*", line):
                self.say(f"[dim]{escape(shown[0].strip())}[/]")
        self.say(f"step {self.plan.steps} reached; {time.monotonic() - began:.1f} s, start-up included")
        return output

    def losses(self, name: str) -> dict[int, str]:
        """As :func:`read_losses`, of a run."""
        return read_losses(self.disk / name / "losses.jsonl")

    def committed(self, name: str) -> list[int]:
        """Steps of a run with a manifest."""
        return committed_steps(self.disk / name / "persistent")


@dataclass(frozen=True)
class Kill:
    """How the interrupted run ended.

    Attributes:
        step: whose checkpoint was being written.
        written, whole: bytes of the victim's part that were on disk, and that it has.
        good: the newest complete checkpoint.
    """

    step: int
    written: int
    whole: int
    good: int


def floats(losses: dict[int, str]) -> dict[int, float]:
    return {step: float.fromhex(text) for step, text in losses.items()}


def interrupt(demo: Demo) -> Kill:
    """Train with checkpoints and kill a rank while it writes to the persistent directory."""
    persistent, local = demo.disk / "interrupted" / "persistent", demo.memory / "interrupted"
    seen: list[tuple[Path, int]] = []

    def in_the_middle() -> bool:
        """Some of the victim's part is on disk, not all of it, and there are checkpoints to go back to."""
        if len(demo.committed("interrupted")) < 2:
            return False
        for file in persistent.glob(f"step-*/.part-{VICTIM:05d}-*.tmp-*"):
            stored = sorted(local.glob(f"*/{file.parent.name}/part-*"))
            with contextlib.suppress(OSError):
                if len(stored) < 2:
                    continue  # the copy begins while the local parts are still being written
                whole = stored[VICTIM].stat().st_size
                if 0 < file.stat().st_size < whole and not (file.parent / "manifest").exists():
                    seen.append((file, whole))
        return bool(seen)

    options = ["--every", str(demo.plan.every), "--flush-bandwidth", str(demo.plan.bandwidth)]
    with Job(2, demo.arguments("interrupted", *options), demo.disk / "interrupted" / "job-2", PATIENCE) as job:
        job.wait_for(in_the_middle, "a rank could be seen in the middle of a write")
        job.kill(VICTIM)
        began = time.monotonic()
        code = job.wait()
        ended = time.monotonic() - began
    file, whole = seen[0]
    step = int(file.parent.name.split("-")[1])
    written = file.stat().st_size if file.exists() else whole
    good = demo.committed("interrupted")
    demo.say(f"rank {VICTIM} got SIGKILL while writing its part of step {step}; the other ended {ended:.2f} s later")
    demo.claim(code != 0, f"mpirun reports it: exit code {code}")
    demo.claim(written < whole, f"the part on disk is unfinished: {written / 1e6:.1f} of {whole / 1e6:.1f} MB")
    demo.claim(step not in good, f"step {step} has no manifest, so it is not a checkpoint; complete are {good}")
    reached = max(demo.losses("interrupted"))
    demo.say(f"training was at step {reached}" + (": it had not waited for the write" if reached > step else ""))
    return Kill(step, written, whole, good[-1])


def go_on_from(demo: Demo, name: str) -> None:
    """A copy of what the interrupted run left, for a restart of its own: its nodes are new."""
    shutil.copytree(demo.disk / "interrupted" / "persistent", demo.disk / name / "persistent")


def go_on_with(demo: Demo, name: str) -> None:
    """What the interrupted run left, with what lies on its nodes: that is not a copy's."""
    (demo.disk / name).mkdir()
    (demo.disk / "interrupted" / "persistent").rename(demo.disk / name / "persistent")
    (demo.memory / "interrupted").rename(demo.memory / name)


def check_bits(demo: Demo, name: str) -> None:
    """The claim of all claims."""
    expected, found = demo.losses("reference"), demo.losses(name)
    wrong = [step for step in found if found[step] != expected[step]]
    first, last = min(found), max(found)
    equal = f"losses of steps {first} to {last} are those of the uninterrupted run, [bold]bit for bit[/]"
    demo.claim(not wrong and last == demo.plan.steps, f"{equal}: {len(found) - len(wrong)} of {len(found)}")
    for step in wrong[:3]:
        demo.say(f"step {step}: {found[step]} instead of {expected[step]}")


def resumed_from(output: str) -> int | None:
    found = re.search(r"^resumed from step (\d+)$", output, re.MULTILINE)
    return int(found[1]) if found else None


def tell_story(demo: Demo) -> Curves:
    """Parts 1 to 5."""
    every = ["--every", str(demo.plan.every)]
    demo.heading("1. Train on 2 ranks, never interrupted, no checkpoints on the way")
    demo.train(2, "reference", "--every", str(demo.plan.steps))

    demo.heading("2. The same with checkpoints, and a rank is killed in the middle of a write")
    kill = interrupt(demo)
    expected, found = demo.losses("reference"), demo.losses("interrupted")
    same = sum(found[step] == expected[step] for step in found)
    demo.claim(same == len(found), f"until then, checkpoints changed nothing: {same} of {len(found)} losses are equal")

    demo.heading("3. Restart on 2 ranks; the nodes are new, nothing is left but the persistent directory")
    go_on_from(demo, "same")
    start = resumed_from(demo.train(2, "same", *every))
    demo.claim(start == kill.good, f"it went on from step {kill.good}, the newest complete checkpoint")
    check_bits(demo, "same")

    demo.heading("4. Restart on 2 ranks; the nodes have kept their local storage")
    go_on_from(demo, "more")
    go_on_with(demo, "kept")
    start = resumed_from(demo.train(2, "kept", *every))
    demo.claim(start is not None and start >= kill.step, f"it went on from step {start}, from the local copies")
    check_bits(demo, "kept")

    demo.heading("5. Restart on 3 ranks, from the same checkpoint as in 3")
    start = resumed_from(demo.train(3, "more", *every))
    demo.claim(start == kill.good, f"it went on from step {kill.good}, with data and random numbers for the new rank")
    more = floats(demo.losses("more"))
    first = list(more)[:10]
    before, after = (statistics.mean(run[step] for step in first) for run in (floats(expected), more))
    demo.claim(
        abs(before - after) < 0.3 and max(more) == demo.plan.steps,
        f"the curve continues, on other data: mean loss of steps {first[0]} to {first[-1]} is {after:.2f}, "
        f"uninterrupted {before:.2f}",
    )
    return Curves(floats(expected), floats(found), floats(demo.losses("same")), more, kill.good, kill.step)


def measure_costs(demo: Demo) -> dict[str, Any]:
    """Part 6."""
    plan, result = demo.plan, demo.disk / "costs.json"
    demo.heading("6. What a checkpoint costs, beside torch.save and DCP")
    options = ["--folder", demo.disk / "costs", "--local", demo.memory / "costs", "--result", result]
    options += ["--megabytes", plan.megabytes, "--rounds", plan.rounds]
    (demo.disk / "costs").mkdir()
    run(2, [str(argument) for argument in (HERE / "demo_costs.py", *options)], demo.disk / "job-costs", PATIENCE)
    costs: dict[str, Any] = json.loads(result.read_text())
    demo.console.print(cost_table(costs))
    size = f"{costs['state_bytes'] / 1e6:.0f} MB"
    demo.say(
        f"{size} of model and Adam moments, the same on {costs['ranks']} ranks. From the call, slowest rank, median"
    )
    demo.say(f"(least-most) of {plan.rounds} rounds after one to warm up; they take turns, a step of Adam before each.")
    sizes = [median["bytes"] for median in costs["median"].values()]
    demo.claim(min(sizes) > 0.99 * costs["state_bytes"], "everybody wrote all of it")
    ours = costs["median"]["deeppart"]["blocked"]
    for name, median in costs["median"].items():
        if name != "deeppart":
            demo.say(f"{name} blocks training {median['blocked'] / ours:.1f} times as long as deeppart.")
    return costs


def cost_table(costs: dict[str, Any]) -> Table:
    """A row per method."""
    table = Table(box=None, header_style="bold", padding=(0, 0, 0, 3))
    table.add_column("", no_wrap=True)
    for column in ("training blocked", "node-local copy", "safe on disk", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, median in costs["median"].items():
        spans = costs["span"][name]
        cells = [with_range(median[e], *spans[e]) if e in median else "-" for e in ("blocked", "local", "disk")]
        table.add_row(name, *cells, f"{median['bytes'] / 1e6:.0f} MB", style="bold" if name == "deeppart" else None)
    return table


@contextlib.contextmanager
def temporary_folders(keep: bool, megabytes: int) -> Iterator[tuple[Path, Path]]:
    """One on disk, one in memory where there is room."""
    shared = Path("/dev/shm")
    room = shared.is_dir() and shutil.disk_usage(shared).free > 4e6 * megabytes + 1e9
    disk = Path(tempfile.mkdtemp(prefix="deeppart-demo-"))
    memory = Path(tempfile.mkdtemp(prefix="deeppart-demo-", dir=shared if room else None))
    try:
        yield disk, memory
    finally:
        for folder in (disk, memory):
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train, lose a rank in the middle of a write, restart, compare.")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="for the picture (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="half the steps, a fifth of the bytes")
    parser.add_argument("--keep", action="store_true", help="do not remove the temporary folders")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is cleaned up then, too
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    plan = QUICK if args.quick else Plan()
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    with temporary_folders(args.keep, plan.megabytes) as (disk, memory), swept_shared_memory():
        demo = Demo(plan=plan, disk=disk, memory=memory, console=console)
        try:
            curves = tell_story(demo)
            costs = measure_costs(demo)
        except JobError as error:
            console.print(f"\n[bold red]The demo could not go on:[/] {escape(str(error))}")
            return 1
        draw(curves, costs, args.out / "demo.png")
        if args.keep:
            console.print(f"\nkept: {disk} and {memory}")
    console.print(f"\npicture: {args.out / 'demo.png'}", soft_wrap=True)
    took = f"{time.monotonic() - began:.0f} s"
    if demo.broken:
        console.print(f"[bold red]{len(demo.broken)} of what the demo claims is not so[/] ({took})")
        return 1
    console.print(f"[bold green]everything above was checked and holds[/] ({took})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
