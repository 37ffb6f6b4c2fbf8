"""deeppart's demo for sharded states: train with FSDP2, lose a rank, restart, compare.  `make demo-fsdp`, or

    python examples/demo_fsdp.py [--quick] [--keep]

A small transformer is trained with torch.distributed.fsdp.fully_shard on 4 ranks under torchrun. A rank is killed while
a checkpoint is written; the job goes on on 4 ranks, on 2, and on 3; then one process reads the checkpoint. Beside
deeppart, torch.distributed.checkpoint (DCP) saves and loads the same in the same jobs. Needs two processors for about
two minutes, and room for 1 GB in the folder for temporary files (TMPDIR). It checks what it claims: the exit code is 0
only if all of it was seen to be true. Speeds are shown, not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo_fsdp_states import Costs, differences, leaves_of, load_with_dcp
from demo_jobs import JobError, TorchJob, run
from demo_telling import Telling, committed_steps, read_losses
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

import deeppart

HERE = Path(__file__).resolve().parent
#: Seconds that one job may take.
PATIENCE = 120.0
RANKS = 4
#: The rank that is killed.
VICTIM = 1
#: How far mean losses on other ranks, which read other text, may be apart.
_NEAR = 0.3


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    steps: int = 48
    every: int = 8
    #: Bytes/s to the persistent directory in the run that is killed: slow, so that there is a middle to be killed in.
    bandwidth: float = 16e6
    model: tuple[str, ...] = ("--layers", "4", "--width", "192", "--batch", "4")


QUICK = Plan(steps=30, every=5, bandwidth=8e6, model=("--layers", "2", "--width", "128", "--batch", "2"))


@dataclass(kw_only=True)
class Demo(Telling):
    """What the parts of the demo share.

    Attributes:
        plan: how much.
        folder: temporary, for everything.
        rows: of the table at the end.
    """

    plan: Plan
    folder: Path
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def row(self, what: str, true: bool | None, result: str, seconds: str = "", beside: str = "") -> None:
        """A line of the table."""
        text = {True: f"[green]✓[/] {result} equal", False: f"[red]✗ {result}, not equal[/]", None: result}[true]
        self.rows.append((what, text, seconds, beside))

    def arguments(self, name: str, *more: object) -> list[str]:
        """The command line of demo_fsdp_rank.py for a run of that name."""
        folder = self.folder / name
        files = ["--folder", folder, "--result", folder / "result.json", "--losses", folder / "losses.jsonl"]
        counts = ["--steps", self.plan.steps, "--every", self.plan.every]
        return [str(each) for each in (HERE / "demo_fsdp_rank.py", *files, *counts, *self.plan.model, *more)]

    def train(self, ranks: int, name: str, *more: object) -> dict[str, Any]:
        """One job to its end; returns what it found out."""
        began = time.monotonic()
        (self.folder / name).mkdir(exist_ok=True)
        run(ranks, self.arguments(name, *more), self.folder / name / "job", PATIENCE, TorchJob)
        self.say(f"[dim]{time.monotonic() - began:.1f} s, start-up included[/]")
        result: dict[str, Any] = json.loads((self.folder / name / "result.json").read_text())
        return result

    def losses(self, name: str) -> dict[int, str]:
        """As :func:`read_losses`, of a run."""
        return read_losses(self.folder / name / "losses.jsonl")

    def committed(self, name: str) -> list[int]:
        """Steps of a run with a manifest."""
        return committed_steps(self.folder / name / "deeppart")


def load_with_deeppart(folder: Path) -> dict[str, Tensor]:
    """deeppart's side: path -> full tensor, of what DCP saves, too, in one process."""
    state = deeppart.load(folder)
    return dict(leaves_of({name: state[name] for name in ("model", "optimizer")}))


def interrupt(demo: Demo) -> int:
    """Train with checkpoints and kill a rank while one is written; returns the newest that is complete."""
    persistent = demo.folder / "interrupted" / "deeppart"
    (demo.folder / "interrupted").mkdir()
    seen: list[int] = []

    def in_the_middle() -> bool:
        """Some of the victim's part is on disk, no manifest, and there are checkpoints to go back to."""
        if len(demo.committed("interrupted")) < 2:
            return False
        for file in persistent.glob(f"step-*/.part-{VICTIM:05d}-*.tmp-*"):
            with contextlib.suppress(OSError):
                if file.stat().st_size > 0 and not (file.parent / "manifest").exists():
                    seen.append(int(file.parent.name.split("-")[1]))
        return bool(seen)

    arguments = demo.arguments("interrupted", "--save", "plain", "--flush-bandwidth", demo.plan.bandwidth)
    with TorchJob(RANKS, arguments, demo.folder / "interrupted" / "job", PATIENCE) as job:
        job.wait_for(in_the_middle, "a rank could be seen in the middle of a write")
        job.kill(VICTIM)
        began = time.monotonic()
        code = job.wait()
        ended = time.monotonic() - began
    step, good = seen[0], demo.committed("interrupted")
    demo.say(f"rank {VICTIM} got SIGKILL while writing its part of step {step}; the job ended {ended:.1f} s later")
    demo.claim(code != 0, f"torchrun reports it: exit code {code}")
    demo.claim(step not in good, f"step {step} has no manifest, so it is not a checkpoint; complete are {good}")
    return good[-1]


def go_on_from(demo: Demo, name: str, step: int) -> None:
    """A copy of what the interrupted run left, for a restart of its own."""
    old, new = demo.folder / "interrupted", demo.folder / name
    shutil.copytree(old / "deeppart", new / "deeppart")
    shutil.copytree(old / "dcp" / str(step), new / "dcp" / str(step))
    (new / "whole").mkdir()
    shutil.copy(old / "whole" / f"{step}.pt", new / "whole")


def check_restore(demo: Demo, ranks: int, found: dict[str, Any], step: int) -> None:
    """Where it went on from, and every byte of it."""
    ours, theirs = found["restore"]["deeppart"], found["restore"]["dcp.load"]
    demo.claim(found["restore"]["step"] == step, f"it went on from step {step}, the newest complete checkpoint")
    text = f"{ours['bytes'] / 1e6:.1f} MB are the full tensors gathered at the save, [bold]byte for byte[/]"
    equal = demo.claim(not ours["wrong"], text)
    for name in ours["wrong"][:3]:
        demo.say(escape(name))
    demo.claim(not theirs["wrong"], "so are those that dcp.load brought")
    what = f"restore, 4 ranks to {ranks}"
    demo.row(what, equal, f"{ours['bytes'] / 1e6:.1f} MB", _s(ours["seconds"]), f"load {_s(theirs['seconds'])}")


def check_bits(demo: Demo, name: str) -> None:
    """The claim of all claims: losses, and all tensors at the end, are those of the uninterrupted run."""
    expected, found = demo.losses("alone"), demo.losses(name)
    wrong = [step for step in found if found[step] != expected[step]]
    count = f"{len(found) - len(wrong)} of {len(found)}"
    text = f"losses of steps {min(found)} to {max(found)} are those of the uninterrupted run, [bold]bit for bit[/]"
    true = demo.claim(not wrong and max(found) == demo.plan.steps, f"{text}: {count}")
    demo.row("losses after that", true, count)
    unequal, nbytes = differences(_load(demo.folder / "alone" / "end.pt"), demo.folder / name / "end.pt")
    true = demo.claim(not unequal, f"so are weights and moments at the end: {nbytes / 1e6:.1f} MB")
    demo.row("weights at the end", true, f"{nbytes / 1e6:.1f} MB")


def check_curve(demo: Demo, name: str) -> None:
    """On other ranks the text is another one, and the random numbers."""
    expected, found = (_floats(demo.losses(each)) for each in ("alone", name))
    before, after = (statistics.mean(run[step] for step in found) for run in (expected, found))
    true = abs(before - after) < _NEAR and max(found) == demo.plan.steps
    demo.claim(
        true, f"the curve continues, on other text: mean loss from there on {after:.2f}, uninterrupted {before:.2f}"
    )


def show_saves(demo: Demo, saves: list[Costs]) -> None:
    """Rows for what saves cost; the first one does not count."""
    counted = saves[1:] or saves

    def of(name: str, event: str) -> str:
        return _range([save[name][event] for save in counted])

    for event, what in (("blocked", "save, training blocked"), ("safe", "save, safe on disk after")):
        beside = f"save {of('dcp.save', event)}\nasync_save {of('dcp.async_save', event)}"
        demo.row(what, None, f"median of {len(counted)}", of("deeppart", event), beside)


def load_alone(demo: Demo, step: int) -> None:
    """One process, no ranks."""
    took = {}
    loads: dict[str, Callable[[], dict[str, Tensor]]] = {
        "dcp.load": lambda: load_with_dcp(demo.folder / "three" / "dcp" / str(step)),
        "deeppart.load": lambda: load_with_deeppart(demo.folder / "three" / "deeppart"),
    }
    for name, load in loads.items():
        began = time.perf_counter()
        tensors = load()
        took[name] = time.perf_counter() - began
        wrong, nbytes = differences(tensors, demo.folder / "three" / "whole" / f"{step}.pt")
        equal = demo.claim(not wrong, f"{name}: {nbytes / 1e6:.1f} MB are the same full tensors, byte for byte")
        for path in wrong[:3]:
            demo.say(escape(path))
    beside = f"load {_s(took['dcp.load'])}"
    demo.row("load in one process", equal, f"{nbytes / 1e6:.1f} MB", _s(took["deeppart.load"]), beside)


def tell_story(demo: Demo) -> None:
    """All parts."""
    demo.heading(f"1. Train with FSDP2 on {RANKS} ranks, never interrupted, no checkpoints")
    demo.train(RANKS, "alone")

    demo.heading("2. The same with checkpoints, and a rank is killed while one is written")
    step = interrupt(demo)
    expected, found = demo.losses("alone"), demo.losses("interrupted")
    same = sum(found[each] == expected[each] for each in found)
    demo.claim(same == len(found), f"until then, checkpoints changed nothing: {same} of {len(found)} losses are equal")

    for number, (ranks, name) in enumerate(((RANKS, "four"), (2, "two"), (3, "three")), 3):
        demo.heading(f"{number}. Restart on {ranks} ranks" + (", and save in turn with DCP" if ranks == RANKS else ""))
        go_on_from(demo, name, step)
        saving = ["--save", "measured"] if ranks == RANKS else []
        found_out = demo.train(ranks, name, "--restore", "--dcp-step", step, *saving)
        if ranks == RANKS:
            show_saves(demo, found_out["saves"])
        check_restore(demo, ranks, found_out, step)
        check_bits(demo, name) if ranks == RANKS else check_curve(demo, name)

    demo.heading("6. Load the checkpoint in one process")
    load_alone(demo, step)


def show_table(demo: Demo) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 0, 0, 2))
    for column in ("", "result", "deeppart", "dcp"):
        table.add_column(column, no_wrap=True)
    for row in demo.rows:
        table.add_row(*row)
    demo.console.print()
    demo.console.print(table)


def _load(path: Path) -> dict[str, Tensor]:
    import torch

    tensors: dict[str, Tensor] = torch.load(path, weights_only=True)
    return tensors


def _floats(losses: dict[int, str]) -> dict[int, float]:
    return {step: float.fromhex(text) for step, text in losses.items()}


def _s(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def _range(values: list[float]) -> str:
    """The median and what they vary between, in one unit: "23 ms (6-26)"."""
    unit, times, digits = ("ms", 1e3, 0) if max(values) < 0.9995 else ("s", 1.0, 2)
    middle, least, most = (
        f"{times * each:.{digits}f}" for each in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} {unit} ({least}-{most})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train with FSDP2, lose a rank, restart on 4, 2 and 3, compare.")
    parser.add_argument("--quick", action="store_true", help="fewer steps of a smaller model")
    parser.add_argument("--keep", action="store_true", help="do not remove the temporary folder")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is cleaned up then, too
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="deeppart-demo-"))
    demo = Demo(plan=QUICK if args.quick else Plan(), folder=folder, console=console)
    try:
        tell_story(demo)
    except JobError as error:
        console.print(f"\n[bold red]The demo could not go on:[/] {escape(str(error))}")
        return 1
    finally:
        if args.keep:
            console.print(f"\nkept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    show_table(demo)
    took = f"{time.monotonic() - began:.0f} s"
    if demo.broken:
        console.print(f"\n[bold red]{len(demo.broken)} of what the demo claims is not so[/] ({took})")
        return 1
    console.print(f"\n[bold green]everything above was checked and holds[/] ({took})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
