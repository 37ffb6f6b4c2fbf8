"""Figures of checkpoints as scalars, for whatever takes these as TensorBoard's writer does."""

from __future__ import annotations

from typing import Any, Protocol

from deeppart.model import Report
from deeppart.pending import DONE, FAILED


class ScalarWriter(Protocol):
    """What ``torch.utils.tensorboard.SummaryWriter`` is, of which nothing else is needed."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> Any:
        """Add one number."""


def to_tensorboard(writer: ScalarWriter, report: Report, step: int | None = None, prefix: str = "deeppart") -> None:
    """Write the figures of a checkpoint as scalars, in seconds and bytes of this rank.

    ``PREFIX/blocked_s``, ``waited_s``, ``held_s``, ``raw_bytes``, ``encoded_bytes`` (once it is known), ``retries``;
    ``PREFIX/stages/STAGE_s``; and for each level that has come to its end ``PREFIX/LEVEL/complete`` (1, or 0 if it
    failed), ``complete_after_s``, ``written_bytes`` and ``unchanged_bytes``.

    Args:
        writer: anything with ``add_scalar(tag, value, step)``.
        report: ``pending.report``; best when ``pending.finished``, or some of it is not known yet.
        step: of the x axis; None for the step of the checkpoint.
        prefix: of the tags.

    Example:
        >>> import deeppart
        >>> from deeppart.telemetry import to_tensorboard
        >>> class Printer:
        ...     def add_scalar(self, tag, value, step):
        ...         print(tag, value, step)
        >>> done = deeppart.LevelReport("done", seconds=1.5, nbytes=4000)
        >>> report = deeppart.Report(100, 4000, 0, 0, 0.25, 0.0, {"capture": 0.25}, {"persistent": done})
        >>> to_tensorboard(Printer(), report)
        deeppart/blocked_s 0.25 100
        deeppart/waited_s 0.0 100
        deeppart/held_s 0.0 100
        deeppart/raw_bytes 4000 100
        deeppart/retries 0 100
        deeppart/stages/capture_s 0.25 100
        deeppart/persistent/complete 1 100
        deeppart/persistent/complete_after_s 1.5 100
        deeppart/persistent/written_bytes 4000 100
        deeppart/persistent/unchanged_bytes 0 100
    """
    at = report.step if step is None else step
    scalars: dict[str, float] = {
        "blocked_s": report.blocked_s,
        "waited_s": report.waited_s,
        "held_s": report.held_s,
        "raw_bytes": report.raw_bytes,
    }
    if report.encoded_bytes:
        scalars["encoded_bytes"] = report.encoded_bytes
    scalars["retries"] = report.retries
    scalars |= {f"stages/{stage}_s": seconds for stage, seconds in report.stages_s.items()}
    for name, level in report.levels.items():
        if level.state in (DONE, FAILED):
            scalars[f"{name}/complete"] = int(level.state == DONE)
        if level.state == DONE and level.seconds is not None:
            scalars[f"{name}/complete_after_s"] = level.seconds
            scalars[f"{name}/written_bytes"] = level.nbytes
            scalars[f"{name}/unchanged_bytes"] = level.referenced_bytes
    for tag, value in scalars.items():
        writer.add_scalar(f"{prefix}/{tag}", value, at)
