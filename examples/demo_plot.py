"""The demo's picture: the loss curves above, what a checkpoint costs below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

INK, GREY, PALE = "#22272e", "#6b7480", "#c9d3df"
BLUE, RED, GREEN, ORANGE = "#2563b8", "#c8322b", "#12805c", "#d9822b"


@dataclass(frozen=True)
class Curves:
    """Step -> loss of every run.

    Attributes:
        reference: never interrupted.
        interrupted: up to where a rank was killed.
        same: resumed on as many ranks.
        more: resumed on one more.
        resumed_from: the checkpoint that both went on from.
        dying_step: whose checkpoint was being written when the rank was killed.
    """

    reference: Mapping[int, float]
    interrupted: Mapping[int, float]
    same: Mapping[int, float]
    more: Mapping[int, float]
    resumed_from: int
    dying_step: int


def draw(curves: Curves, costs: Mapping[str, Any], path: Path) -> None:
    """Write the picture."""
    style: dict[Any, Any] = {"font.size": 9.5, "axes.edgecolor": GREY, "axes.labelcolor": INK, "text.color": INK}
    style |= {"xtick.color": GREY, "ytick.color": GREY, "axes.spines.top": False, "axes.spines.right": False}
    style |= {"axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False}
    with plt.rc_context(style):
        figure = plt.figure(figsize=(11, 8.2), layout="constrained")
        grid = figure.add_gridspec(3, 2, height_ratios=[3.2, 1.1, 2.0], hspace=0.06)
        loss = figure.add_subplot(grid[0, :])
        _draw_losses(loss, curves)
        _draw_differences(figure.add_subplot(grid[1, :], sharex=loss), curves)
        _draw_bars(figure.add_subplot(grid[2, 0]), costs, "blocked", "Training stands still for")
        _draw_bars(figure.add_subplot(grid[2, 1]), costs, "disk", "Until the checkpoint is safe on disk", names=False)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def _draw_losses(axes: Axes, curves: Curves) -> None:
    last = max(curves.interrupted)
    axes.plot(*_points(curves.reference), color=PALE, linewidth=7, solid_capstyle="round", label="never interrupted")
    axes.plot(*_points(curves.more), color=ORANGE, linewidth=1.2, label="resumed on 3 ranks")
    axes.plot(*_points(curves.same), color=BLUE, linewidth=1.8, label="resumed on 2 ranks")
    axes.plot(*_points(curves.interrupted), color=INK, linewidth=1.8, linestyle=(0, (2, 1.4)), label="interrupted")
    axes.plot(last, curves.interrupted[last], "X", color=RED, markersize=11, markeredgecolor="white", zorder=5)
    axes.annotate(
        f"one rank killed\nwhile writing step {curves.dying_step}",
        (last, curves.interrupted[last]),
        xytext=(last, 0.8 + max(loss for step, loss in curves.reference.items() if step > 0.8 * last)),
        color=RED,
        ha="center",
        arrowprops={"arrowstyle": "-", "color": RED, "shrinkB": 7},
    )
    axes.axvline(curves.resumed_from, color=GREEN, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"restarts go on\nfrom step {curves.resumed_from}",
        (curves.resumed_from, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-6, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        color=GREEN,
    )
    axes.set(title="Training a transformer on the source of Python's standard library", ylabel="loss")
    axes.legend(loc="upper right")
    axes.tick_params(labelbottom=False)


def _draw_differences(axes: Axes, curves: Curves) -> None:
    for run, color, width in ((curves.more, ORANGE, 1.2), (curves.same, BLUE, 2.2)):
        axes.plot(list(run), [run[step] - curves.reference[step] for step in run], color=color, linewidth=width)
    axes.axvline(curves.resumed_from, color=GREEN, linewidth=1, linestyle=(0, (4, 3)))
    exact = all(curves.same[step] == curves.reference[step] for step in curves.same)
    text = "on 2 ranks: none,\nbit for bit" if exact else "on 2 ranks: not zero"
    axes.annotate(text, (0.98 * curves.resumed_from, 0.0), color=BLUE, ha="right", va="center")
    axes.set(ylabel="difference to\nuninterrupted", xlim=(0, max(curves.reference) + 1))
    axes.set_xlabel("step", labelpad=1)


def _draw_bars(axes: Axes, costs: Mapping[str, Any], event: str, title: str, *, names: bool = True) -> None:
    methods = list(costs["median"])
    values = [costs["median"][name][event] for name in methods]
    colors = [BLUE if name == "deeppart" else PALE for name in methods]
    places = range(len(methods))[::-1]
    axes.barh(places, values, color=colors, height=0.62)
    for place, name, value in zip(places, methods, values, strict=True):
        least, most = costs["span"][name][event]
        axes.plot([least, most], [place, place], color=GREY, linewidth=1)
        at = (max(value, most), place)
        label = axes.annotate(seconds(value), at, (6, 0), textcoords="offset points", va="center", weight="bold")
        if event == "disk" and "local" in costs["median"][name]:
            text = f"node-local after {seconds(costs['median'][name]['local'])}"
            axes.annotate(text, (1, 0.5), (6, 0), label, textcoords="offset points", va="center", color=GREY, size=8.5)
    axes.set_yticks(places, methods if names else [""] * len(methods))
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    size, ranks, rounds = costs["state_bytes"] / 1e6, costs["ranks"], costs["rounds"]
    axes.set(title=title, xlabel=f"seconds; {size:.0f} MB on {ranks} ranks, median and range of {rounds}")
    axes.margins(x=0.14)
    axes.set_xlim(left=0)


def _points(run: Mapping[int, float]) -> tuple[list[int], list[float]]:
    return list(run), list(run.values())


def seconds(value: float) -> str:
    """A duration: "23 ms", "1.30 s"."""
    return f"{1e3 * value:.0f} ms" if value < 0.9995 else f"{value:.2f} s"


def with_range(value: float, least: float, most: float) -> str:
    """A duration and what it varied between, in one unit: "23 ms (6-26)"."""
    if most < 0.9995:
        return f"{1e3 * value:.0f} ms ({1e3 * least:.0f}-{1e3 * most:.0f})"
    return f"{value:.2f} s ({least:.2f}-{most:.2f})"
