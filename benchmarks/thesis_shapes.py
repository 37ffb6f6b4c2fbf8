"""The shapes of the DeepPart thesis, simulated: python benchmarks/thesis_shapes.py docs/images/thesis.png

Left: speed-up of whole checkpoints against torch.save on rank 0, up to 16 nodes with 4 ranks each: of this library, and
of the thesis' prototype as it is described. Middle: BERT-large, with and without compression. Right: how long a call
blocks, by number of tensors, at one size. The machine is the preset cte-power.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from deeppart_simulator.machine.files import read_machine
from deeppart_simulator.timing.published import prototype_s, torch_save_s
from deeppart_simulator.timing.scale import Point, study
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

RANKS = (1, 2, 4, 8, 16, 32, 64)
RANKS_PER_NODE = 4
STATES = (("20 GB", "bert-48x1664x30522+adam"), ("BERT-large", "bert-large"))
TENSORS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
TENSORS_BYTES = 400_000_000
TENSOR_RANKS = (1, 4, 64)
COLOURS = ("#2f6fde", "#e0762c", "#2a9d6f")


def points(state: str, ranks: Sequence[int], compression: str = "none") -> list[Point]:
    """Checkpoints to the nodes' storage."""
    machine = read_machine("cte-power")
    protection = Protection(partner=False, persistent=False)
    job = Job(read_state(state), machine, max(ranks), RANKS_PER_NODE, compression=compression, protection=protection)
    found: list[Point] = study(job, ranks, ("deeppart",))
    return found


def prototype(name: str) -> list[float]:
    """How many times as fast as torch.save the thesis' prototype is, both to the file system."""
    machine, state = read_machine("cte-power"), read_state(name)
    return [
        torch_save_s(machine, state, ranks, RANKS_PER_NODE, persistent=True)
        / prototype_s(machine, state, ranks, RANKS_PER_NODE, compressed=False)
        for ranks in RANKS
    ]


def speed_ups(axis: Axes) -> None:
    """Whole checkpoints against torch.save on rank 0."""
    for (label, state), colour in zip(STATES, COLOURS, strict=False):
        found = points(state, RANKS)
        axis.plot(RANKS, [point.serial_speedup for point in found], "o-", color=colour, label=label)
        axis.plot(RANKS, prototype(state), ".:", color=colour, label=f"{label}, prototype to the file system")
    axis.plot(RANKS, RANKS, "--", color="grey", lw=1, label="as many as ranks")
    axis.set(xlabel="ranks, 4 on a node", ylabel="times", title="speed-up against torch.save")


def compression(axis: Axes) -> None:
    """One state, with the codec and without."""
    for name, colour in (("none", COLOURS[0]), ("tensor", COLOURS[1])):
        found = points("bert-large", RANKS, name)
        axis.plot(RANKS, [point.complete_s["local"] for point in found], "o-", color=colour, label=name)
    axis.set(xlabel="ranks, 4 on a node", ylabel="seconds until nodes have it", title="BERT-large by compression")


def tensor_counts(axis: Axes) -> None:
    """The same bytes in more and more tensors."""
    for ranks, colour in zip(TENSOR_RANKS, COLOURS, strict=True):
        found = [points(f"tensors-{count}x{TENSORS_BYTES // count // 4 * 4}", (ranks,))[0] for count in TENSORS]
        label = "one rank" if ranks == 1 else f"{ranks} ranks"
        axis.plot(TENSORS, [point.blocked_s for point in found], "o-", color=colour, label=label)
    axis.set(xlabel="tensors", ylabel="seconds blocked", title="400 MB, by number of tensors")


def main(path: Path) -> None:
    """Draw."""
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    for axis, draw in zip(figure.subplots(1, 3), (speed_ups, compression, tensor_counts), strict=True):
        draw(axis)
        axis.set(xscale="log", yscale="log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_xticks(TENSORS[::2] if draw is tensor_counts else RANKS)
        for lines in (axis.xaxis, axis.yaxis):
            lines.set_major_formatter("{x:,g}")
            lines.set_minor_locator(NullLocator())
        axis.grid(True, alpha=0.3)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120, facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
