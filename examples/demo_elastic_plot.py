"""The picture of demo_elastic.py: ranks, batch size, noise scale, loss and goodput over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, GREY, PALE, BLUE = "#22272e", "#6b7480", "#c9d3df", "#2563b8"
Steps = Mapping[int, Sequence[Mapping[str, Any]]]
#: Steps over which goodput is a mean.
OVER = 8


def draw(straight: Steps, changing: Steps, path: Path) -> None:
    """Write the picture; the loss of the training that was not interrupted is below that of the other."""
    steps = sorted(changing)
    first = [changing[step][0] for step in steps]
    ended = [max(line["time"] for line in changing[step]) for step in steps]
    times = [time - ended[0] for time in ended]
    style: dict[Any, Any] = {"font.size": 9.5, "axes.edgecolor": GREY, "axes.labelcolor": INK, "text.color": INK}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    with plt.rc_context(style):
        figure, axes = plt.subplots(5, 1, figsize=(10, 9.5), sharex=True, layout="constrained")
        axes[0].plot(times, [line["ranks"] for line in first], drawstyle="steps-post", color=BLUE)
        axes[0].set(ylabel="ranks", yticks=range(5))
        axes[1].plot(times, [line["batch"] for line in first], color=BLUE)
        axes[1].set(ylabel="batch size\n(samples)", ylim=(0, 1.3 * max(line["batch"] for line in first)))
        axes[2].plot(times, [line["noise"] or math.nan for line in first], color=BLUE)
        axes[2].set(ylabel="noise scale\n(steps at scale 1)", yscale="log")
        once = [straight[step][0]["loss"] for step in steps]
        axes[3].plot(times, once, color=PALE, linewidth=6, label="not interrupted")
        axes[3].plot(times, [line["loss"] for line in first], color=BLUE, linewidth=1, label="2, 4, 1, 3 ranks")
        axes[3].set(ylabel="loss")
        axes[3].legend()
        rates = [
            math.nan
            if first[at]["run"] != first[at - 1]["run"]
            else sum(line["batch"] * line["gain"] / line["scale"] for line in first[max(0, at - OVER) + 1 : at + 1])
            / (times[at] - times[max(0, at - OVER)])
            for at in range(1, len(times))
        ]
        axes[4].plot(times[1:], rates, color=BLUE)
        axes[4].set(ylabel="goodput\n(samples/s, by worth)", xlabel="seconds", ylim=(0, None))
        for (before, a), (line, b) in pairwise(zip(first, times, strict=True)):
            if before["run"] != line["run"]:
                for each in axes:
                    each.axvspan(a, b, color=PALE, alpha=0.5, linewidth=0)
        figure.savefig(path, dpi=130)
        plt.close(figure)
